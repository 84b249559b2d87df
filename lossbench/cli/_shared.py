"""What the commands share: option types, one way to print a table, and the rule that talk goes to stderr."""

import csv
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

GRID, TRAINING, EXECUTION, OUTPUT = "Grid", "Training", "Execution", "Output"


class Format(StrEnum):
    """How data are printed on stdout."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the data.", rich_help_panel=OUTPUT)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=OUTPUT)]


def talk(message: str) -> None:
    """Say something to the person, on stderr: stdout is for data."""
    print(message, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, format: str = "table") -> None:
    """Print `rows` on stdout, their `columns` in this order (default: those of the first row)."""
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    render = {"table": _as_table, "json": _as_json, "csv": _as_csv, "md": _as_markdown}[str(format)]
    render(names, [[row.get(name) for name in names] for row in rows])


def _as_json(names: list[str], rows: list[list[Any]]) -> None:
    records = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]
    print(json.dumps(records, indent=2, ensure_ascii=False, default=str))


def _plain(value: Any) -> Any:
    """JSON has no NaN: it becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_csv(names: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    print(text.getvalue(), end="")


def _as_markdown(names: list[str], rows: list[list[Any]]) -> None:
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for row in rows:
        print("| " + " | ".join(_cell(value).replace("|", "\\|") for value in row) + " |")


def _as_table(names: list[str], rows: list[list[Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(names):
        numeric = all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        table.add_column(name, justify="right" if rows and numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console()
    # A pipe has no width of its own: folding what a program will read would break it.
    Console(width=None if console.is_terminal else 10_000).print(table)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
