"""A report as Markdown that reads well on GitHub; figures are linked relatively, texts are escaped."""

import re
from collections.abc import Iterable

from lossbench.report.document import (
    Block,
    Code,
    Details,
    Document,
    FigureBlock,
    Points,
    Samples,
    Table,
    Text,
    Warnings,
)
from lossbench.version import __version__

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_MARKS = {"supported": "●", "contradicted": "✕", "inconclusive": "○", "not-tested": "–"}


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
    parts.append(" · ".join(f"{escape(name)}: **{escape(value)}**" for name, value in document.facts))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}")
        parts += _blocks(section.blocks)
    parts.append(f"<sub>Made by lossbench {__version__}.</sub>")
    return "\n\n".join(parts) + "\n"


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [_block(block) for block in blocks]


def _block(block: Block) -> str:
    match block:
        case Text():
            return escape(block.text)
        case Points():
            return "\n".join(f"- {escape(item)}" for item in block.items)
        case Table():
            return _table(block)
        case FigureBlock():
            caption = f" {escape(block.caption)}" if block.caption else ""
            return f"![{escape(block.alt)}](figures/{block.name}.png)\n\n*{escape(block.title)}.*{caption}"
        case Warnings():
            return "\n".join(
                f"- **{level}**: {escape(message)} — {escape(remedy)}" for level, message, remedy in block.items
            )
        case Samples():
            return _folded(block.title, _samples(block))
        case Code():
            return fenced(block.text, "sh")
        case Details():
            return _folded(block.title, "\n\n".join(_blocks(block.blocks)))


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
    shown = f"{_MARKS[mark]} {shown}" if mark else shown
    return "<br>".join([shown, *(escape(line) for line in note.split("\n") if line)])


def _samples(block: Samples) -> str:
    parts = []
    for sample in block.items:
        parts.append(f"**{escape(sample.label)}** ({escape(sample.facts)})")
        text = f"{sample.prompt}\n{'─' * 12}\n{sample.completion}" if sample.prompt else sample.completion
        parts.append(fenced(text, "text"))
    return "\n\n".join(parts)
