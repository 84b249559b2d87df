"""Readers of text and table files: objects line by line, rows one at a time, or documents (JSON objects as text) in
Arrow tables.

Each line is judged by itself: a damaged one is counted with its file, number and reason, and the next one read.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lossbench.errors import UsageError, one_line
from lossbench.ingest.fields import Damage

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]
Numbered = tuple[int, Row]
"""A row and its number: of the line in the file, or of the row where the file is not made of lines."""

FIRST_ROWS = 200  # that say which columns a file has
BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20  # a line may hold a whole table
_CELL_CHARACTERS = 1 << 24
TENSORBOARD = ("Wall time", "Step", "Value")
UNREADABLE = (ValueError, RecursionError)
"""What `json.loads` raises: on no JSON, no UTF-8, an endless whole number, or brackets within brackets without end."""
_UNJUDGED = "SELECT line, doc FROM block WHERE NOT (ltrim(doc)[1] = '{' AND json_valid(doc)) ORDER BY line"


def documents(file: Path, damage: Damage, con: "duckdb.DuckDBPyConnection") -> Iterator[pa.Table]:
    """The rows of a table file as tables of `line` (int64) and `doc` (a JSON object as text), block by block."""
    if is_lines(file):
        for first, lines in _line_blocks(file):
            yield _judged(first, lines, file, damage, con)
    elif _begins(file) == b"PAR1":
        for first, batch in _parquet_batches(file):
            con.register("batch", batch)
            docs = con.sql("SELECT CAST(to_json(batch) AS VARCHAR) AS doc FROM batch").to_arrow_table()["doc"]
            yield pa.table({"line": pa.array(range(first, first + len(docs)), pa.int64()), "doc": docs})
    else:
        source = rows(file, damage)
        while some := list(islice(source, 4096)):
            yield _documents(some)


def _begins(file: Path, most: int = 4) -> bytes:
    with file.open("rb") as stream:
        return stream.read(most)


def is_lines(file: Path) -> bool:
    """Whether a file holds JSON lines, whatever its name: .jsonl, or a first line that is an object by itself."""
    if file.suffix == ".jsonl":
        return True
    first, _, rest = _begins(file, _BUFFER_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    if not first.startswith(b"{") or _record(first, Damage(), file, 1) is None:
        return False
    return file.suffix != ".json" or rest.strip().startswith(b"{")


def _parquet_batches(file: Path) -> Iterator[tuple[int, pa.Table]]:
    """(number of the first row, rows), some thousand at a time. Raises UsageError where the file is damaged."""
    import pyarrow.parquet as pq

    first = 1
    try:
        for batch in pq.ParquetFile(file).iter_batches(2048):
            yield first, pa.Table.from_batches([batch])
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{file}: not a readable parquet file ({one_line(error, 100)})") from None


def _line_blocks(file: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first line, lines) of some megabytes at a time."""
    first = 1
    with file.open("rb") as stream:
        while chunk := stream.read(BLOCK_BYTES):
            block = chunk + stream.readline()
            lines = block.removeprefix(b"\xef\xbb\xbf" if first == 1 else b"").removesuffix(b"\n").split(b"\n")
            yield first, lines
            first += len(lines)


def _judged(first: int, lines: list[bytes], file: Path, damage: Damage, con: "duckdb.DuckDBPyConnection") -> pa.Table:
    """The objects in a block; what DuckDB does not take as one is judged by Python, which says why, or takes it."""
    numbers = pa.array(range(first, first + len(lines)), pa.int64())
    try:
        block = pa.table({"line": numbers, "doc": pa.array(lines, pa.binary()).cast(pa.string())})
    except pa.ArrowInvalid:  # some line is not UTF-8
        return _documents(_records(enumerate(lines, first), file, damage))
    con.register("block", block)
    doubtful = dict(con.execute(_UNJUDGED).fetchall())
    if not doubtful:
        return block
    known = _documents(_records(((n, line.encode()) for n, line in doubtful.items()), file, damage))
    clean = block.filter(pa.array([n not in doubtful for n in block["line"].to_pylist()]))
    return pa.concat_tables([clean, known]).sort_by("line")


