"""Results on stdout as table, JSON, CSV or Markdown; progress and warnings on stderr."""

import codecs
import csv
import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lossbench.text import clean, spreadsheet_cell

_UNBOUNDED = 1_000_000  # columns of a pipe
_GAP = 3  # between two columns


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
    render = {"table": _as_table, "json": _as_json, "csv": _as_csv, "md": _as_markdown}[format]
    show(render(names, [[row.get(name) for name in names] for row in rows]))


def _as_json(names: list[str], rows: list[list[Any]]) -> str:
    records = [{name: _finite(value) for name, value in zip(names, row, strict=True)} for row in rows]
    return json.dumps(records, indent=2, ensure_ascii=False, default=str)


def _as_csv(names: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *([spreadsheet_cell(v) for v in row] for row in rows)])
    return text.getvalue().removesuffix("\n")


def _as_markdown(names: list[str], rows: list[list[Any]]) -> str:
    lines = [[_cell(value).replace("|", "\\|").replace("\n", "<br>") for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *lines))


def _as_table(names: list[str], rows: list[list[Any]]) -> str:
    """Wrapped to a terminal's width; in a pipe one line per row, since folding would break what reads it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = Console().width if sys.stdout.isatty() else _UNBOUNDED
    cells = [[_cell(v) if sys.stdout.isatty() else _cell(v).replace("\n", " ⏎ ") for v in row] for row in rows]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(names):
        numeric = bool(rows) and all(row[index] is None or isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _finite(value: Any) -> Any:
    """None for a float that is not finite, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if _finite(value) is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))
