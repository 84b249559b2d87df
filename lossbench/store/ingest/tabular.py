"""CSV and JSON exports: curves per mode and seed (W&B, TensorBoard, hand-made), wide or long, or one row per
completion.

Understood shapes: columns mode, seed, step and one per metric (wide); columns metric and value instead (long); W&B's
chart export, `Step` and `<run> - <metric>` columns; TensorBoard's scalar export, `Wall time, Step, Value` in a file
named `run-<run>-tag-<metric>.csv` (or its JSON, `[[wall time, step, value], ...]`). A run named `<mode>-s<seed>`
needs no columns mode and seed. A table with a column of completions or lengths that has several rows per step holds
completions, not curves.
"""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.store.ingest.base import (
    ROW_FIELDS,
    STEP_FIELDS,
    Damage,
    Format,
    IngestedRun,
    Request,
    mode_and_seed,
    number,
)
from lossbench.store.ingest.blocks import block
from lossbench.store.ingest.jsonl import records
from lossbench.store.ingest.trainer_logs import STEP_KEYS
from lossbench.store.ingest.verl import STEP_KEYS as VERL_STEP_KEYS

SUFFIXES = (".csv", ".json", ".jsonl")
_STEP_NAMES = ("step", "Step", "global_step", "_step", "train/global_step", "trainer/global_step")
_WANDB_BOUNDS = ("__MIN", "__MAX")
_TENSORBOARD: tuple[str, ...] = ("Wall time", "Step", "Value")
_TENSORBOARD_NAME = re.compile(r"(?:run-)?(?P<run>.*?)-tag-(?P<metric>.+)")
_ROW_NAMES = {
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response"),
    "reward": ("reward", "score"),
    "correct": ("correct", "acc", "accuracy"),
    "advantage": ("advantage", "advantages"),
    "length": ("length", "length_tokens", "completion_length", "response_length"),
    "terminated": ("terminated",),
    "group": ("group", "uid"),
}
Row = dict[str, Any]


def found(path: Path) -> str | None:
    """Whether `path` is a table, or a folder whose own files are tables."""
    if path.is_file():
        return path.name if path.suffix in SUFFIXES else None
    tables = sorted(file for file in path.iterdir() if file.suffix == ".csv" or _tensorboard_json(file))
    return tables[0].name if tables else None


def _tensorboard_json(file: Path) -> bool:
    return file.suffix == ".json" and _TENSORBOARD_NAME.fullmatch(file.stem) is not None


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """One run per (mode, seed) or run name of the tables at `path`."""
    files = (
        [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix == ".csv" or _tensorboard_json(f))
    )
    curves: dict[tuple[Any, Any], IngestedRun] = {}
    for file in files:
        rows = [row for row in _rows(file, request.damage) if row]
        if not rows:
            request.damage.add(str(file), "holds no row")
            continue
        for key, members in _by_run(_tidy(file, rows, request), file, request).items():
            run = curves.setdefault(key, IngestedRun(path, "-s".join(str(part) for part in key)))
            run.mode, run.seed = key
            _fill(run, members, file, request)
    yield from curves.values()


def _rows(file: Path, damage: Damage) -> Iterator[Row]:
    if file.suffix == ".jsonl":
        yield from (row for _, row in records(file, damage))
    elif file.suffix == ".json":
        yield from _json_rows(file)
    else:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines)
            header = next(reader, [])
            for row in reader:
                if len(row) == len(header):
                    yield {name: value if value != "" else None for name, value in zip(header, row, strict=True)}
                elif row:
                    damage.add(
                        f"{file}, line {reader.line_num}", f"{len(row)} cells where the header has {len(header)}"
                    )


def _json_rows(file: Path) -> Iterator[Row]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not valid JSON ({error}); JSON lines belong in a file named .jsonl") from None
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        yield from (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))
    elif isinstance(data, list) and all(isinstance(row, list) and len(row) == 3 for row in data):
        yield from (dict(zip(_TENSORBOARD, row, strict=True)) for row in data)
    elif isinstance(data, list) and all(isinstance(row, dict) for row in data):
        yield from data
    else:
        raise UsageError(f"{file}: valid: a list of objects, an object of lists, or TensorBoard's list of triples")


