"""CSV and JSON exports: curves per mode and seed (W&B, TensorBoard, hand-made), wide or long, or one row per
completion.

Understood shapes: columns mode, seed, step and one per metric (wide); columns metric and value instead (long); W&B's
chart export, `Step` and `<run> - <metric>` columns; TensorBoard's scalar export, `Wall time, Step, Value` in a file
named `run-<run>-tag-<metric>.csv` (or its JSON, `[[wall time, step, value], ...]`). A run named `<mode>-s<seed>`
needs no columns mode and seed. A table with a column of completions or lengths that has several rows per step holds
completions, not curves.

Completions are never in memory as a whole, those of a .json file apart. Curves are small.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.errors import UsageError, one_line
from lossbench.ingest.base import STEP_FIELDS, Format, IngestedRun, Request, metric, mode_and_seed
from lossbench.ingest.fields import ROW_FIELDS, Damage, whole
from lossbench.ingest.formats.verl import STEP_KEYS as VERL_STEP_KEYS
from lossbench.ingest.reading import FIRST_ROWS, TENSORBOARD, Row, documents, first_fields, rows
from lossbench.ingest.trainer_logs import STEP_KEYS

SUFFIXES = (".csv", ".json", ".jsonl")
# W&B's own counter (Step, _step) counts its calls, not optimizer steps: it is taken only where there is no other.
STEP_NAMES = ("step", "global_step", "train/global_step", "trainer/global_step", "Step", "_step")
ROW_NAMES = {
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response"),
    "reward": ("reward", "score"),
    "correct": ("correct", "acc", "accuracy"),
    "advantage": ("advantage", "advantages"),
    "length": ("length", "length_tokens", "completion_length", "response_length"),
    "terminated": ("terminated",),
    "group": ("group", "uid"),
}
_AXES = ("mode", "seed", "run")
_TENSORBOARD_NAME = re.compile(r"(?:run-)?(?P<run>.*?)-tag-(?P<metric>.+)")
_WANDB_BOUNDS = ("__MIN", "__MAX")


class Key(NamedTuple):
    """Whose row it is, as far as the table says."""

    mode: str | None
    seed: int | None
    run: str | None


def found(path: Path) -> str | None:
    """Whether `path` is a table, or a folder whose own files are tables."""
    if path.is_file():
        return path.name if path.suffix in SUFFIXES else None
    tables = _tables(path)
    return tables[0].name if tables else None


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and (file.suffix == ".csv" or _is_scalars(file)))


def _is_scalars(file: Path) -> bool:
    return file.suffix == ".json" and _TENSORBOARD_NAME.fullmatch(file.stem) is not None


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """One run per mode, seed and run name that the tables at `path` tell apart."""
    runs: dict[Key, IngestedRun] = {}
    for file in _tables(path):
        _Table(file, path, runs, request).read()
    yield from runs.values()


@dataclass
class _Table:
    """A file, and the runs found so far, by key."""

    file: Path
    source: Path
    runs: dict[Key, IngestedRun]
    request: Request

    def read(self) -> None:
        """Stage the file's completions, and add its curves to the runs' logs."""
        header, damage = list(first_fields(self.file)), self.request.damage.part()
        step = self.request.columns.get("step") in header or any(name in header for name in STEP_NAMES)
        if step and self._texts(header) and set(header).issuperset(self.request.columns.values()):
            keys = self._stage(header, damage)
            for run in keys:
                run.damage.share(damage)
        else:
            self._read_curves(damage)

    def _texts(self, header: Iterable[str]) -> list[str]:
        return self.request.every_column("completion", ROW_NAMES["completion"], [*header], str(self.file))

    def _run(self, key: Key) -> IngestedRun:
        if key not in self.runs:
            name = one_line(key.run or (self.file.stem if key.mode is None else f"{key.mode}-s{key.seed}"))
            damage = self.request.damage.part()
            self.runs[key] = IngestedRun(self.source, name, mode=key.mode, seed=key.seed, damage=damage)
        return self.runs[key]

    def _stage(self, header: list[str], damage: Damage, wanted: Iterable[Key] | None = None) -> list[IngestedRun]:
        """Stage the rows of the table; the runs that they are of. Rows that name no run are counted in `damage`."""
        staging, place = self.request.staging, str(self.file)
        columns = {
            ours: self.request.every_column(ours, ROW_NAMES.get(ours, ()), self._names(ours, header), place)
            for ours in ROW_FIELDS
        }
        columns["step"] = [_step_column(header, self.file, self.request)]
        axes = [self.request.column(name, (name,), header, place) or name for name in _AXES]
        staging.add_documents(documents(self.file, damage, staging.con), columns, self.file, axes)
        found: dict[Key, list[str]] = {}
        for raw in staging.keys(self.file):
            values = dict(zip(axes, json.loads(raw), strict=True))
            for name in axes:
                if values[name] is not None and name not in header:
                    late = f"column {name} begins after row {FIRST_ROWS}: give every row one, or none"
                    raise UsageError(f"{self.file}: {late}")
            key = _key(values, axes, header, self.file)
            if key is None:
                staging.refuse(raw, self.file, "its seed is no number", damage)
            elif wanted is None or key in wanted:
                found.setdefault(key, []).append(raw)
        for key, raws in found.items():
            self._run(key).keys += raws
        return [self._run(key) for key in found]

    def _names(self, ours: str, header: list[str]) -> list[str]:
        """The header, and the usual names of a field, which may begin late."""
        return [*header, *ROW_NAMES.get(ours, ())]

    def _read_curves(self, damage: Damage) -> None:
        header, tidied = _header(self.file, damage, self.request)
        if not header:
            damage.add(str(self.file), "holds no row")
            return
        step = _step_column(header, self.file, self.request)
        axes = [self.request.column(name, (name,), header, str(self.file)) or name for name in _AXES]

        def keyed(nameless: Damage) -> Iterator[tuple[int, Row, Key]]:
            for line, raw in rows(self.file, Damage()):
                for row in tidied(raw):
                    if (key := _key(row, axes, header, self.file)) is not None:
                        yield line, row, key
                    else:
                        nameless.add(f"{self.file}, line {line}", "its seed is no number")

        kinds = self._kinds(keyed(damage), header, step)
        for key in kinds:
            self._run(key).damage.share(damage)
        curves = {key: self._run(key) for key, completions in kinds.items() if not completions}
        if curves:
            _add_curves(keyed(Damage()), curves, header, step, self.file, self.request)
        if completions := kinds.keys() - curves.keys():
            self._stage(header, Damage(), completions)

    def _kinds(self, keyed: Iterable[tuple[int, Row, Key]], header: list[str], step: str) -> dict[Key, bool]:
        """The runs of a table, and whether it holds completions of them: texts, or lengths with several rows a step."""
        texts = self._texts(header)
        length = self.request.column("length", ROW_NAMES["length"], header, str(self.file))
        kinds: dict[Key, bool] = {}
        steps: dict[Key, set[Any]] = {}
        for _, row, key in keyed:
            if kinds.setdefault(key, bool(texts)) or length is None or row.get(length) is None:
                continue
            at, before = str(row.get(step)), steps.setdefault(key, set())
            kinds[key] = at in before
            before.add(at)
        return kinds


def _key(row: Mapping[str, Any], axes: list[str], header: list[str], file: Path) -> Key | None:
    """Whose row it is: by its columns, else by the run's name in it, else by the file's name; None where its seed is
    not a number."""
    mode, seed, run = (row.get(name) for name in axes)
    name = None if run is None else str(run)
    named = mode_and_seed(name) if name else mode_and_seed(file.stem)
    if axes[0] not in header:
        mode = named[0] if named else None
    own_seed = whole(seed)
    if axes[1] not in header:
        own_seed = named[1] if named else None
    elif own_seed is None and seed is not None:
        return None
    return Key(None if mode is None else str(mode), own_seed, name)


def _header(file: Path, damage: Damage, request: Request) -> tuple[list[str], Callable[[Row], list[Row]]]:
    """The columns of a table in wide form, and what gives it that form. Its damaged lines are counted in `damage`."""
    tidied: Callable[[Row], list[Row]] | None = None
    header: dict[str, None] = {}
    for _, raw in rows(file, damage):
        if raw:
            tidied = tidied or _tidier(file, list(raw), request)
            for row in tidied(raw):
                header.update(dict.fromkeys(row))
    return list(header), tidied or (lambda row: [row])


def _tidier(file: Path, header: list[str], request: Request) -> Callable[[Row], list[Row]]:
    """What turns a row of the file into wide rows: W&B's charts, TensorBoard's scalars and long tables are not."""
    if set(TENSORBOARD) <= set(header):
        match = _TENSORBOARD_NAME.fullmatch(file.stem)
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
        step = _step_column(header, file, request)
        return lambda row: [
            {step: row.get(step), "run": run, metric: row.get(name)}
            for name, run, metric in charts
            if row.get(name) is not None  # a chart has a row for every step that any of its runs logged
        ]
    return lambda row: [row]


def _step_column(header: list[str], file: Path, request: Request) -> str:
    """The column of steps. Raises UsageError where the table has none."""
    step = request.column("step", STEP_NAMES, header, str(file))
    if step is None:
        has = one_line(", ".join(header), 500)
        raise UsageError(f"{file}: no step column ({', '.join(STEP_NAMES)}); it has {has}: --map step=COLUMN")
    return step


def _add_curves(
    keyed: Iterable[tuple[int, Row, Key]],
    runs: Mapping[Key, IngestedRun],
    header: list[str],
    step: str,
    file: Path,
    request: Request,
) -> None:
    """Add the table's metrics to the `logs` of each of the runs."""
    columns = _metric_columns(header, request, str(file))
    by_step = {key: {row["step"]: row for row in run.logs} for key, run in runs.items()}
    for line, row, key in keyed:
        if key not in runs:
            continue
        values = {ours: value for ours, names in columns.items() if (value := _first(ours, names, row)) is not None}
        at = whole(row.get(step))
        if at is not None and values:
            by_step[key].setdefault(at, {"step": at}).update(values)
        elif values:  # a row that W&B logged of something else has neither
            runs[key].damage.add(f"{file}, line {line}", f"step {row.get(step)!r} is no number")
    for key, run in runs.items():
        run.logs = [by_step[key][at] for at in sorted(by_step[key])]


def _first(ours: str, names: list[str], row: Row) -> float | None:
    return next((value for name in names if (value := metric(ours, row.get(name))) is not None), None)


def _metric_columns(header: list[str], request: Request, place: str) -> dict[str, list[str]]:
    """Columns of `steps` -> columns of the table, best first. Raises UsageError where it has no metric we know."""
    columns = {}
    for ours in STEP_FIELDS:
        if ours == "step":
            continue
        usual = [ours, *STEP_KEYS.get(ours, ()), *VERL_STEP_KEYS.get(ours, ())]
        usual += [f"train/{name}" for name in usual]
        usual += [name.replace("/", "_") for name in usual]  # as TensorBoard names the files it exports
        asked = "length" if ours == "length_mean" and ours not in request.columns else ours
        if known := request.every_column(asked, dict.fromkeys([*usual, asked]), header, place):
            columns[ours] = known
    if not columns:
        has = one_line(", ".join(header), 500)
        raise UsageError(f"{place}: no column that lossbench knows; it has {has}: --map reward_mean=COLUMN, ...")
    return columns


FORMAT = Format(
    "CSV or JSON export of curves (W&B, TensorBoard, hand-made), or one row per completion", found, read, any_table=True
)
