"""The parts of the README that are made from the code and the committed results.

`python tests/readme.py` writes them; `test_readme.py` fails where they differ from what stands there.
"""

import json
import re
from pathlib import Path

from lossbench.store.schema import TABLES

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REFERENCE = ROOT / "results" / "reference"


def schema_block() -> str:
    """One Markdown table per parquet table: column, type, meaning."""
    parts = []
    for table, columns in TABLES.items():
        rows = [f"| `{column.name}` | {_type(column.type)} | {column.doc} |" for column in columns]
        parts.append("\n".join([f"**{table}**\n", "| column | type | what |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


def _type(kind) -> str:
    return {"int64": "integer", "double": "real", "bool": "flag"}.get(str(kind), "text")


def verdict_block() -> str:
    """The verdicts of the committed reference run, from its summary."""
    summary = json.loads((REFERENCE / "dr_grpo" / "report" / "summary.json").read_text())
    rows = [
        f"| {row['claim']} | {row['sentence']} | {row['paper']} | {_effect(row)} | {row['status']} |"
        for row in summary["verdicts"]
    ]
    head = ["| | claim | paper | here | verdict |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([summary["finding"], "", *head, *rows])


def _effect(row) -> str:
    if row.get("effect") is None:
        return row["reason"]
    text = f"{row['effect']:+.3g} {row['unit']} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]"
    return f"{text}, {row['ratio']:.2f}×" if row.get("ratio") is not None else text


BLOCKS = {"schema": schema_block, "verdicts": verdict_block}


def block(text: str, name: str) -> str:
    """What stands between the markers of a block."""
    match = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", text, re.S)
    if match is None:
        raise ValueError(f"README.md has no block '{name}'")
    return match[1]


def main() -> None:
    """Write every block."""
    text = README.read_text()
    for name, make in BLOCKS.items():
        new = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- /{name} -->", lambda _, new=new: new, text, flags=re.S)
    README.write_text(text)


if __name__ == "__main__":
    main()
