"""CSV, JSON and parquet tables: curves per mode and seed (W&B, TensorBoard, hand-made), or one row per completion.

Shapes of curves: columns mode, seed, step and one per metric (wide), or metric and value (long); W&B's chart export,
`Step` and `<run> - <metric>`; TensorBoard's scalars, `Wall time, Step, Value` (or JSON triples) in a file named
`run-<run>-tag-<metric>.csv`. A run named `<mode>-s<seed>` needs no columns mode and seed. A table with a column of
texts, or of whole lengths that has several rows per step, holds completions. These are never in memory as a whole,
those of a .json file apart; curves are small.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.errors import UsageError, one_line
from lossbench.ingest.base import Format, IngestedRun, Request, mode_and_seed, naming
from lossbench.ingest.curves import add_logs, look_alikes, metric_columns
from lossbench.ingest.fields import ROW_FIELDS, Damage, number, whole
from lossbench.ingest.reading import FIRST_ROWS, TENSORBOARD, Row, documents, first_fields, is_lines, rows

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".log", ".txt")
# W&B's own counter (Step, _step) counts its calls, not optimizer steps: it is taken only where there is no other.
STEP_NAMES = ("step", "global_step", "train/global_step", "trainer/global_step", "Step", "_step")
ROW_NAMES = {
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response"),
    "reward": ("reward", "score"),
    "correct": ("correct", "acc", "accuracy"),
    "advantage": ("advantage", "advantages"),
    "length": (
        "length", "length_tokens", "completion_length", "response_length", "response_len", "completion_len",
        "completion_tokens", "num_tokens",
    ),
    "terminated": ("terminated",),
    "group": ("group", "uid"),
}  # fmt: skip
_AXES = {"mode": ("mode", "algo", "algorithm", "loss_type"), "seed": ("seed",), "run": ("run", "run_name")}
_NO_SEED = "its seed is no number"
_TENSORBOARD_NAME = re.compile(r"(?:run-)?(?P<run>.*?)-tag-(?P<metric>.+)")
_WANDB_BOUNDS = ("__MIN", "__MAX")


Tidier = Callable[[Row], list[Row]]


class Key(NamedTuple):
    """Whose row it is, as far as the table says."""

    mode: str | None
    seed: int | None
    run: str | None


def _files(path: Path) -> list[Path]:
    """A table, or the tables among a folder's own files."""
    if path.is_file():
        return [path] if _may_be_table(path) else []
    return sorted(file for file in path.iterdir() if file.is_file() and _may_be_table(file) and _has_steps(file))


def _may_be_table(file: Path) -> bool:
    return file.suffix in SUFFIXES and (file.suffix not in (".log", ".txt") or is_lines(file))


def _has_steps(file: Path) -> bool:
    """Whether a file among others, such as settings and notes, is a table with steps."""
    if file.suffix == ".csv" or _TENSORBOARD_NAME.fullmatch(file.stem):
        return True
    try:
        return bool(first_fields(file).keys() & {*STEP_NAMES})
    except UsageError:
        return False


def _read(path: Path, request: Request) -> Iterable[IngestedRun]:
    """One run per mode, seed and run name that the tables at `path` tell apart."""
    runs: dict[Key, IngestedRun] = {}
    for file in [path] if path.is_file() else _files(path):
        _Table(file, path, runs, request).read()
    return runs.values()


