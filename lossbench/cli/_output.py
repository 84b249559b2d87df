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
_GAP, _SENTENCE = 3, 24  # characters between two columns, and on a line of one that wraps


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
    """The columns that a terminal has room for; in a pipe all, one line per row, since folding would break a reader."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = Console().width if sys.stdout.isatty() else _UNBOUNDED
    cells = [[_cell(v) if sys.stdout.isatty() else _cell(v).replace("\n", " ⏎ ") for v in row] for row in rows]
    chosen = _that_fit(width, list(zip(names, *cells, strict=True)))
    if left_out := [name for index, name in enumerate(names) if index not in chosen]:
        talk(f"too narrow for {', '.join(left_out)}: widen the window, or give --format csv")
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index in chosen:
        numeric = bool(rows) and all(row[index] is None or isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(names[index]), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[index]) for index in chosen))
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _that_fit(width: int, columns: Sequence[Sequence[str]]) -> list[int]:
    """The columns, first ones first, with room for their words and a bearable width for their sentences."""
    chosen, used = [], -_GAP
    for index, column in enumerate(columns):
        word = max((len(word) for cell in column for word in cell.split()), default=0)
        wide = _GAP + max(word, min(_SENTENCE, max(map(len, column))))
        if not chosen or used + wide <= width:
            chosen.append(index)
            used += wide
    return chosen


def _finite(value: Any) -> Any:
    """None for a float that is not finite, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if _finite(value) is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value))
