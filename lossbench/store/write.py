"""Atomic writes of JSON and parquet, and the part files through which a run's tables grow.

A file appears under its own name only when it is whole: it is written to a temporary name beside it and renamed.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lossbench.errors import UsageError
from lossbench.store.schema import TABLES, schema_for

PARTS = "parts"
FACTS = b"facts"  # key in a file's metadata
_PART_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<step>\d+)(-rank(?P<rank>\d+))?\.parquet")
_TEMPORARY = re.compile(r"\.(.+\.\d+|[0-9a-f]{16})\.tmp")  # with the process number: of earlier versions


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path`, whole or not at all. NaN is refused: it is not JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def as_arrow(table: str, rows: Any) -> pa.Table:
    """`rows` (records, columns, an arrow table) in the schema of `table`: missing columns and NaN become nulls.

    Raises KeyError for a column that the schema does not have.
    """
    schema = schema_for(table)
    if isinstance(rows, pa.Table):
        columns, length = dict(zip(rows.column_names, rows.columns, strict=True)), rows.num_rows
    else:
        if not isinstance(rows, Mapping):
            rows = {name: [row.get(name) for row in rows] for name in dict.fromkeys(k for row in rows for k in row)}
        columns, length = dict(rows), len(next(iter(rows.values()), ()))
    if strangers := set(columns) - set(schema.names):
        raise KeyError(f"table '{table}' has no column {sorted(strangers)}; valid: {', '.join(schema.names)}")
    arrays = [_column(columns.get(field.name), field.type, length) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(values: Any, kind: pa.DataType, length: int) -> pa.Array | pa.ChunkedArray:
    if values is None:
        return pa.nulls(length, kind)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind, from_pandas=True)


def write_table(path: Path, table: str, rows: Any) -> None:
    """Write one parquet file of `table` (zstd), whole or not at all."""
    arrow = as_arrow(table, rows)
    with replacing(path) as temporary:
        pq.write_table(arrow, temporary, compression="zstd")


@contextmanager
def table_file(path: Path, table: str, facts: Mapping[str, Any]) -> Iterator[Callable[[Any], None]]:
    """A function that adds rows (records, columns or an arrow table) to a new file as one row group.

    The file appears under its name when the block ends without an exception. `facts` (plain data) goes into its
    metadata, for `read_facts`.
    """
    schema = schema_for(table)
    schema = schema.with_metadata({**(schema.metadata or {}), FACTS: json.dumps(facts).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        yield lambda rows: writer.write_table(as_arrow(table, rows).cast(schema))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` that takes its place when the block ends without an exception.

    Its name cannot be foreseen and must be new, so nothing is ever written through a link that lies there.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_links(folder: Path, *below: str) -> None:
    """Raise UsageError where one of the paths `below` a folder is, or leads through, a link: it could lead anywhere."""
    for name in below:
        path = folder
        for part in Path(name).parts:
            path /= part
            if path.is_symlink():
                raise UsageError(f"'{path}' is a link, and nothing is written or deleted through links: replace it")


class PartWriter:
    """Writer of a run's tables as `parts/<table>-<step>.parquet`; `join` makes one file a table of them, and
    `drop_parts` drops them. Processes that write the same table of a run are told apart by their rank."""

    def __init__(self, run_dir: Path, rank: int = 0) -> None:
        self.run_dir, self.rank = run_dir, rank
        self.parts = run_dir / PARTS
        self.parts.mkdir(parents=True, exist_ok=True)

    def append(self, table: str, step: int, rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]) -> None:
        """Write the rows of one step; writing a step again replaces it."""
        write_table(part_path(self.run_dir, table, step, self.rank), table, rows)

    def keep_up_to(self, step: int) -> None:
        """Drop this rank's parts of later steps, which a run that continues from `step` writes again, and whole tables.

        So too what a writer that was killed left under temporary names; other files stay.
        """
        self._drop(lambda part: int(part["rank"] or 0) == self.rank and int(part["step"]) > step)

    def clear(self) -> None:
        """Drop all parts and tables of an earlier attempt."""
        self._drop(lambda part: True)

    def _drop(self, is_late: Callable[[re.Match[str]], bool]) -> None:
        for path in [*self.run_dir.iterdir(), *self.parts.iterdir()]:
            part = _PART_NAME.fullmatch(path.name)
            joined = path.suffix == ".parquet" and path.stem in TABLES
            if joined or _TEMPORARY.fullmatch(path.name) or (part and is_late(part)):
                path.unlink()

    def join(self) -> dict[str, int]:
        """Write each table's parts as one `<table>.parquet` and return the tables' row counts; the parts stay.

        Until the run is recorded as completed it may have to continue from a checkpoint, which needs the parts.
        """
        rows: dict[str, int] = {}
        for table, paths in part_files(self.run_dir).items():
            joined = pa.concat_tables([pq.read_table(path) for path in paths]).unify_dictionaries()
            write_table(self.run_dir / f"{table}.parquet", table, joined)
            rows[table] = joined.num_rows
        return rows

    def drop_parts(self) -> None:
        """Remove the parts; the joined tables hold their rows."""
        for path in self.parts.iterdir():
            if _PART_NAME.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name):
                path.unlink()
        with suppress(OSError):  # files that are not lossbench's own stay
            self.parts.rmdir()


def part_path(run_dir: Path, table: str, step: int, rank: int = 0) -> Path:
    """The part file of one step and process of the run."""
    return run_dir / PARTS / f"{table}-{step:07d}{f'-rank{rank}' if rank else ''}.parquet"


def part_files(run_dir: Path) -> dict[str, list[Path]]:
    """The part files of each table, in step order."""
    found: dict[str, list[tuple[int, int, Path]]] = {}
    for path in (run_dir / PARTS).glob("*.parquet"):
        if match := _PART_NAME.fullmatch(path.name):
            found.setdefault(match["table"], []).append((int(match["step"]), int(match["rank"] or 0), path))
    return {table: [path for *_, path in sorted(paths)] for table, paths in found.items()}
