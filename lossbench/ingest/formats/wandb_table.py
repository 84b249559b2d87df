"""W&B tables of completions: `{"columns": ["step", "prompt", "completion", …], "data": [[…], …]}`.

TRL's have a column per reward function, one row per completion; verl's of validation are wide, one row per step with
step, input_1, output_1, score_1, input_2, …
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.ingest.base import Format, IngestedRun, Request, named_run
from lossbench.ingest.fields import Damage
from lossbench.ingest.reading import json_object
from lossbench.ingest.trainer_logs import RepeatedTable, Rewards, stage_table

_WIDE = re.compile(r"(input|output|score)_(\d+)")
_OURS = {"input": "prompt", "output": "completion", "score": "reward"}


def found(path: Path) -> str | None:
    """Name of the file that makes `path` a folder of such tables, or one of them."""
    files = _files(path)
    return files[0].name if files else None


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sorted(file for file in files if file.suffix == ".json" and _begins_as_table(file))


def _begins_as_table(file: Path) -> bool:
    with file.open("rb") as stream:
        head = stream.read(4096)
    return b'"columns"' in head and b'"data"' in head.partition(b"]")[2]


def _table(file: Path, damage: Damage) -> dict[str, list[Any]]:
    """The table's columns; empty, and counted as damage, where its rows do not fit them."""
    table = json_object(file, damage)
    names, rows = table.get("columns", []), table.get("data", [])
    if not rows or not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        damage.add(str(file), "is no table: its rows do not have a cell for each column")
        return {}
    return {str(name): list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run whose tables are in `path`, which is a folder of tables or one of them."""
    run = named_run(path, request := request.part())
    tables = [(file, columns) for file in _files(path) if (columns := _table(file, request.damage))]
    repeated = RepeatedTable()
    for file, columns in sorted(tables, key=lambda table: _first_step(table[1])):
        if any(map(_WIDE.fullmatch, columns)):
            _stage_wide(columns, file, run, request)
        elif {"step", "completion"} <= columns.keys():
            known = repeated.known_rows(*(columns[name] for name in ("prompt", "completion") if name in columns))
            if known < len(columns["step"]):
                rest = {name: values[known:] for name, values in columns.items()}
                lines = range(known + 1, len(columns["step"]) + 1)
                stage_table(rest, lines, file, Rewards((), notes=run.notes), run, request)
        else:
            raise UsageError(f"{file}: no columns step and completion; it has {', '.join(columns)}")
    yield run


def _first_step(columns: Mapping[str, Sequence[Any]]) -> float:
    step = columns.get("step", [0])[0]
    return step if isinstance(step, (int, float)) else 0.0


def _stage_wide(columns: Mapping[str, Sequence[Any]], file: Path, run: IngestedRun, request: Request) -> None:
    """Stage verl's validation: all rows of the table are logged again with each step, so its rows are by step."""
    rows: list[dict[str, Any]] = []
    for i, step in enumerate(columns["step"]):
        samples: dict[str, dict[str, Any]] = {}
        for name, values in columns.items():
            if match := _WIDE.fullmatch(name):
                samples.setdefault(match[2], {"step": step})[_OURS[match[1]]] = values[i]
        rows += samples.values()
    run.read |= {ours: theirs + "_1, …" for theirs, ours in _OURS.items()}
    fields = {name: [row.get(name) for row in rows] for name in ("step", *_OURS.values())}
    request.staging.add(fields, range(1, len(rows) + 1), run.keys[0], file, "evals")


FORMAT = Format("W&B tables of completions (TRL's, verl's of validation)", found, read)
