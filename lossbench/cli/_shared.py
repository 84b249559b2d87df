"""Shared by the commands: option types, tables on stdout, progress and warnings on stderr."""

import codecs
import csv
import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from lossbench.text import clean

GRID, TRAINING, EXECUTION, OUTPUT = "Grid", "Training", "Execution", "Output"


class Format(StrEnum):
    """Output format of data on stdout."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the data.", rich_help_panel=OUTPUT)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=OUTPUT)]


def talk(message: str) -> None:
    """Print progress, a warning or a hint on stderr: stdout is for results."""
    print(clean(message), file=sys.stderr, flush=True)


def show(text: str, end: str = "\n") -> None:
    """Print results on stdout, without codes that a terminal would obey."""
    print(clean(text), end=end)


_PLAIN = {
    "─": "-", "–": "-", "—": "-", "−": "-", "…": "...", "×": "x", "→": "->", "⏎": "/", "α": "alpha", "λ": "lambda",
    "γ": "gamma", "≤": "<=", "≥": ">=", "±": "+-", "·": ".", "Σ": "sum", "²": "^2", "“": '"', "”": '"', "’": "'",
}  # fmt: skip


def print_anywhere() -> None:
    """Have stdout and stderr take any text: characters that their encoding lacks as plain ones, none where closed."""
    codecs.register_error("plain", _in_plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="plain")


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, format: str = "table") -> None:
    """Print `rows` on stdout, their `columns` in this order (default: those of the first row)."""
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    render = {"table": _as_table, "json": _as_json, "csv": _as_csv, "md": _as_markdown}[str(format)]
    render(names, [[row.get(name) for name in names] for row in rows])


def _as_json(names: list[str], rows: list[list[Any]]) -> None:
    records = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]
    show(json.dumps(records, indent=2, ensure_ascii=False, default=str))


def _plain(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_csv(names: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_as_text(value) for value in row] for row in rows)
    show(text.getvalue(), end="")


def _as_text(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, quoted as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _as_markdown(names: list[str], rows: list[list[Any]]) -> None:
    show("| " + " | ".join(names) + " |")
    show("|" + " --- |" * len(names))
    for row in rows:
        show("| " + " | ".join(_cell(value).replace("|", "\\|").replace("\n", "<br>") for value in row) + " |")


def _as_table(names: list[str], rows: list[list[Any]]) -> None:
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(names))]
    cells = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _as_rich_table(names, cells, numeric)
    else:
        _as_plain_table(names, [[cell.replace("\n", " ⏎ ") for cell in row] for row in cells], numeric)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _as_rich_table(names: list[str], cells: list[list[str]], numeric: list[bool]) -> None:
    """In a terminal: folded to its width."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(names, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def _as_plain_table(names: list[str], cells: list[list[str]], numeric: list[bool]) -> None:
    """In a pipe, which has no width: a line per row, whatever its length, since folding would break what reads it."""
    columns = list(zip(names, *cells, strict=True)) if cells else [(name,) for name in names]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "   ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (names, *cells)
    ]
    show("\n".join([lines[0], "─" * (sum(widths) + 3 * (len(widths) - 1)), *lines[1:]]))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(str(value))
