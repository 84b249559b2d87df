"""A report as Markdown that reads well on GitHub; figures are linked relatively, texts are escaped."""

import re

from lossbench.report.document import MARKS, Block, Code, Details, Document, FigureBlock, Sample, Table, Text
from lossbench.version import __version__

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def escape(text: str) -> str:
    """Plain text as Markdown that shows just this text; line breaks become spaces."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    # A number with a dot, a plus or a dash at the start would begin a list.
    return re.sub(r"^(\d+)([.)])", r"\1\\\2", re.sub(r"^([+-])", r"\\\1", escaped))


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def render_markdown(document: Document) -> str:
    """The report; ends with a newline."""
    parts = [f"# {escape(document.title)}", f"**{escape(document.finding)}**"]
    parts += [escape(line) for line in document.support]
    if document.incomplete:
        parts.append(f"> ▲ **{escape(document.incomplete)}**")
    parts += map(_block, document.hero)
    parts.append(" · ".join(f"{escape(name)}: **{escape(value)}**" for name, value in document.facts))
    for section in document.sections:
        body = "\n\n".join(map(_block, section.blocks))
        parts += [f"## {escape(section.title)}", _folded("Show", body) if section.folded else body]
    parts.append(f"<sub>Made by lossbench {__version__}.</sub>")
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text():
            return ("\n" if block.listed else "\n\n").join(f"{'- ' * block.listed}{escape(t)}" for t in block.items)
        case Table():
            return _table(block)
        case FigureBlock():
            return f"![{escape(block.alt)}](figures/{block.name}.png)\n\n{escape(block.caption)}".rstrip()
        case Sample():
            text = f"{block.prompt}\n{'─' * 12}\n{block.completion}" if block.prompt else block.completion
            return f"**{escape(block.label)}** ({escape(block.facts)})\n\n{fenced(text, 'text')}"
        case Code():
            return fenced(block.text, "sh")
        case Details():
            return _folded(block.title, "\n\n".join(map(_block, block.blocks)))


def _folded(title: str, body: str) -> str:
    """GitHub folds <details>; the empty lines make it read Markdown inside."""
    return f"<details>\n<summary>{_html(title)}</summary>\n\n{body}\n\n</details>"


def _html(text: str) -> str:
    """Plain text on one line of HTML: an empty line would end it, and what follows be read as Markdown."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())


def _table(table: Table) -> str:
    heads = [escape(f"{column.title} ({column.unit})" if column.unit else column.title) for column in table.columns]
    rule = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_cell(cell.text, cell.note, cell.strong, cell.mark) for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]
    parts = [f"**{escape(table.caption)}**", "\n".join(lines)]
    return "\n\n".join([*parts, escape(table.foot)] if table.foot else parts)


def _cell(text: str, note: str, strong: bool, mark: str) -> str:
    shown = f"**{escape(text)}**" if strong and text else escape(text)
    shown = f"{MARKS[mark]} {shown}" if mark else shown
    return "<br>".join([shown, *(escape(line) for line in note.split("\n") if line)])