@dataclass
class _Table:
    """A file, and the runs found so far, by key. `damage` is that of the file, and so of each of its runs."""

    file: Path
    source: Path
    runs: dict[Key, IngestedRun]
    request: Request

    def __post_init__(self) -> None:
        self.damage = self.request.damage.part()
        self.name, self.mode, self.seed = naming(self.file, self.request.top)

    def read(self) -> None:
        """Stage the file's completions, and add its curves to the runs' logs."""
        header = list(first_fields(self.file))
        texts = self._usual("completion", header)
        if not (texts and set(header).issuperset(self.request.columns.values())):
            header = list(first_fields(self.file, None))
            texts = self._usual("completion", header)
        if not header:
            self.damage.add(str(self.file), "holds no row")
            return
        step = _step_column(header, self.file, self.request)
        tidied = _tidier(self.file, header, step, self.request)
        staged: dict[Key, bool] = {}
        if tidied is None and (texts or self._usual("length", header)):
            staged = self._stage(header, step, bool(texts))
        if not staged or not all(staged.values()):
            self._add_curves(tidied or (lambda row: [row]), staged)

    def _usual(self, ours: str, header: list[str]) -> list[str]:
        return self.request.every_column(ours, ROW_NAMES.get(ours, ()), header, str(self.file))

    def _run(self, key: Key) -> IngestedRun:
        if key not in self.runs:
            name = one_line(key.run or (self.name if key.mode in (None, self.mode) else f"{key.mode}-s{key.seed}"))
            damage = self.request.damage.part()
            self.runs[key] = IngestedRun(self.source, name, mode=key.mode, seed=key.seed, damage=damage)
        return self.runs[key]

    def _stage(self, header: list[str], step: str, texts: bool) -> dict[Key, bool]:
        """Stage the rows of the table; the runs that they are of, and whether they are completions: texts, or several
        whole lengths a step. Rows that name no run are damage."""
        staging = self.request.staging
        # A usual column may begin late.
        columns = {ours: self._usual(ours, [*header, *ROW_NAMES.get(ours, ())]) for ours in ROW_FIELDS}
        columns["step"] = [step]
        axes = self._axes(header)
        staging.add_documents(documents(self.file, self.damage, staging.con), columns, self.file, axes)
        found: dict[Key, list[str]] = {}
        for raw in staging.keys(self.file):
            values = dict(zip(axes, json.loads(raw), strict=True))
            for name in axes:
                if values[name] is not None and name not in header:
                    late = f"column {name} begins after row {FIRST_ROWS}: give every row one, or none"
                    raise UsageError(f"{self.file}: {late}")
            if (key := self._key(values, axes, header)) is None:
                staging.refuse(raw, self.file, _NO_SEED, self.damage)
            else:
                found.setdefault(key, []).append(raw)
        means = "length" not in self.request.columns  # then a fraction is a mean of some micro-batch or rank
        kinds = {key: texts or staging.several_a_step(raws, self.file, means) for key, raws in found.items()}
        for key, completions in kinds.items():
            run = self._run(key)
            run.damage.share(self.damage)
            if completions:
                run.keys += found[key]
                read = {ours: [name for name in names if name in header] for ours, names in columns.items()}
                run.saw({ours: names[0] for ours, names in read.items() if names}, header)
        return kinds

    def _axes(self, header: list[str]) -> list[str]:
        """The columns of mode, seed and run."""
        return [self.request.column(name, usual, header, str(self.file)) or name for name, usual in _AXES.items()]

    def _key(self, row: Mapping[str, Any], axes: list[str], header: list[str]) -> Key | None:
        """Whose row it is: by its columns, else by the run's name in it, else by the name of the file or its folder;
        None where its seed is not a number."""
        mode, seed, run = (row.get(name) for name in axes)
        name = None if run is None else str(run)
        named = (mode_and_seed(name) or (None, None)) if name else (self.mode, self.seed)
        if axes[0] not in header:
            mode = named[0]
        own_seed = whole(seed) if axes[1] in header else named[1]
        if axes[1] in header and own_seed is None and seed is not None:
            return None
        return Key(None if mode is None else str(mode), own_seed, name)

    def _add_curves(self, tidied: Tidier, staged: Mapping[Key, bool]) -> None:
        """Add the table's metrics to the `logs` of each run whose completions are not `staged`.

        Raises UsageError where the table has none we know.
        """
        damage = Damage() if staged else self.damage  # staging has counted it
        table = [(line, row) for line, raw in rows(self.file, damage) for row in tidied(raw)]
        header = list(dict.fromkeys(name for _, row in table for name in row))
        step, axes = _step_column(header, self.file, self.request), self._axes(header)
        found: dict[Key, list[tuple[int, Row]]] = {}
        for line, row in table:
            if (key := self._key(row, axes, header)) is None:
                damage.add(f"{self.file}, line {line}", _NO_SEED)
            elif not staged.get(key):
                found.setdefault(key, []).append((line, row))
        columns = metric_columns(header, self.request, str(self.file), strict=True)
        if found and not columns:
            has = one_line(", ".join(header), 500)
            meant = " ".join(look_alikes({}, header)[:4]) or "--map reward_mean=COLUMN, ..."
            raise UsageError(f"{self.file}: no column that lossbench knows; it has {has}: {meant}")
        metrics = [name for names in columns.values() for name in names]
        for key, lines in found.items():
            run = self._run(key)
            run.damage.share(damage)
            run.read["step"] = step
            for line, row in lines:
                # A row that W&B logged of something else has neither.
                if whole(row.get(step)) is None and any(number(row.get(name)) is not None for name in metrics):
                    run.damage.add(f"{self.file}, line {line}", f"step {row.get(step)!r} is no number")
            curve = [(at, row) for _, row in lines if (at := whole(row.get(step))) is not None]
            add_logs(run, curve, self.request, mean=True)


def _tidier(file: Path, header: list[str], step: str, request: Request) -> Tidier | None:
    """Function that makes wide rows of a file's row: W&B's charts, TensorBoard's scalars and long tables are not."""
    if set(TENSORBOARD) <= set(header):
        match = _TENSORBOARD_NAME.fullmatch(file.stem)
        tag, of = (match["metric"], match["run"]) if match else ("Value", file.stem)
        return lambda row: [{"Step": row.get("Step"), "run": of, tag: row.get("Value")}]
    metric, value = (request.column(name, (name,), header, str(file)) for name in ("metric", "value"))
    if metric and value:
        return lambda row: [
            {**{k: v for k, v in row.items() if k not in (metric, value)}, str(row.get(metric)): row.get(value)}
        ]
    charts = [(name, *name.rsplit(" - ", 1)) for name in header if " - " in name and not name.endswith(_WANDB_BOUNDS)]
    if charts:
        return lambda row: [
            {step: row.get(step), "run": run, metric: row.get(name)}
            for name, run, metric in charts
            if row.get(name) is not None  # a chart has a row for every step that any of its runs logged
        ]
    return None


def _step_column(header: list[str], file: Path, request: Request) -> str:
    """The column of steps. Raises UsageError where the table has none."""
    step = request.column("step", STEP_NAMES, header, str(file))
    if step is None:
        has = one_line(", ".join(header), 500)
        raise UsageError(f"{file}: no step column ({', '.join(STEP_NAMES)}); it has {has}: --map step=COLUMN")
    return step


FORMAT = Format(
    "csv",
    "CSV, JSON or parquet table of curves (W&B, TensorBoard, hand-made), or one row per completion",
    _files,
    _read,
    any_table=True,
)
