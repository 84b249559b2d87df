"""Parquet files that are written while the next rows are read: to compress takes about as long as to read."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_THREADS = 3
_FINISHING = 2  # files at once


class Writers:
    """Threads that write files. Left without an error, all files are whole.

    Work is taken in order and waits only for earlier work, so some thread can always go on.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="parquet")
        self._closing: list[Future[None]] = []

    def __enter__(self) -> "Writers":
        return self

    def open(self, path: Path, schema: pa.Schema) -> "BackgroundWriter":
        """A new file for tables of `schema`, one of the store's."""
        repetitive = [name for name in schema.names if name != "completion"]  # no two completions are alike
        options: dict[str, Any] = {"use_dictionary": repetitive, "write_statistics": repetitive}
        file = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, **options)
        return BackgroundWriter(file, self._threads, self._closing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the files, and raise what went wrong with one; where something else did, drop them."""
        try:
            if error is None:
                for closed in self._closing:
                    closed.result()
        finally:
            self._threads.shutdown(cancel_futures=True)


class BackgroundWriter:
    """One file. An error of a write is raised by a later call, or when the writers are left."""

    def __init__(self, file: pq.ParquetWriter, threads: ThreadPoolExecutor, closing: list[Future[None]]) -> None:
        self._file, self._threads, self._closing = file, threads, closing
        self._before: Future[None] | None = None
        self._last: Future[None] | None = None

    def write(self, table: pa.Table) -> None:
        """Begin to write `table`; waits where another is waiting already."""
        if self._before is not None:
            self._before.result()
        self._before, self._last = self._last, self._threads.submit(self._write, table, self._last)

    def close(self) -> None:
        """Let the file be finished; waits only where enough others are being finished."""
        self._closing.append(self._threads.submit(self._finish, self._last))
        while len(self._closing) > _FINISHING:
            self._closing.pop(0).result()

    def _write(self, table: pa.Table, before: Future[None] | None) -> None:
        if before is not None:
            before.result()
        self._file.write_table(table.unify_dictionaries())

    def _finish(self, last: Future[None] | None) -> None:
        if last is not None:
            last.result()
        self._file.close()
