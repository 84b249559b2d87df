"""Completions of a log in DuckDB: typed row by row, numbered by group and step, summed per step.

Everything is text until here. A cell that is no number is null and named in `problems`; a row with a list where a
number belongs, or with no step, is left out. What memory cannot hold waits in files of the scratch folder.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from lossbench.ingest.fields import ROW_FIELDS, Damage, Reading
from lossbench.store.step_row import sampling_rows_sql

MEMORY_LIMIT = "400MB"
ROWS_AT_ONCE = 16_384
PENDING_BYTES, PENDING_TABLES = 8 << 20, 512
SPLITS = ("rollouts", "evals")

_STAGED = """
CREATE TABLE staged (
    seq BIGINT, run VARCHAR, split VARCHAR, file VARCHAR, line BIGINT, step BIGINT, prompt VARCHAR, completion VARCHAR,
    prompt_key UBIGINT, group_key UBIGINT, row_key UBIGINT, reward DOUBLE, correct BOOLEAN, advantage DOUBLE,
    length DOUBLE, tokens BIGINT, chars BIGINT, terminated BOOLEAN, problems VARCHAR[])
"""

# A whole number that no 64-bit integer holds is not silently rounded to a float.
_MACROS = r"""
CREATE MACRO real_of(text) AS CASE
    WHEN lower(text) IN ('true', 'false') THEN CAST(lower(text) = 'true' AS DOUBLE)
    WHEN isnan(TRY_CAST(text AS DOUBLE)) THEN NULL
    WHEN regexp_full_match(text, '\s*[-+]?\d{19,}\s*') AND TRY_CAST(text AS BIGINT) IS NULL THEN NULL
    ELSE TRY_CAST(text AS DOUBLE) END;
CREATE MACRO step_of(text) AS CASE
    WHEN abs(TRY_CAST(text AS DOUBLE)) <= 9007199254740992 THEN CAST(trunc(TRY_CAST(text AS DOUBLE)) AS BIGINT) END;
CREATE MACRO flag_of(text) AS CASE
    WHEN lower(trim(text)) IN ('true', 'yes') THEN true WHEN lower(trim(text)) IN ('false', 'no') THEN false END;
