"""Turns blocks of another trainer's completions into the schema's tables, a few megabytes in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lossbench.errors import UsageError
from lossbench.ingest.background import BackgroundWriter, Writers
from lossbench.ingest.grouping import Grouping
from lossbench.ingest.step_sums import StepSums, floats
from lossbench.store.schema import schema_for
from lossbench.store.write import as_arrow

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Completion texts -> tokens of each, special tokens left out."""

TOKENS, CHARACTERS = "tokens", "characters"
_ROWS_PER_WRITE = 50_000
_BYTES_PER_WRITE = 4 << 20


@dataclass(frozen=True)
class Reading:
    """How completions are read.

    `correct_above` makes a numeric verdict above it correct, or a reward where there is no verdict; one that is true or
    false stands.
    """

    count_tokens: CountTokens | None = None
    correct_above: float | None = None
    keep_text: bool = True


class RolloutSink:
    """Writes one table (`rollouts` or `evals`) of one run and sums what its `steps` rows need.

    Lengths are in tokens where the log holds them or a tokenizer is given, else `length_chars` is filled instead: the
    two are never mixed. `unit` says which, None where the log has neither lengths nor text. `end_unknown` says whether
    a length was counted from text of which the log does not say whether an EOS followed.
    """

    def __init__(
        self,
        path: Path,
        constant: Mapping[str, Any],
        reading: Reading,
        writers: Writers,
        num_generations: int | None = None,
    ) -> None:
        """`path`: `<table>.parquet`; `constant`: the run's own columns (run_id, mode, ..., seed), equal in all rows."""
        self.path, self.table = path, path.stem
        self.rows = 0
        self.unit: str | None = None
        self.end_unknown = False
        self.sums = StepSums()
        self.generations: dict[int, int] = {}
        self._known: set[str] = set()
        self._constant, self._reading, self._writers = constant, reading, writers
        self._grouping = Grouping(num_generations)
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._writer: BackgroundWriter | None = None

    def add(self, block: pa.Table) -> None:
        """Take a block with columns of `ROW_FIELDS`, `step` among them. Raises UsageError where the length unit
        changes."""
        steps_N = np.asarray(block["step"].to_numpy(), dtype=np.int64)
        columns: dict[str, Any] = {"step": pa.array(steps_N), **self._grouping.columns(steps_N, block)}
        for name in ("reward", "advantage"):
            if name in block.column_names:
                columns[name] = _numbers(block[name])
        if "terminated" in block.column_names:
            columns["terminated"] = block["terminated"].cast(pa.bool_())
        columns |= self._correct(block) | self._lengths(block)
        self._known |= {name for name, values in columns.items() if values.null_count < block.num_rows}
        self.sums.add(steps_N, columns)
        if self._reading.keep_text:
            columns |= {name: block[name] for name in ("prompt", "completion") if name in block.column_names}
        if self.table == "evals":
            columns.pop("advantage", None)
        else:
            columns["generation"] = self._generation_column(steps_N)
        self._write(columns, block.num_rows)

    def close(self) -> None:
        """Write what is pending and finish the file, in the background; without rows there is no file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def nulls_only(self, column: str) -> bool:
        """Whether there are rows, and none of them has a value in `column`."""
        return self.rows > 0 and column not in self._known

    def _generation_column(self, steps_N: np.ndarray) -> pa.Array:
        steps, first, codes_N = np.unique(steps_N, return_index=True, return_inverse=True)
        for step in steps[np.argsort(first)].tolist():
            self.generations.setdefault(step, len(self.generations) + 1)
        return pa.array(np.asarray([self.generations[step] for step in steps.tolist()])[codes_N])

    def _correct(self, block: pa.Table) -> dict[str, Any]:
        """The verdict of each row; the reward's where `correct_above` is given and the row has none."""
        above, verdicts = self._reading.correct_above, []
        if "correct" in block.column_names:
            column = block["correct"]
            is_flag = pa.types.is_boolean(column.type)
            verdicts.append(column if is_flag else _above(column, 0.5 if above is None else above))
        if above is not None and "reward" in block.column_names:
            verdicts.append(_above(block["reward"], above))
        return {"correct": pc.call_function("coalesce", verdicts)} if verdicts else {}

    def _lengths(self, block: pa.Table) -> dict[str, Any]:
        if "length" in block.column_names:
            return self._in_unit(TOKENS, self._counts(block["length"]))
        if "completion" not in block.column_names:
            return {}
        texts = block["completion"]
        if self._reading.count_tokens is None:
            return self._in_unit(CHARACTERS, pc.call_function("utf8_length", [texts]).cast(pa.int64()))
        counts = np.asarray(self._reading.count_tokens([text or "" for text in texts.to_pylist()]), dtype=np.int64)
        tokens = pa.array(counts, mask=np.asarray(texts.is_null()))
        ended_N = floats(block["terminated"] if "terminated" in block.column_names else None, block.num_rows)
        self.end_unknown |= bool(np.isnan(ended_N).any())
        # The EOS counts, and decoded text does not show it.
        ended = pa.array(np.nan_to_num(ended_N).astype(np.int64))
        return self._in_unit(TOKENS, pc.call_function("add", [tokens, ended]))

    def _counts(self, column: Any) -> pa.Array:
        lengths_N = floats(column, len(column))
        known_N = lengths_N[~np.isnan(lengths_N)]
        wrong = known_N[~((known_N >= 0) & (known_N < 2**53) & (known_N == np.floor(known_N)))]
        if len(wrong):
            raise UsageError(
                f"{self.path.parent.name}: length {wrong[0]:g} is no number of tokens: name another column with "
                "--map length=COLUMN"
            )
        return pa.array(lengths_N, from_pandas=True).cast(pa.int64())

    def _in_unit(self, unit: str, lengths: Any) -> dict[str, Any]:
        if self.unit not in (None, unit):
            raise UsageError(
                f"{self.path.parent.name}: lengths in {self.unit}, but from row {self.rows + 1} of {self.table} on in "
                f"{unit}: give --tokenizer, or --map length=COLUMN for a column that every row has"
            )
        self.unit = unit
        return {"length_tokens" if unit == TOKENS else "length_chars": lengths}

    def _write(self, columns: Mapping[str, Any], rows: int) -> None:
        self.rows += rows
        table = pa.table(dict(columns))
        for name, value in self._constant.items():
            table = table.append_column(name, _repeated(value, rows))
        self._pending.append(as_arrow(self.table, table))
        # Counted as it comes: a log of many small tables has hundreds waiting, and their sizes are dear to ask for.
        self._pending_rows += rows
        self._pending_bytes += self._pending[-1].nbytes
        if self._pending_rows >= _ROWS_PER_WRITE or self._pending_bytes >= _BYTES_PER_WRITE:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._writer = self._writers.open(self.path, schema_for(self.table))
        self._writer.write(pa.concat_tables(self._pending))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _repeated(value: Any, rows: int) -> pa.Array:
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))
    return pa.array(np.full(rows, value, np.int64)) if value is not None else pa.nulls(rows, pa.int64())


def _above(column: Any, threshold: float) -> Any:
    """A nullable flag column: whether the number is above `threshold`; null where it is null or NaN."""
    return pc.call_function("greater", [_numbers(column), pa.scalar(threshold)])


def _numbers(column: Any) -> pa.Array:
    """A column as float64, null where it is null or NaN."""
    return pa.array(floats(column, len(column)), from_pandas=True)
