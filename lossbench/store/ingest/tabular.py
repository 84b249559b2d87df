"""CSV and JSON exports: curves per mode and seed (W&B, TensorBoard, hand-made), wide or long, or one row per
completion.

Understood shapes: columns mode, seed, step and one per metric (wide); columns metric and value instead (long); W&B's
chart export, `Step` and `<run> - <metric>` columns; TensorBoard's scalar export, `Wall time, Step, Value` in a file
named `run-<run>-tag-<metric>.csv` (or its JSON, `[[wall time, step, value], ...]`). A run named `<mode>-s<seed>`
needs no columns mode and seed. A table with a column of completions or lengths that has several rows per step holds
completions, not curves.

Completions are never in memory as a whole. A file whose first rows show completions of one run is read once, as its
blocks are taken; any other once for its header and damaged lines, once for whose rows it holds, and once more for the
completions of each run. Curves are small.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.errors import UsageError, one_line
from lossbench.store.ingest.base import (
    ROW_FIELDS,
    STEP_FIELDS,
    Block,
    Damage,
    Format,
    IngestedRun,
    Request,
    metric,
    mode_and_seed,
    whole,
)
from lossbench.store.ingest.blocks import block
from lossbench.store.ingest.table_rows import STEP_NAMES, TENSORBOARD_NAME, Numbered, Row, raw_rows, step_column, tidier
from lossbench.store.ingest.trainer_logs import STEP_KEYS
from lossbench.store.ingest.verl import STEP_KEYS as VERL_STEP_KEYS

SUFFIXES = (".csv", ".json", ".jsonl")
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
_AXES = ("mode", "seed", "run")
BATCH_BYTES = 1 << 20  # of rows in memory at once, about
_ROW_BYTES = 200  # of a row beside its text, about
_FIRST_ROWS = 200  # that say whether a file holds completions of one run


class Key(NamedTuple):
    """Whose row it is, as far as the table says."""

    mode: str | None
    seed: int | None
    run: str | None


@dataclass(frozen=True)
class Table:
    """A file that was looked into: its columns, and what says whose row it is. `only` where all rows are one run's."""

    file: Path
    header: list[str]
    step: str
    tidied: Callable[[Row], list[Row]]
    key: Callable[[Row], Key]
    only: Key | None

    def rows(self, damage: Damage) -> Iterator[Numbered]:
        """Its rows in wide form."""
        return ((number, row) for number, raw in raw_rows(self.file, damage) for row in self.tidied(raw))


def found(path: Path) -> str | None:
    """Whether `path` is a table, or a folder whose own files are tables."""
    if path.is_file():
        return path.name if path.suffix in SUFFIXES else None
    tables = _tables(path)
    return tables[0].name if tables else None


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix == ".csv" or _tensorboard_json(file))


def _tensorboard_json(file: Path) -> bool:
    return file.suffix == ".json" and TENSORBOARD_NAME.fullmatch(file.stem) is not None


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """One run per mode, seed and run name that the tables at `path` tell apart."""
    runs: dict[Key, IngestedRun] = {}
    for file in _tables(path):
        if (one := _completions_of_one_run(file, request)) is not None:
            table, key = one
            run = _run_of(key, runs, file, path, request)
            run.blocks = chain(run.blocks, _blocks(table, key, run, request, run.damage))
            continue
        damage = request.damage.part()
        table = _table(file, raw_rows(file, damage), request)
        if table is None:
            damage.add(str(file), "holds no row")
            continue
        kinds = _kinds(table, request)
        for key in kinds:
            _run_of(key, runs, file, path, request).damage.share(damage)
        curves = {key: runs[key] for key, completions in kinds.items() if not completions}
        if curves:
            _add_curves(table, curves, request)
        for key in kinds.keys() - curves.keys():
            blocks = _blocks(table, key, runs[key], request, Damage())  # its lines' damage is counted already
            runs[key].blocks = chain(runs[key].blocks, blocks)
    yield from runs.values()


def _run_of(key: Key, runs: dict[Key, IngestedRun], file: Path, source: Path, request: Request) -> IngestedRun:
    if key not in runs:
        name = one_line(key.run or (file.stem if key.mode is None else f"{key.mode}-s{key.seed}"))
        runs[key] = IngestedRun(source, name, mode=key.mode, seed=key.seed, damage=request.damage.part())
    return runs[key]


