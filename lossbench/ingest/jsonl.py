"""Streaming reader of JSON lines: a few megabytes at a time, by Arrow where a block is clean, line by line where it
is not."""

import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as paj

from lossbench.ingest.base import Damage
from lossbench.ingest.blocks import storable

BLOCK_BYTES = 4 << 20
BUFFER_BYTES = 1 << 20  # a line may hold a whole table
UNREADABLE = (ValueError, RecursionError)
"""What `json.loads` raises: on no JSON, no UTF-8, an endless whole number, or brackets within brackets without end."""


def first_record(path: Path, most: int = 20) -> dict[str, Any] | None:
    """The first line of `path` that is a JSON object; None where its first `most` lines hold none."""
    with path.open("rb") as lines:
        for line in islice(lines, most):
            record = _record(line, Damage(), path)
            if record is not None:
                return record
    return None


def first_fields(path: Path, most: int = 20) -> dict[str, Any]:
    """The fields of the first `most` objects in `path`, each with its first value that is not null."""
    fields: dict[str, Any] = {}
    for _, record in islice(records(path, Damage()), most):
        for name, value in record.items():
            if fields.get(name) is None:
                fields[name] = value
    return fields


def records(path: Path, damage: Damage) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every good line; lines that are not JSON objects are counted in `damage`."""
    with path.open("rb", buffering=BUFFER_BYTES) as lines:
        for number, line in enumerate(lines, start=1):
            record = _record(line, damage, path, ", line ", number)
            if record is not None:
                yield number, record


def _record(line: bytes, damage: Damage, *place: object) -> dict[str, Any] | None:
    if not line or line.isspace():
        return None
    try:
        # Said here, for json would look at every line's first bytes for its encoding; a mark may open the file.
        record = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
    except UNREADABLE as error:
        damage.add("".join(map(str, place)), f"not valid JSON ({error})")
        return None
    if not isinstance(record, dict):
        damage.add("".join(map(str, place)), f"holds {type(record).__name__}, not an object")
        return None
    return record


def tables(path: Path, fields: Mapping[str, pa.DataType], damage: Damage) -> Iterator[pa.Table]:
    """The columns `fields` of a JSON-lines file, block by block; an absent column is null.

    Whole numbers are accepted as floats; a line with a value of another type than its field's is counted as damaged.
    """
    schema = pa.schema([pa.field(name, kind) for name, kind in fields.items()])
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    line = 1
    with path.open("rb") as stream:
        for block in _line_blocks(stream):
            ends = block.count(b"\n")
            table = _table_at_once(block, ends + (not block.endswith(b"\n")), options)
            if table is None:
                table = _table_by_line(block, f"{path}, line ", line, schema, damage)
            line += ends
            if table.num_rows:
                yield table


def _line_blocks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(BLOCK_BYTES):
        block = chunk + stream.readline()
        if not block.isspace():
            yield block


def _table_at_once(block: bytes, lines: int, options: paj.ParseOptions) -> pa.Table | None:
    """The block as Arrow reads it, None where its `lines` lines are not an object each.

    Arrow takes `null` for an object without fields, and as the first line it ends the process by a fault of its own.
    """
    if block.startswith(b"{") + block.count(b"\n{") != lines:
        return None
    try:
        table = paj.read_json(BytesIO(block), paj.ReadOptions(use_threads=False, block_size=len(block) + 1), options)
        table.validate(full=True)  # the reader takes text that is not UTF-8
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == lines else None


def _table_by_line(block: bytes, place: str, first_line: int, schema: pa.Schema, damage: Damage) -> pa.Table:
    rows = []
    for number, line in enumerate(block.split(b"\n"), start=first_line):
        record = _record(line, damage, place, number)
        if record is None:
            continue
        try:
            rows.append([_cast(record.get(field.name), field.type) for field in schema])
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            damage.add(f"{place}{number}", str(error))
    return columns_to_table(zip(*rows, strict=True) if rows else [() for _ in schema], schema)


def columns_to_table(columns: Iterable[Iterable[Any]], schema: pa.Schema) -> pa.Table:
    """Python columns, in the schema's order, as a table of `schema`."""
    arrays = [storable(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, dict)):
        raise TypeError(f"{type(value).__name__} where a number is expected")
    if pa.types.is_boolean(kind):
        if value not in (True, False):
            raise ValueError(f"{value!r} where true or false is expected")
        return bool(value)
    return int(float(value)) if pa.types.is_integer(kind) else float(value)
