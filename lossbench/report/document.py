"""A report as data: sections made of blocks. What it says is decided once; HTML and Markdown only write it down."""

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lossbench.text import clean


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text."""

    kind: ClassVar[str] = "text"
    text: str
    small: bool = False


@dataclass(frozen=True)
class Points:
    """A list of short plain sentences."""

    kind: ClassVar[str] = "points"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A table's cell: its value, a smaller second line, and a mark: "" or one of the verdicts' words."""

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


@dataclass(frozen=True)
class FigureBlock:
    """A figure that lies at `figures/<name>.png` and `.svg` of the report."""

    kind: ClassVar[str] = "figure"
    name: str
    title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Warnings:
    """Warnings, each (level, message, remedy)."""

    kind: ClassVar[str] = "warnings"
    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Sample:
    """One completion, untrusted: where it comes from, and its text."""

    label: str
    facts: str
    prompt: str
    completion: str


@dataclass(frozen=True)
class Samples:
    """Completions of one arm under a title that opens and closes."""

    kind: ClassVar[str] = "samples"
    title: str
    items: tuple[Sample, ...]


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


Block = Text | Points | Table | FigureBlock | Warnings | Samples | Code | Details


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report. `incomplete` says what is missing in one line, empty where nothing is."""

    title: str
    finding: str
    support: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    incomplete: str
    sections: tuple[Section, ...]
    folder: Path
    """Where the report lies; figures are read from it when they are put into the page."""


def cleaned(part: Any) -> Any:
    """A document, or a part of one, with every text in it made safe to show."""
    if isinstance(part, str):
        return clean(part)
    if isinstance(part, tuple):
        return tuple(map(cleaned, part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: cleaned(getattr(part, field.name)) for field in fields(part)})
    return part
