"""A report as data: sections made of blocks. What it says is decided once; HTML and Markdown only write it down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lossbench.text import clean

MARKS = {
    "supported": "●", "contradicted": "✕", "inconclusive": "○", "not-tested": "–",
    "error": "✕", "warning": "▲", "note": "•",
}  # fmt: skip
"""Signs of the verdicts and of the levels of warnings, so that colour is never alone."""


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text, or a list of short sentences."""

    kind: ClassVar[str] = "text"
    items: tuple[str, ...]
    listed: bool = False


@dataclass(frozen=True)
class Cell:
    """A table's cell: its value, a smaller second line, and a mark: "" or a key of `MARKS`."""

    text: str
    note: str = ""
    strong: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """A table's column; numbers stand on the right."""

    title: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: str = ""


def table(
    caption: str, columns: Sequence[str | Column], rows: Iterable[Sequence[str | Cell]], foot: str = ""
) -> Table | None:
    """A table from texts and cells; a column given as text holds words. None without rows."""
    cells = tuple(tuple(Cell(item) if isinstance(item, str) else item for item in row) for row in rows)
    heads = tuple(Column(item, numeric=False) if isinstance(item, str) else item for item in columns)
    return Table(caption, heads, cells, foot) if cells else None


@dataclass(frozen=True)
class FigureBlock:
    """A figure that lies at `figures/<name>.png` and `.svg` of the report; `readings` are what the page shows of it."""

    kind: ClassVar[str] = "figure"
    name: str
    caption: str
    alt: str
    readings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Sample:
    """One completion, untrusted: where it comes from, and its text."""

    kind: ClassVar[str] = "sample"
    label: str
    facts: str
    prompt: str
    completion: str


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Details:
    """Blocks under a title that opens and closes."""

    kind: ClassVar[str] = "details"
    title: str
    blocks: "tuple[Block, ...]"


Block = Text | Table | FigureBlock | Sample | Code | Details


@dataclass(frozen=True)
class Section:
    """A titled part of the report; one that is `folded` opens on demand."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """The whole report. `incomplete` says what is missing in one line, empty where nothing is; `hero` comes first;
    `modes` are the names behind the numbers in figures.

    Figures are read from `folder`, where the report lies, when they are put into the page.
    """

    title: str
    finding: str
    support: tuple[str, ...]
    hero: tuple[Block, ...]
    facts: tuple[tuple[str, str], ...]
    incomplete: str
    sections: tuple[Section, ...]
    modes: tuple[str, ...]
    folder: Path


def cleaned(part: Any) -> Any:
    """A document, or a part of one, with every text in it made safe to show."""
    if isinstance(part, str):
        return clean(part)
    if isinstance(part, tuple):
        return tuple(map(cleaned, part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: cleaned(getattr(part, field.name)) for field in fields(part)})
    return part
