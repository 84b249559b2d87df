"""Parts of the README and of lossbench/docs that are generated from the code and the committed results.

`python tests/support/readme.py` rewrites them; `test_readme.py` and `test_docs.py` fail where a page is out of date.
"""

import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from support.code_blocks import CODE_BLOCKS  # noqa: E402
from support.result_blocks import RESULT_BLOCKS  # noqa: E402

README = ROOT / "README.md"
DOCS = ROOT / "lossbench" / "docs"
BLOCKS = {**CODE_BLOCKS, **RESULT_BLOCKS}


def pages() -> list[Path]:
    """The README and every page below lossbench/docs."""
    return [README, *sorted(DOCS.glob("*.md"))]


def names(text: str) -> list[str]:
    """Names of a page's generated blocks, in order."""
    return re.findall(r"^<!-- ([a-z0-9-]+) -->$", text, re.M)


def block(text: str, name: str) -> str:
    """The text between the markers of a block."""
    match = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", text, re.S)
    if match is None:
        raise ValueError(f"no closing marker <!-- /{name} -->")
    return match[1]


def commands(text: str) -> list[list[str]]:
    """Commands of a page as argument lists: `$ lossbench …` lines without redirections, and first cells of tables."""
    lines = re.findall(r"^(?:\$ |\| `)(lossbench [^`\n]*)", text, re.M)
    return [shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in lines]


def programs(text: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def main() -> None:
    """Rewrite every block of every page."""
    for page in pages():
        text = page.read_text()
        for name in names(text):
            new = f"<!-- {name} -->\n{BLOCKS[name]()}\n<!-- /{name} -->"
            text = re.sub(rf"<!-- {name} -->\n.*?<!-- /{name} -->", lambda _, new=new: new, text, flags=re.S)
        page.write_text(text)


if __name__ == "__main__":
    main()
