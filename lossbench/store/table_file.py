"""One table in one parquet file that is written piece by piece, so that memory does not grow with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lossbench.errors import UsageError, one_line
from lossbench.store.schema import schema_for
from lossbench.store.write import as_arrow, replacing

_FACTS = b"facts"


class TableFile:
    """Context manager: `append` adds rows; the file appears under its name when the block ends without an exception.

    `facts` (plain data) goes into the file's metadata, for `read_facts`.
    """

    def __init__(self, path: Path, table: str, facts: Mapping[str, Any]) -> None:
        self.path, self._table = path, table
        schema = schema_for(table)
        self._schema = schema.with_metadata({**(schema.metadata or {}), _FACTS: json.dumps(facts).encode()})

    def __enter__(self) -> "TableFile":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._replacing = replacing(self.path)
        self._writer = pq.ParquetWriter(self._replacing.__enter__(), self._schema, compression="zstd")
        return self

    def append(self, rows: Any) -> None:
        """Write `rows` (records, columns or an arrow table) as one row group."""
        self._writer.write_table(as_arrow(self._table, rows).cast(self._schema))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._replacing.__exit__(kind, error, trace)


def read_table(path: Path, table: str) -> pa.Table:
    """The rows of a file of `table`. Raises UsageError where it is missing, damaged or of another kind."""
    try:
        return as_arrow(table, pq.read_table(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UsageError(f"{path}: not a '{table}' file ({one_line(error)})") from None


def read_facts(path: Path) -> dict[str, Any]:
    """Facts that `TableFile` stored about the file; empty if none."""
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata.get(_FACTS, b"{}"))
