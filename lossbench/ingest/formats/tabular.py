"""CSV and JSON exports: curves per mode and seed (W&B, TensorBoard, hand-made), wide or long, or one row per
completion.

Understood shapes: columns mode, seed, step and one per metric (wide); columns metric and value instead (long); W&B's
chart export, `Step` and `<run> - <metric>` columns; TensorBoard's scalar export, `Wall time, Step, Value` in a file
named `run-<run>-tag-<metric>.csv` (or its JSON, `[[wall time, step, value], ...]`). A run named `<mode>-s<seed>`
needs no columns mode and seed. A table with a column of completions or lengths that has several rows per step holds
completions, not curves.

Completions are never in memory as a whole, those of a .json file apart. A file whose first rows show completions is
read once; any other once for its header and damaged lines, once for whose rows it holds, and once more for curves and
for completions. Curves are small.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.ingest.base import STEP_FIELDS, Block, Damage, Format, IngestedRun, Request, metric, whole
from lossbench.ingest.formats.verl import STEP_KEYS as VERL_STEP_KEYS
from lossbench.ingest.table import Key, Table, look_into
from lossbench.ingest.table_completions import ROW_NAMES, blocks_by_run, blocks_of, completions_in
from lossbench.ingest.table_rows import TENSORBOARD_NAME, Row, raw_rows
from lossbench.ingest.trainer_logs import STEP_KEYS

SUFFIXES = (".csv", ".json", ".jsonl")


def found(path: Path) -> str | None:
    """Whether `path` is a table, or a folder whose own files are tables."""
    if path.is_file():
        return path.name if path.suffix in SUFFIXES else None
    tables = _tables(path)
    return tables[0].name if tables else None


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    tables = [file for file in path.iterdir() if file.suffix == ".csv" or _tensorboard_json(file)]
    return sorted(file for file in tables if file.is_file())


def _tensorboard_json(file: Path) -> bool:
    return file.suffix == ".json" and TENSORBOARD_NAME.fullmatch(file.stem) is not None


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """One run per mode, seed and run name that the tables at `path` tell apart."""
    runs = _Runs(path, request)
    with TemporaryDirectory(prefix="tables-", dir=request.scratch) as scratch:
        for file in _tables(path):
            _read_table(file, runs, request, Path(scratch))
        yield from runs.by_key.values()


def _read_table(file: Path, runs: "_Runs", request: Request, scratch: Path) -> None:
    damage = request.damage.part()
    run_of = partial(runs.of, file=file)
    if (table := completions_in(file, request)) is not None and table.only is not None:
        runs.add(file, {table.only: blocks_of(table, run_of(table.only), request)})
    elif table is not None:
        runs.add(file, blocks_by_run(table, run_of, damage, request, scratch), damage)
    elif (table := look_into(file, raw_rows(file, damage), request)) is not None:
        kinds = _kinds(table, request, damage)
        for key in kinds:
            run_of(key).damage.share(damage)
        curves = {key: run_of(key) for key, completions in kinds.items() if not completions}
        if curves:
            _add_curves(table, curves, request)
        if completions := kinds.keys() - curves.keys():
            runs.add(file, blocks_by_run(table, run_of, Damage(), request, scratch, completions))
    else:
        damage.add(str(file), "holds no row")


class _Runs:
    """The runs found so far."""

    def __init__(self, source: Path, request: Request) -> None:
        self.by_key: dict[Key, IngestedRun] = {}
        self._source, self._request = source, request

    def of(self, key: Key, file: Path) -> IngestedRun:
        """The run that `key` in `file` names."""
        if key not in self.by_key:
            name = one_line(key.run or (file.stem if key.mode is None else f"{key.mode}-s{key.seed}"))
            damage = self._request.damage.part()
            self.by_key[key] = IngestedRun(self._source, name, mode=key.mode, seed=key.seed, damage=damage)
        return self.by_key[key]

    def add(self, file: Path, blocks: Mapping[Key, Iterator[Block]], damage: Damage | None = None) -> None:
        """Add blocks of completions behind those that the runs have; damaged lines of a file damage each of its
        runs."""
        for key, more in blocks.items():
            run = self.of(key, file)
            run.blocks = chain(run.blocks, more)
            run.damage.share(damage or Damage())


def _kinds(table: Table, request: Request, nameless: Damage) -> dict[Key, bool]:
    """The runs of a table, and whether it holds completions of them: texts, or lengths with several rows a step.

    Rows that name no run are counted in `nameless`.
    """
    texts = request.column("completion", ROW_NAMES["completion"], table.header, str(table.file))
    length = request.column("length", ROW_NAMES["length"], table.header, str(table.file))
    kinds: dict[Key, bool] = {}
    steps: dict[Key, set[Any]] = {}
    for _, row, key in table.rows(Damage(), nameless):
        if kinds.setdefault(key, texts is not None) or length is None or row.get(length) is None:
            continue
        step, before = str(row.get(table.step)), steps.setdefault(key, set())
        kinds[key] = step in before
        before.add(step)
    return kinds


def _add_curves(table: Table, runs: dict[Key, IngestedRun], request: Request) -> None:
    """Add the table's metrics to the `logs` of each of the runs."""
    columns = _metric_columns(table.header, request, str(table.file))
    by_step = {key: {row["step"]: row for row in run.logs} for key, run in runs.items()}
    for line, row, key in table.rows(Damage(), Damage()):
        if key not in runs:
            continue
        values = {ours: value for ours, names in columns.items() if (value := _first(ours, names, row)) is not None}
        at = whole(row.get(table.step))
        if at is not None and values:
            by_step[key].setdefault(at, {"step": at}).update(values)
        elif values:  # a row that W&B logged of something else has neither
            runs[key].damage.add(f"{table.file}, line {line}", f"step {row.get(table.step)!r} is no number")
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
        known = [name for name in dict.fromkeys([*usual, asked]) if name in header]
        mapped = request.column(asked, (), header, place)
        if mapped or known:
            columns[ours] = [mapped] if mapped else known
    if not columns:
        has = one_line(", ".join(header), 500)
        raise UsageError(f"{place}: no column that lossbench knows; it has {has}: --map reward_mean=COLUMN, ...")
    return columns


FORMAT = Format("CSV or JSON export of curves (W&B, TensorBoard, hand-made), or one row per completion", found, read)
