"""CSV, JSON and parquet tables: curves per mode and seed (W&B, TensorBoard, hand-made), wide or long, or one row per
completion.

Understood shapes: columns mode, seed, step and one per metric (wide); columns metric and value instead (long); W&B's
chart export, `Step` and `<run> - <metric>` columns; TensorBoard's scalar export, `Wall time, Step, Value` in a file
named `run-<run>-tag-<metric>.csv` (or its JSON, `[[wall time, step, value], ...]`). A run named `<mode>-s<seed>`
needs no columns mode and seed. A table with a column of texts, or of whole lengths that has several rows per step,
holds completions, not curves.

Completions are never in memory as a whole, those of a .json file apart. Curves are small.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        known = path.suffix in SUFFIXES and (path.suffix not in (".log", ".txt") or is_lines(path))
        return path.name if known else None
    tables = _tables(path)
    return tables[0].name if tables else None


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and found(file) and _is_table(file))


def _is_table(file: Path) -> bool:
    """Whether a file among others, such as settings and notes, is a table with steps."""
    if file.suffix == ".csv" or _TENSORBOARD_NAME.fullmatch(file.stem):
        return True
    try:
        return bool(first_fields(file).keys() & {*STEP_NAMES})
    except UsageError:
        return False


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
            own, mode, _ = naming(self.file, self.request.top)
            name = one_line(key.run or (own if key.mode in (None, mode) else f"{key.mode}-s{key.seed}"))
            damage = self.request.damage.part()
            self.runs[key] = IngestedRun(self.source, name, mode=key.mode, seed=key.seed, damage=damage)
        return self.runs[key]

    def _stage(self, header: list[str], damage: Damage, wanted: Iterable[Key] | None = None) -> list[IngestedRun]:
        """Stage the rows of the table; the runs that they are of. Rows that name no run are counted in `damage`."""
        staging, place = self.request.staging, str(self.file)
        columns = {
            # A usual column may begin late.
            ours: self.request.every_column(ours, usual, [*header, *usual], place)
            for ours in ROW_FIELDS
            for usual in [ROW_NAMES.get(ours, ())]
        }
        columns["step"] = [_step_column(header, self.file, self.request)]
        axes = self._axes(header)
        staging.add_documents(documents(self.file, damage, staging.con), columns, self.file, axes)
        found: dict[Key, list[str]] = {}
        for raw in staging.keys(self.file):
            values = dict(zip(axes, json.loads(raw), strict=True))
            for name in axes:
                if values[name] is not None and name not in header:
                    late = f"column {name} begins after row {FIRST_ROWS}: give every row one, or none"
                    raise UsageError(f"{self.file}: {late}")
            key = self._key(values, axes, header)
            if key is None:
                staging.refuse(raw, self.file, "its seed is no number", damage)
            elif wanted is None or key in wanted:
                found.setdefault(key, []).append(raw)
        for key, raws in found.items():
            run = self._run(key)
            run.keys += raws
            run.read |= {
                ours: known[0] for ours, names in columns.items() if (known := [n for n in names if n in header])
            }
            run.seen.update(dict.fromkeys(header))
        return [self._run(key) for key in found]

    def _axes(self, header: list[str]) -> list[str]:
        usual = {"mode": ("mode", "algo", "algorithm", "loss_type"), "seed": ("seed",), "run": ("run", "run_name")}
        return [self.request.column(name, usual[name], header, str(self.file)) or name for name in _AXES]

    def _read_curves(self, damage: Damage) -> None:
        header, tidied = _header(self.file, damage, self.request)
        if not header:
            damage.add(str(self.file), "holds no row")
            return
        step = _step_column(header, self.file, self.request)
        axes = self._axes(header)

        def keyed(nameless: Damage) -> Iterator[tuple[int, Row, Key]]:
            for line, raw in rows(self.file, Damage()):
                for row in tidied(raw):
                    if (key := self._key(row, axes, header)) is not None:
                        yield line, row, key
                    else:
                        nameless.add(f"{self.file}, line {line}", "its seed is no number")

        kinds = self._kinds(keyed(damage), header, step)
        for key in kinds:
            self._run(key).damage.share(damage)
        curves = {key: self._run(key) for key, completions in kinds.items() if not completions}
        if curves:
            self._add_curves(keyed(Damage()), curves, header, step)
        if completions := kinds.keys() - curves.keys():
            self._stage(header, Damage(), completions)

    def _kinds(self, keyed: Iterable[tuple[int, Row, Key]], header: list[str], step: str) -> dict[Key, bool]:
        """The runs of a table, and whether it holds completions of them: texts, or several whole lengths a step."""
        texts = self._texts(header)
        length = self.request.column("length", ROW_NAMES["length"], header, str(self.file))
        kinds: dict[Key, bool] = {}
        steps: dict[Key, set[Any]] = {}
        means: set[Key] = set()
        for _, row, key in keyed:
            if kinds.setdefault(key, bool(texts)) or length is None or row.get(length) is None:
                continue
            at, before = str(row.get(step)), steps.setdefault(key, set())
            if "length" not in self.request.columns and (number(row[length]) or 0.0) % 1:
                means.add(key)  # a mean of some micro-batch or rank
            kinds[key] = at in before
            before.add(at)
        return {key: completions and key not in means for key, completions in kinds.items()}

    def _key(self, row: Mapping[str, Any], axes: list[str], header: list[str]) -> Key | None:
        """Whose row it is: by its columns, else by the run's name in it, else by the name of the file or its folder;
        None where its seed is not a number."""
        mode, seed, run = (row.get(name) for name in axes)
        name = None if run is None else str(run)
        named = (mode_and_seed(name) or (None, None)) if name else naming(self.file, self.request.top)[1:]
        if axes[0] not in header:
            mode = named[0]
        own_seed = whole(seed)
        if axes[1] not in header:
            own_seed = named[1]
        elif own_seed is None and seed is not None:
            return None
        return Key(None if mode is None else str(mode), own_seed, name)

    def _add_curves(
        self, keyed: Iterable[tuple[int, Row, Key]], runs: Mapping[Key, IngestedRun], header: list[str], step: str
    ) -> None:
        """Add the table's metrics to the `logs` of each of the runs. Raises UsageError where it has none we know."""
        columns = metric_columns(header, self.request, str(self.file), strict=True)
        if not columns:
            has = one_line(", ".join(header), 500)
            meant = " ".join(look_alikes({}, header)[:4]) or "--map reward_mean=COLUMN, ..."
            raise UsageError(f"{self.file}: no column that lossbench knows; it has {has}: {meant}")
        metrics = [name for names in columns.values() for name in names]
        found: dict[Key, list[tuple[int, Row]]] = {key: [] for key in runs}
        for line, row, key in keyed:
            at = whole(row.get(step))
            if key in runs and at is not None:
                found[key].append((at, row))
            elif key in runs and any(number(row.get(name)) is not None for name in metrics):
                # A row that W&B logged of something else has neither.
                runs[key].damage.add(f"{self.file}, line {line}", f"step {row.get(step)!r} is no number")
        for key, run in runs.items():
            run.read["step"] = step
            add_logs(run, found[key], self.request, mean=True)


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
    """Function that makes wide rows of a file's row: W&B's charts, TensorBoard's scalars and long tables are not."""
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


FORMAT = Format(
    "CSV, JSON or parquet table of curves (W&B, TensorBoard, hand-made), or one row per completion",
    found,
    read,
    any_table=True,
)
