"""A parquet file that is written while the next rows are read."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class BackgroundWriter:
    """Writes tables to one file in order, in a thread of its own: reading and compressing take about as long.

    One table at most is waiting to be written, so memory is that of two. An error of a write is raised by the next
    call.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Open `path` for tables of `schema`, one of the store's."""
        repetitive = [name for name in schema.names if name != "completion"]  # no two completions are alike
        options: dict[str, Any] = {"use_dictionary": repetitive, "write_statistics": repetitive}
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, **options)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parquet")
        self._last: Future[None] | None = None

    def write(self, table: pa.Table) -> None:
        """Begin to write `table`, once the one before is written."""
        self._settle()
        self._last = self._thread.submit(self._write, table)

    def close(self) -> None:
        """Wait for what is being written, and finish the file."""
        try:
            self._settle()
        finally:
            self._thread.shutdown()
            self._writer.close()

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table.unify_dictionaries())

    def _settle(self) -> None:
        if self._last is not None:
            self._last.result()
