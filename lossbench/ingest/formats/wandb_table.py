"""W&B tables of completions: `{"columns": ["step", "prompt", "completion", …], "data": [[…], …]}`.

TRL's have a column per reward function, one row per completion; verl's of validation are wide, one row per step with
step, input_1, output_1, score_1, input_2, …
"""

import re
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.ingest.base import Format, IngestedRun, Request, files_that, one_run
from lossbench.ingest.fields import Damage
from lossbench.ingest.reading import json_object
from lossbench.ingest.trainer_logs import Columns, TrainerTables

_WIDE = re.compile(r"(input|output|score)_(\d+)")
_OURS = {"input": "prompt", "output": "completion", "score": "reward"}


def _begins_as_table(file: Path) -> bool:
    if file.suffix != ".json":
        return False
    with file.open("rb") as stream:
        head = stream.read(4096)
    return b'"columns"' in head and b'"data"' in head.partition(b"]")[2]


_files = files_that(_begins_as_table)


def _table(file: Path, damage: Damage) -> Columns:
    """The table's columns; empty, and counted as damage, where its rows do not fit them."""
    table = json_object(file, damage)
    names, rows = table.get("columns", []), table.get("data", [])
    if not rows or not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        damage.add(str(file), "is no table: its rows do not have a cell for each column")
        return {}
    return {str(name): list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _fill(path: Path, run: IngestedRun, request: Request) -> None:
    tables = TrainerTables(run, request)
    found = [(file, columns) for file in _files(path) if (columns := _table(file, run.damage))]
    for file, columns in sorted(found, key=lambda table: _first_step(table[1])):
        if any(map(_WIDE.fullmatch, columns)):
            _stage_wide(columns, file, run, request)
        elif {"step", "completion"} <= columns.keys():
            known = tables.known_rows(columns)
            if lines := range(known + 1, len(columns["step"]) + 1):
                tables.stage({name: values[known:] for name, values in columns.items()}, lines, file)
        else:
            raise UsageError(f"{file}: no columns step and completion; it has {', '.join(columns)}")


def _first_step(columns: Columns) -> float:
    step = columns.get("step", [0])[0]
    return step if isinstance(step, (int, float)) else 0.0


def _stage_wide(columns: Columns, file: Path, run: IngestedRun, request: Request) -> None:
    """Stage verl's validation: all rows of the table are logged again with each step, so its rows are by step."""
    samples: dict[tuple[int, str], dict[str, Any]] = {}
    for i, step in enumerate(columns["step"]):
        for name, values in columns.items():
            if match := _WIDE.fullmatch(name):
                samples.setdefault((i, match[2]), {"step": step})[_OURS[match[1]]] = values[i]
    run.read |= {ours: theirs + "_1, …" for theirs, ours in _OURS.items()}
    fields = {name: [row.get(name) for row in samples.values()] for name in ("step", *_OURS.values())}
    request.staging.add(fields, range(1, len(samples) + 1), run.keys[0], file, "evals")


FORMAT = Format("wandb-table", "W&B tables of completions (TRL's, verl's of validation)", _files, one_run(_fill))