def _documents(found: Iterable[Numbered]) -> pa.Table:
    """Half a character (a lone surrogate), which UTF-8 cannot hold, becomes a question mark."""
    known = {n: json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace") for n, row in found}
    return pa.table({"line": pa.array([*known], pa.int64()), "doc": pa.array([*known.values()], pa.string())})


def records(file: Path, damage: Damage) -> Iterator[Numbered]:
    """(line number, object) of every good line; lines that are not JSON objects are counted in `damage`."""
    with file.open("rb", buffering=_BUFFER_BYTES) as lines:
        yield from _records(enumerate(lines, start=1), file, damage)


def _records(lines: Iterable[tuple[int, bytes]], file: Path, damage: Damage) -> Iterator[Numbered]:
    return ((n, record) for n, line in lines if (record := _record(line, damage, file, n)) is not None)


def _record(line: bytes, damage: Damage, file: Path, n: int) -> Row | None:
    if not line or line.isspace():
        return None
    try:
        # Said here, for json would look at every line's first bytes for its encoding; a mark may open the file.
        record = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
    except UNREADABLE as error:
        damage.add(f"{file}, line {n}", f"not valid JSON ({error})")
        return None
    if not isinstance(record, dict):
        damage.add(f"{file}, line {n}", f"holds {type(record).__name__}, not an object")
        return None
    return record


def first_fields(file: Path, most: int | None = FIRST_ROWS) -> Row:
    """The columns of the first rows (None: of all) of a table file, each with its first value that is not null."""
    fields: Row = {}
    for _, row in islice(rows(file, Damage()), most):
        fields |= {name: value for name, value in row.items() if fields.get(name) is None}
    return fields


def rows(file: Path, damage: Damage) -> Iterator[Numbered]:
    """The file's rows, in order; an empty CSV cell is None.

    Raises UsageError where the file as a whole is not what its name says.
    """
    if is_lines(file):
        yield from records(file, damage)
    elif _begins(file) == b"PAR1":
        for first, batch in _parquet_batches(file):
            yield from enumerate(batch.to_pylist(), start=first)
    elif file.suffix == ".json":
        yield from ((n, row) for n, row in enumerate(_json_rows(file), start=1) if row)
    else:
        yield from _csv_rows(file, damage)


def _csv_rows(file: Path, damage: Damage) -> Iterator[Numbered]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_CHARACTERS))
    head = _begins(file, _BUFFER_BYTES).partition(b"\n")[0]
    separator = max(",;\t", key=lambda mark: head.count(mark.encode()))  # the comma where the first line has none
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            for cells in reader:
                if any(cells) and len(cells) == len(header):
                    yield reader.line_num, dict(zip(header, (cell or None for cell in cells), strict=True))
                elif any(cells):
                    reason = f"{len(cells)} cells where the header has {len(header)}"
                    damage.add(f"{file}, line {reader.line_num}", reason)
        except UnicodeDecodeError:
            with file.open(encoding="utf-8", errors="surrogateescape") as again:
                line = next(n for n, text in enumerate(again, start=1) if any("\udc80" <= c <= "\udcff" for c in text))
            advice = "convert the file, as by iconv -f latin1 -t utf-8"
            raise UsageError(f"{file}, line {line}: not UTF-8: {advice}") from None
        except csv.Error as error:
            place = f"{file}, line {reader.line_num}"
            raise UsageError(f"{place}: not readable as CSV ({one_line(error)}): is a quote left open there?") from None


def _json_rows(file: Path) -> Iterable[Row]:
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))
    except UNREADABLE as error:
        reason = one_line(error)
        raise UsageError(f"{file}: not valid JSON ({reason}); JSON lines belong in a file named .jsonl") from None
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        lengths = {name: len(values) for name, values in data.items()}
        if len(set(lengths.values())) > 1:
            differ = one_line(", ".join(f"{name} {length}" for name, length in lengths.items()))
            raise UsageError(f"{file}: its columns differ in length ({differ}): export them again, of one length")
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    if isinstance(data, list) and all(isinstance(row, list) and len(row) == 3 for row in data):
        return [dict(zip(TENSORBOARD, row, strict=True)) for row in data]
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return data
    raise UsageError(f"{file}: valid: a list of objects, an object of lists, or TensorBoard's list of triples")


def json_object(file: Path, damage: Damage) -> dict[str, Any]:
    """The object in a JSON file; {} where it holds another value, or, counted as damage, is not JSON."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        damage.add(str(file), f"not valid JSON ({error})")
        return {}
    return value if isinstance(value, dict) else {}