CREATE MACRO no_number(name, text) AS CASE
    WHEN trim(text) <> '' AND lower(text) <> 'nan' AND real_of(text) IS NULL THEN name || ' ''' || text || ''' is ' ||
        CASE WHEN regexp_full_match(text, '\s*[-+]?\d+\s*') THEN 'beyond 64 bits' ELSE 'no number' END END;
CREATE MACRO text_of(text) AS CASE
    WHEN text LIKE '[{%"content"%' AND json_valid(text)
    THEN array_to_string(json_extract_string(text, '$[*].content'), chr(10)) ELSE text END;
CREATE MACRO is_nested(text) AS coalesce(text[1] IN ('[', '{'), false);
"""

_NUMBERED = """
CREATE OR REPLACE TEMP TABLE numbered AS
WITH own AS (
    SELECT seq, step + $shift AS step, prompt_key, group_key FROM staged
    WHERE list_contains($keys, run) AND split = $split AND step IS NOT NULL),
places AS (
    SELECT seq, step, group_key, row_number() OVER (PARTITION BY step, group_key ORDER BY seq) - 1 AS place
    FROM own WHERE group_key IS NOT NULL),
groups AS (
    SELECT step, group_key, place // $samples AS draw,
        row_number() OVER (PARTITION BY step ORDER BY min(seq)) - 1 AS "group"
    FROM places GROUP BY step, group_key, place // $samples),
prompts AS (
    SELECT prompt_key, row_number() OVER (ORDER BY min(seq)) - 1 AS prompt_id
    FROM own WHERE prompt_key IS NOT NULL GROUP BY prompt_key),
generations AS (SELECT step, row_number() OVER (ORDER BY min(seq)) AS generation FROM own GROUP BY step)
SELECT row_number() OVER (ORDER BY own.seq) - 1 AS position, own.seq, own.step, generation, prompt_id, "group",
    place % $samples AS sample
FROM own JOIN generations USING (step) LEFT JOIN prompts USING (prompt_key) LEFT JOIN places USING (seq)
LEFT JOIN groups ON groups.step = own.step AND groups.group_key = own.group_key AND groups.draw = place // $samples
ORDER BY own.seq
"""

# Rows of each step that are there twice, one after the other, in the same order.
_TWICE = """
SELECT count(*) > 0 AND bool_and(len(keys) % 2 = 0 AND keys[:len(keys) // 2] = keys[len(keys) // 2 + 1:])
    AND count(DISTINCT keys) * sum(len(list_distinct(keys))) > 1
FROM (SELECT numbered.step, list(row_key ORDER BY seq) AS keys FROM numbered JOIN staged USING (seq) GROUP BY ALL)
"""

_FACTS = """
SELECT count(*) AS rows, count(length) > 0 AS measured, count(tokens) > 0 AS counted, count(chars) > 0 AS texts,
    count(correct) AS verdicts, coalesce(bool_or(tokens IS NOT NULL AND terminated IS NULL), false) AS end_unknown,
    arg_min(length, seq) FILTER (NOT (length >= 0 AND length < 9007199254740992 AND length = floor(length)))
        AS no_length
FROM staged JOIN numbered USING (seq)
"""

_ROWS = """
SELECT numbered.step, generation, prompt_id, "group", sample, LENGTHS, terminated, reward, correct, advantage, prompt,
    completion
FROM (SELECT * FROM numbered WHERE position >= $first AND position < $end) AS numbered
JOIN (SELECT * FROM staged WHERE seq >= (SELECT seq FROM numbered WHERE position = $first)
      AND seq <= (SELECT max(seq) FROM numbered WHERE position >= $first AND position < $end)) USING (seq)
ORDER BY position
"""


class Staging:
    """Completions of the runs of a log, until they are written. `con` is a DuckDB connection of its own."""

    def __init__(self, scratch: Path, reading: Reading) -> None:
        """`scratch`: folder for what does not fit into memory."""
        import duckdb

        spilled = str(scratch / "spilled")
        self.con = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": spilled, "threads": "2"})
        self.con.execute(f"SET enable_progress_bar_print = false; {_MACROS} {_STAGED}")  # stdout is for results
        self._next = 0  # number of the next row
        self._pending: list[pa.Table] = []  # added, and not yet staged
        self._pending_bytes = 0
        self._pending_for = ("", Path(), "")
        self._insert = _insert_sql(reading)
        if count_tokens := reading.count_tokens:

            def tokens_of(texts: pa.Array) -> pa.Array:
                return pa.array(count_tokens([text or "" for text in texts.to_pylist()]), pa.int64())

            self.con.create_function("tokens_of", tokens_of, ["VARCHAR"], "BIGINT", type="arrow")  # type: ignore[arg-type]

    def add(
        self, columns: Mapping[str, Sequence[Any]], lines: Sequence[int], run: str, file: Path, split: str = "rollouts"
    ) -> None:
        """Stage rows of Python values under the names of `ROW_FIELDS`; `lines` are their numbers in the file."""
        if self._pending_for != (run, file, split):
            self.flush()
        texts = {name: _texts(columns.get(name, [None] * len(lines))) for name in ROW_FIELDS}
        self._pending.append(pa.table({"line": pa.array(lines, pa.int64()), **texts}))
        self._pending_bytes += self._pending[-1].nbytes
        self._pending_for = (run, file, split)
        # Small insertions are dear, and a log may have a table for every step.
        if self._pending_bytes > PENDING_BYTES or len(self._pending) > PENDING_TABLES:
            self.flush()

    def flush(self) -> None:
        """Stage the tables that were added and wait for others."""
        if not self._pending:
            return
        table = pa.concat_tables(self._pending).combine_chunks()
        run, file, split = self._pending_for
        self._pending, self._pending_bytes = [], 0
        self.con.register("fields", table.append_column("place", pa.array(range(table.num_rows), pa.int64())))
        self._stage(f"SELECT *, {_quoted(run)} AS run FROM fields", file, split)
        self._next += table.num_rows

    def add_documents(
        self,
        tables: Iterable[pa.Table],
        columns: Mapping[str, Sequence[str]],
        file: Path,
        run: str | Sequence[str],
        split: str = "rollouts",
        changed: Mapping[str, str] = {},
    ) -> None:
        """Stage JSON objects: each field is the first of its columns that has a value.

        `run`: the rows' key, or the columns that make it. `changed` gives SQL that a field goes through (`{}`).
        """
        self.flush()
        axes = [] if isinstance(run, str) else run
        names = list(dict.fromkeys([*axes, *(name for usual in columns.values() for name in usual)]))
        cells = {name: f"cells[{i}]" for i, name in enumerate(names, start=1)}
        axis_list = f"to_json([{', '.join(cells[name] for name in axes)}])"
        changed = {"prompt": "text_of({})", "completion": "text_of({})", **changed}
        fields = {"run": f"CAST({axis_list} AS VARCHAR)" if axes else _quoted(str(run))}
        for ours in ROW_FIELDS:
            first = f"coalesce({', '.join([cells[name] for name in columns.get(ours, ())] + ['NULL'])})"
            fields[ours] = f"CAST({changed.get(ours, '{}').format(first)} AS VARCHAR)"
        placed = ", ".join(f'{sql} AS "{name}"' for name, sql in fields.items())
        pointers = ", ".join(_quoted(f"/{name.replace('~', '~0').replace('/', '~1')}") for name in names)
        found = f"SELECT line, json_extract_string(doc, [{pointers}]) AS cells FROM documents"
        last = 0
        for table in tables:
            self.con.register("documents", table)
            self._stage(f"SELECT {placed}, line, line AS place FROM ({found})", file, split)
            last = max(last, *table["line"].to_pylist()[-1:])
        self._next += last + 1

    def _stage(self, rows: str, file: Path, split: str) -> None:
        self.con.execute(self._insert.replace("ROWS", rows), {"seq": self._next, "split": split, "file": str(file)})

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, in which `$name` stands for one of the `parameters`."""
        return self.con.execute(sql, parameters).fetchall()

    def keys(self, file: Path) -> list[str]:
        """Keys of the runs in a file, in order of appearance."""
        sql = "SELECT run FROM staged WHERE file = $file GROUP BY run ORDER BY min(seq)"
        return [key for (key,) in self.rows(sql, file=str(file))]

    def several_a_step(self, keys: list[str], file: Path, whole: bool) -> bool:
        """Whether rows with a length are completions: several of one step, and (if asked for) of whole lengths."""
        sql = """SELECT count(*) > count(DISTINCT step) AND (NOT $whole OR bool_and(length = floor(length))) FROM staged
            WHERE list_contains($keys, run) AND file = $file AND length IS NOT NULL AND step IS NOT NULL"""
        return bool(self.rows(sql, keys=keys, file=str(file), whole=whole)[0][0])

    def refuse(self, key: str, file: Path, reason: str, damage: Damage) -> None:
        """Count the rows of a key in `damage`, as they are of no run."""
        sql = "SELECT line FROM staged WHERE run = $key AND file = $file ORDER BY seq"
        for (line,) in self.rows(sql, key=key, file=str(file)):
            damage.add(f"{file}, line {line}", reason)

    def problems(self, keys: list[str], name: str, damage: Damage) -> None:
        """Count in `damage` the rows and cells of a run that were left out."""
        sql = "SELECT file, line, unnest(problems) FROM staged WHERE list_contains($keys, run) ORDER BY seq"
        for file, line, reason in self.rows(sql, keys=keys):
            damage.add(f"{file} ({name}), line {line}", reason)

    def steps(self, keys: list[str]) -> set[int]:
        """Steps of a run's rollouts."""
        self.flush()
        sql = "SELECT DISTINCT step FROM staged WHERE list_contains($keys, run) AND split = 'rollouts'"
        return {step for (step,) in self.rows(sql, keys=keys) if step is not None}

    def number(self, keys: list[str], split: str, samples: int | None, shift: int) -> "Numbered":
        """The completions of one run and split, numbered in order of appearance, `shift` steps later than they say.

        A group is what the log names as one, else the rows of a step with the same prompt, `samples` of them at most.
        """
        self.flush()
        self.rows(_NUMBERED, keys=keys, split=split, samples=samples or 2**62, shift=shift)
        return Numbered(self)


class Numbered:
    """The completions that were numbered last. `facts`: counts, and which kinds of length the rows have."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.facts: dict[str, Any] = self._table(_FACTS).to_pylist()[0]
        self.in_tokens = bool(self.facts["measured"] or self.facts["counted"])
        # A decoded text does not show its EOS, which counts.
        length = "length" if self.facts["measured"] else "tokens + coalesce(CAST(terminated AS BIGINT), 0)"
        self._length = f"CAST({length} AS BIGINT) AS length_tokens"

    def _table(self, sql: str, **parameters: Any) -> pa.Table:
        return self._staging.con.sql(sql, params=parameters or None).to_arrow_table()

    def steps(self) -> list[dict[str, Any]]:
        """A row per step, in order, under the names of the `steps` table; None where not applicable."""
        rows = f"(SELECT numbered.*, reward, correct, terminated, {self._length} FROM numbered JOIN staged USING (seq))"
        self._staging.con.execute("SET threads = 1")  # sums of reals depend on their order
        steps = self._table(sampling_rows_sql(rows)).to_pylist()
        self._staging.con.execute("SET threads = 2")
        return steps

    def twice(self) -> bool:
        """Whether every row is there twice, as in a file that was appended to itself."""
        return bool(self._staging.rows(_TWICE)[0][0])

    def tables(self, constant: Mapping[str, Any]) -> Iterator[pa.Table]:
        """The rows, in order, in the columns of `rollouts`, some thousand at a time, and columns of one value."""
        same = ", ".join(f'${name} AS "{name}"' for name in constant)
        chars = f"CAST({'NULL' if self.in_tokens else 'chars'} AS BIGINT) AS length_chars"
        for first in range(0, self.facts["rows"], ROWS_AT_ONCE):
            sql = _ROWS.replace("LENGTHS", f"{self._length}, {chars}, {same}")
            yield self._table(sql, first=first, end=first + ROWS_AT_ONCE, **constant)


def _insert_sql(reading: Reading) -> str:
    """SQL that types the fields of ROWS. A text that shows its EOS ends there; padding may follow."""
    above, eos = reading.correct_above, reading.eos and _quoted(reading.eos)
    verdict_above = 0.5 if above is None else float(above)
    reward_above = "NULL" if above is None else f"real_of(reward) > {verdict_above}"
    cut = f"split_part(completion, {eos}, 1)" if eos else "completion"
    tokens = f"CASE WHEN completion IS NOT NULL THEN tokens_of({cut}) END" if reading.count_tokens else "NULL"
    ended = f"CASE WHEN contains(completion, {eos}) THEN true END" if eos else "NULL"
    return f"""
INSERT INTO staged
SELECT $seq + place, run, $split, $file, line,
    CASE WHEN nested IS NULL THEN step_of(step) END, {"prompt, completion" if reading.keep_text else "NULL, NULL"},
    CASE WHEN prompt IS NOT NULL THEN hash(prompt) END,
    CASE WHEN "group" IS NOT NULL THEN hash("group", 1) WHEN prompt IS NOT NULL THEN hash(prompt, 0) END,
    hash(prompt, completion, reward), real_of(reward),
    coalesce(flag_of(correct), real_of(correct) > {verdict_above}, {reward_above}),
    real_of(advantage), real_of(length), {tokens}, length(completion),
    coalesce(flag_of(terminated), real_of(terminated) <> 0, {ended}),
    CASE WHEN nested IS NOT NULL THEN [nested || ' is a list or an object where a number is expected']
         WHEN step_of(step) IS NULL THEN [coalesce('step ''' || step || ''' is no number', 'has no step')]
         ELSE nullif([x FOR x IN [no_number('reward', reward), no_number('advantage', advantage),
              no_number('length', length),
              CASE WHEN flag_of(correct) IS NULL THEN no_number('correct', correct) END] IF x IS NOT NULL], []) END
FROM (
    SELECT * REPLACE (CASE WHEN lower("group") <> 'nan' THEN "group" END AS "group"),
        CASE WHEN is_nested(reward) THEN 'reward' WHEN is_nested(advantage) THEN 'advantage'
             WHEN is_nested(length) THEN 'length' WHEN is_nested(correct) THEN 'correct' END AS nested
    FROM (ROWS))
"""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _texts(values: Sequence[Any]) -> pa.Array:
    with suppress(pa.ArrowException, UnicodeEncodeError, OverflowError):  # of several types, or of what no column holds
        array = pa.array(values, from_pandas=True)  # NaN is null
        if not pa.types.is_nested(array.type):
            return array.cast(pa.string())
    return pa.array(list(map(_text, values)), pa.string())


def _text(value: Any) -> str | None:
    """A cell as text, None where it is null or NaN; half a character becomes a question mark."""
    if value is None or value != value:
        return None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return json.dumps(value, default=str) if isinstance(value, (list, dict, tuple)) else str(value)
