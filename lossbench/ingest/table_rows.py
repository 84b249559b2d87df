"""Rows of CSV, JSON and JSON-lines files, one at a time, and the shapes of exports that hide the run or the metric."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.ingest.base import Damage, Request
from lossbench.ingest.jsonl import UNREADABLE, records

Row = dict[str, Any]
Numbered = tuple[int, Row]
"""A row and its number: of the line in the file, or of the row where the file is not made of lines."""

# W&B's own counter (Step, _step) counts its calls, not optimizer steps: it is taken only where there is no other.
STEP_NAMES = ("step", "global_step", "train/global_step", "trainer/global_step", "Step", "_step")
TENSORBOARD_NAME = re.compile(r"(?:run-)?(?P<run>.*?)-tag-(?P<metric>.+)")
_TENSORBOARD: tuple[str, ...] = ("Wall time", "Step", "Value")
_WANDB_BOUNDS = ("__MIN", "__MAX")
_CELL_CHARACTERS = 1 << 24


def raw_rows(file: Path, damage: Damage) -> Iterator[Numbered]:
    """The file's rows that hold anything, in order; an empty CSV cell is None.

    Raises UsageError where the file as a whole is not what its name says.
    """
    if file.suffix == ".jsonl":
        yield from ((line, row) for line, row in records(file, damage) if row)
    elif file.suffix == ".json":
        yield from ((number, row) for number, row in enumerate(_json_rows(file), start=1) if row)
    else:
        yield from _csv_rows(file, damage)


def _csv_rows(file: Path, damage: Damage) -> Iterator[Numbered]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_CHARACTERS))
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines)
        try:
            header = next(reader, [])
            for row in reader:
                if any(row) and len(row) == len(header):
                    yield (
                        reader.line_num,
                        {name: value if value != "" else None for name, value in zip(header, row, strict=True)},
                    )
                elif any(row):
                    place = f"{file}, line {reader.line_num}"
                    damage.add(place, f"{len(row)} cells where the header has {len(header)}")
        except UnicodeDecodeError:
            raise UsageError(
                f"{file}, line {_first_undecodable(file)}: not UTF-8: convert the file, as by iconv -f latin1 -t utf-8"
            ) from None
        except csv.Error as error:
            raise UsageError(
                f"{file}, line {reader.line_num}: not readable as CSV ({one_line(error)}): is a quote left open there?"
            ) from None


def _first_undecodable(file: Path) -> int:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0


def _json_rows(file: Path) -> Iterator[Row]:
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))
    except UNREADABLE as error:
        reason = one_line(error)
        raise UsageError(f"{file}: not valid JSON ({reason}); JSON lines belong in a file named .jsonl") from None
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        lengths = {name: len(values) for name, values in data.items()}
        if len(set(lengths.values())) > 1:
            differ = one_line(", ".join(f"{name} {length}" for name, length in lengths.items()))
            raise UsageError(f"{file}: its columns differ in length ({differ}): export them again, of one length")
        yield from (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))
    elif isinstance(data, list) and all(isinstance(row, list) and len(row) == 3 for row in data):
        yield from (dict(zip(_TENSORBOARD, row, strict=True)) for row in data)
    elif isinstance(data, list) and all(isinstance(row, dict) for row in data):
        yield from data
    else:
        raise UsageError(f"{file}: valid: a list of objects, an object of lists, or TensorBoard's list of triples")


def tidier(file: Path, header: list[str], request: Request) -> Callable[[Row], list[Row]]:
    """What turns a row of the file into wide rows: W&B's charts, TensorBoard's scalars and long tables are not."""
    if set(_TENSORBOARD) <= set(header):
        match = TENSORBOARD_NAME.fullmatch(file.stem)
        name, run = (match["metric"], match["run"]) if match else ("Value", file.stem)
        return lambda row: [{"Step": row.get("Step"), "run": run, name: row.get("Value")}]
    metric = request.column("metric", ("metric",), header, str(file))
    value = request.column("value", ("value",), header, str(file))
    if metric and value:
        return lambda row: [
            {**{k: v for k, v in row.items() if k not in (metric, value)}, str(row.get(metric)): row.get(value)}
        ]
    charts = [(name, *name.rsplit(" - ", 1)) for name in header if " - " in name and not name.endswith(_WANDB_BOUNDS)]
    if charts:
        step = step_column(header, file, request)
        return lambda row: [
            {step: row.get(step), "run": run, metric: row.get(name)}
            for name, run, metric in charts
            if row.get(name) is not None  # a chart has a row for every step that any of its runs logged
        ]
    return lambda row: [row]


def step_column(header: list[str], file: Path, request: Request) -> str:
    """The column of steps. Raises UsageError where the table has none."""
    step = request.column("step", STEP_NAMES, header, str(file))
    if step is None:
        has = one_line(", ".join(header), 500)
        raise UsageError(f"{file}: no step column ({', '.join(STEP_NAMES)}); it has {has}: --map step=COLUMN")
    return step