def _tidy(file: Path, rows: list[Row], request: Request) -> list[Row]:
    """Wide rows with our names where the shape hides run or metric: W&B, TensorBoard and long tables."""
    header = list(rows[0])
    if set(_TENSORBOARD) <= set(header):
        match = _TENSORBOARD_NAME.fullmatch(file.stem)
        metric = match["metric"] if match else "Value"
        run = match["run"] if match else file.stem
        return [{"step": row["Step"], "run": run, metric: row["Value"]} for row in rows]
    metric = request.column("metric", ("metric",), header, str(file))
    value = request.column("value", ("value",), header, str(file))
    if metric and value:
        return [
            {**{k: v for k, v in row.items() if k not in (metric, value)}, str(row[metric]): row[value]} for row in rows
        ]
    charts = [name for name in header if " - " in name and not name.endswith(_WANDB_BOUNDS)]
    if charts:
        parts = [(name, *name.rsplit(" - ", 1)) for name in charts]
        step = _step_column(header, file, request)
        return [{"step": row[step], "run": run, metric: row[name]} for row in rows for name, run, metric in parts]
    return rows


def _step_column(header: list[str], file: Path, request: Request) -> str:
    step = request.column("step", _STEP_NAMES, header, str(file))
    if step is None:
        raise UsageError(
            f"{file}: no step column ({', '.join(_STEP_NAMES)}); it has {', '.join(header)}: --map step=COLUMN"
        )
    return step


def _by_run(rows: list[Row], file: Path, request: Request) -> dict[tuple[Any, Any], list[Row]]:
    """Rows by (mode, seed): from columns, else from the run's or the file's name, else from the request."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    mode, seed, run = (request.column(name, (name,), header, str(file)) for name in ("mode", "seed", "run"))
    runs: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        named = mode_and_seed(str(row[run])) if run and row.get(run) else mode_and_seed(file.stem)
        found_mode = row.get(mode) if mode else named[0] if named else None
        found_seed = number(row.get(seed)) if seed else named[1] if named else None
        runs.setdefault((found_mode, None if found_seed is None else int(found_seed)), []).append(row)
    return runs


def _fill(run: IngestedRun, rows: list[Row], file: Path, request: Request) -> None:
    header = list(dict.fromkeys(name for row in rows for name in row))
    step = _step_column(header, file, request)
    place = f"{file} ({run.name})"
    if _holds_completions(rows, step, header, request, place):
        names = {
            ours: request.column(ours, _ROW_NAMES.get(ours, ()), header, place) for ours in ROW_FIELDS if ours != "step"
        }
        fields = {ours: [row.get(column) for row in rows] for ours, column in names.items() if column}
        fields["step"] = [row.get(step) for row in rows]
        run.blocks = iter([("rollouts", block(fields, place, request.damage))])
        return
    columns = _metric_columns(header, request, place)
    by_step: dict[int, Row] = {int(row["step"]): row for row in run.logs}
    for row in rows:
        at = number(row.get(step))
        if at is None:
            request.damage.add(place, f"step {row.get(step)!r} is no number")
            continue
        values = {ours: value for ours, column in columns.items() if (value := number(row.get(column))) is not None}
        by_step.setdefault(int(at), {"step": int(at)}).update(values)
    run.logs = [by_step[at] for at in sorted(by_step)]


def _holds_completions(rows: list[Row], step: str, header: list[str], request: Request, place: str) -> bool:
    texts = request.column("completion", _ROW_NAMES["completion"], header, place)
    lengths = request.column("length", _ROW_NAMES["length"], header, place)
    steps = [row.get(step) for row in rows if row.get(lengths or "") is not None]
    return texts is not None or (lengths is not None and len(set(steps)) < len(steps))


def _metric_columns(header: list[str], request: Request, place: str) -> dict[str, str]:
    """Columns of `steps` -> columns of the table. Raises UsageError where the table holds no metric we know."""
    columns = {}
    for ours in STEP_FIELDS:
        if ours == "step":
            continue
        usual = [ours, *STEP_KEYS.get(ours, ()), *VERL_STEP_KEYS.get(ours, ())]
        usual += [f"train/{name}" for name in usual] + [f"train_{name.replace('/', '_')}" for name in usual]
        asked = "length" if ours == "length_mean" and "length" in request.columns else ours
        column = request.column(asked, [*usual, "length"] if ours == "length_mean" else usual, header, place)
        if column:
            columns[ours] = column
    if not columns:
        raise UsageError(
            f"{place}: no column that lossbench knows; it has {', '.join(header)}: --map reward_mean=COLUMN, ..."
        )
    return columns


FORMAT = Format("CSV or JSON export of curves (W&B, TensorBoard, hand-made), or one row per completion", found, read)
