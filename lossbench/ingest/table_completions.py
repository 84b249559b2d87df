"""A table of completions, read once whatever number of runs it holds; only a .json file is in memory as a whole."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lossbench.errors import UsageError
from lossbench.ingest.base import ROW_FIELDS, Block, Damage, IngestedRun, Request
from lossbench.ingest.blocks import block
from lossbench.ingest.table import Key, Table, axes_in, look_into
from lossbench.ingest.table_rows import STEP_NAMES, Row, raw_rows

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
BATCH_BYTES = 4 << 20  # of rows in memory at once, about
_ROW_BYTES = 200  # of a row beside its text, about
_FIRST_ROWS = 200  # that say whether a file holds completions, and of which columns whose they are
_JOINED_ROWS = 2000

RunOf = Callable[[Key], IngestedRun]


def completions_in(file: Path, request: Request) -> Table | None:
    """The table in a file, where its first rows show that it holds completions; else None."""
    first = list(islice(raw_rows(file, Damage()), _FIRST_ROWS))
    header = {name for _, raw in first for name in raw}
    text = request.columns.get("completion")
    is_known = text in header if text else any(name in header for name in ROW_NAMES["completion"])
    if not is_known or not header.issuperset(request.columns.values()):
        return None
    if "step" not in request.columns and not header.intersection(STEP_NAMES):
        return None
    return look_into(file, first, request)


def blocks_of(table: Table, run: IngestedRun, request: Request) -> Iterator[Block]:
    """The completions of a table whose rows are all those of `run`, read as they are asked for."""
    for _, part in _parts(table, lambda key: run, run.damage, request):
        yield "rollouts", part


def blocks_by_run(
    table: Table,
    run_of: RunOf,
    damage: Damage,
    request: Request,
    scratch: Path,
    wanted: Collection[Key] | None = None,
) -> dict[Key, Iterator[Block]]:
    """The completions of each run in a table, or of the runs that are wanted.

    The table is read now; what it holds waits in the folder `scratch`. Its damaged lines are counted in `damage`.
    """
    waiting = _Waiting(scratch / table.file.name)
    for key, part in _parts(table, run_of, damage, request, wanted):
        waiting.add(key, part)
    return {key: waiting.blocks(key) for key in waiting.keys}


def _parts(
    table: Table, run_of: RunOf, damage: Damage, request: Request, wanted: Collection[Key] | None = None
) -> Iterator[tuple[Key, pa.Table]]:
    """The completions of one run after the other, some megabytes at a time, under the names of `ROW_FIELDS`.

    Damaged lines are counted in `damage`, rows without a step in their run's.
    """
    axes = axes_in(table.header, table.file, request)
    header = dict.fromkeys(table.header)
    for batch in _batches(table, damage, wanted):
        for _, rows in batch.values():
            for row in rows:
                if not row.keys() <= header.keys():  # a column may begin late
                    header.update(dict.fromkeys(row))
        for before, now in zip(axes, axes_in(header, table.file, request), strict=True):
            if before != now:
                raise UsageError(
                    f"{table.file}: column {now} begins after row {_FIRST_ROWS}: give every row one, or none"
                )
        for key, (lines, rows) in batch.items():
            run = run_of(key)
            place = f"{table.file} ({run.name})"
            columns = {ours: _columns(ours, header, place, request) for ours in ROW_FIELDS if ours != "step"}
            columns["step"] = [table.step]
            fields = {ours: _values(names, rows) for ours, names in columns.items() if names}
            yield key, block(fields, place, run.damage, lines)


def _columns(ours: str, header: Iterable[str], place: str, request: Request) -> list[str]:
    """The columns that hold field `ours`, the mapped one or every usual one, best first."""
    mapped = request.column(ours, (), header, place)
    return [mapped] if mapped else [name for name in ROW_NAMES.get(ours, ()) if name in header]


def _values(names: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    """Each row's value, from the first of the columns that has one."""
    first, *others = names
    values = [row.get(first) for row in rows]
    for name in others:
        values = [row.get(name) if value is None else value for value, row in zip(values, rows, strict=True)]
    return values


def _batches(
    table: Table, damage: Damage, wanted: Collection[Key] | None
) -> Iterator[dict[Key, tuple[list[int], list[Row]]]]:
    """Line numbers and rows of each run, some megabytes at a time."""
    batch: dict[Key, tuple[list[int], list[Row]]] = defaultdict(lambda: ([], []))
    waiting = 0
    for line, row, key in table.rows(damage, damage):
        if wanted is not None and key not in wanted:
            continue
        lines, rows = batch[key]
        lines.append(line)
        rows.append(row)
        waiting += _ROW_BYTES
        for value in row.values():
            if type(value) is str:
                waiting += len(value)
        if waiting >= BATCH_BYTES:
            yield batch
            batch.clear()
            waiting = 0
    if batch:
        yield batch


class _Waiting:
    """Completions that wait on disk, a file for each run, until that run is read.

    A run whose rows stand between others' rows comes in small parts, and small blocks are dear: they are joined.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.keys: dict[Key, Path] = {}

    def add(self, key: Key, part: pa.Table) -> None:
        path = self.keys.setdefault(key, self._folder / f"{len(self.keys)}.arrows")
        # A stream for each part, since a column may begin late, or be of numbers after it was of flags.
        with path.open("ab") as file, pa.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part)

    def blocks(self, key: Key) -> Iterator[Block]:
        parts: list[pa.Table] = []
        rows = size = 0
        for part in self._stored(key):
            if parts and (part.schema != parts[0].schema or rows >= _JOINED_ROWS or size >= BATCH_BYTES):
                yield "rollouts", pa.concat_tables(parts)
                parts, rows, size = [], 0, 0
            parts.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
        if parts:
            yield "rollouts", pa.concat_tables(parts)
        self.keys[key].unlink()

    def _stored(self, key: Key) -> Iterator[pa.Table]:
        path = self.keys[key]
        size = path.stat().st_size
        with path.open("rb") as file:
            while file.tell() < size:
                with pa.ipc.open_stream(file) as stream:
                    yield stream.read_all()