def _completions_of_one_run(file: Path, request: Request) -> tuple[Table, Key] | None:
    """The table in a file and its run, where its first rows show that it holds completions of one run; else None."""
    first = list(islice(raw_rows(file, Damage()), _FIRST_ROWS))
    header = {name for _, raw in first for name in raw}
    text = request.columns.get("completion")
    is_known = text in header if text else any(name in header for name in _ROW_NAMES["completion"])
    if not is_known or not header.issuperset(request.columns.values()) or not header.intersection(STEP_NAMES):
        return None
    table = _table(file, first, request)
    return (table, table.only) if table is not None and table.only is not None else None


def _table(file: Path, rows: Iterable[Numbered], request: Request) -> Table | None:
    """The table in a file by those of its rows that are given, None where there is none."""
    tidied: Callable[[Row], list[Row]] | None = None
    header: dict[str, None] = {}
    for _, raw in rows:
        tidied = tidied or tidier(file, list(raw), request)
        for row in tidied(raw):
            header.update(dict.fromkeys(row))
    if tidied is None:
        return None
    columns = list(header)
    key, only = _key_of(file, columns, request)
    return Table(file, columns, step_column(columns, file, request), tidied, key, only)


def _key_of(file: Path, header: list[str], request: Request) -> tuple[Callable[[Row], Key], Key | None]:
    """Whose row it is: by its columns, else by the run's name in it, else by the file's name; and whose all are."""
    mode, seed, run = (request.column(name, (name,), header, str(file)) for name in _AXES)
    of_file = mode_and_seed(file.stem)

    def key(row: Row) -> Key:
        name = str(row[run]) if run and row.get(run) is not None else None
        named = mode_and_seed(name) if name else of_file
        own_mode = row.get(mode) if mode else named[0] if named else None
        own_seed = whole(row.get(seed)) if seed else named[1] if named else None
        return Key(None if own_mode is None else str(own_mode), own_seed, name)

    return key, None if mode or seed or run else key({})


def _kinds(table: Table, request: Request) -> dict[Key, bool]:
    """The runs of a table, and whether it holds completions of them: texts, or lengths with several rows a step."""
    texts = request.column("completion", _ROW_NAMES["completion"], table.header, str(table.file))
    length = request.column("length", _ROW_NAMES["length"], table.header, str(table.file))
    kinds: dict[Key, bool] = {}
    steps: dict[Key, set[Any]] = {}
    for _, row in table.rows(Damage()):
        key = table.key(row)
        if kinds.setdefault(key, texts is not None) or length is None or row.get(length) is None:
            continue
        step, before = str(row.get(table.step)), steps.setdefault(key, set())
        kinds[key] = step in before
        before.add(step)
    return kinds


def _blocks(table: Table, key: Key, run: IngestedRun, request: Request, damage: Damage) -> Iterator[Block]:
    """The completions of one run; damaged lines are counted in `damage`, rows without a step in the run's."""
    place = f"{table.file} ({run.name})"
    header = dict.fromkeys(table.header)
    own = ((line, row) for line, row in table.rows(damage) if table.only is not None or table.key(row) == key)
    for lines, rows in _batches(own):
        for row in rows:
            if not row.keys() <= header.keys():  # a column may begin late
                header.update(dict.fromkeys(row))
        if table.only is not None and (late := [name for name in _AXES if name in header]):
            raise UsageError(f"{place}: column {late[0]} begins after row {_FIRST_ROWS}: give every row one, or none")
        fields = {
            ours: [row.get(column) for row in rows]
            for ours in ROW_FIELDS
            if ours != "step" and (column := request.column(ours, _ROW_NAMES.get(ours, ()), header, place))
        }
        steps = [row.get(table.step) for row in rows]
        yield "rollouts", block({**fields, "step": steps}, place, run.damage, lines)


def _batches(rows: Iterable[Numbered]) -> Iterator[tuple[list[int], list[Row]]]:
    """Line numbers and rows, about a megabyte at a time."""
    lines: list[int] = []
    batch: list[Row] = []
    waiting = 0
    for line, row in rows:
        lines.append(line)
        batch.append(row)
        waiting += _ROW_BYTES
        for value in row.values():
            if type(value) is str:
                waiting += len(value)
        if waiting >= BATCH_BYTES:
            yield lines, batch
            lines, batch, waiting = [], [], 0
    if batch:
        yield lines, batch


def _add_curves(table: Table, runs: dict[Key, IngestedRun], request: Request) -> None:
    """Add the table's metrics to the `logs` of each of the runs."""
    columns = _metric_columns(table.header, request, str(table.file))
    by_step = {key: {row["step"]: row for row in run.logs} for key, run in runs.items()}
    for line, row in table.rows(Damage()):
        key = table.key(row)
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
