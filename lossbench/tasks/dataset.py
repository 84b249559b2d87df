"""`dataset`: prompts and answers from a file (JSONL, JSON, CSV, Parquet) or, only if asked, from the hub."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator

from lossbench.errors import UsageError, one_line
from lossbench.network import no_hub
from lossbench.tasks.base import Prompt, VerifiedTask
from lossbench.tasks.params import TaskParams, held_out
from lossbench.tasks.verifiers import make_verifier, verifier_kind

HUB = "hub:"
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_LONGEST_CELL = 2**31 - 1  # of a CSV file, in characters; the csv module's own limit is 131,072
_USUAL_NAMES = {
    "prompt": ("prompt", "question", "problem", "input"),
    "answer": ("answer", "solution", "ground_truth", "target"),
}
Row = Mapping[str, Any]


class DatasetParams(TaskParams):
    """Source of the rows and the way they are read; `train_size` 0 takes all that `eval_size` leaves.

    `prefix` and `suffix` stand before and after every prompt, on lines of their own. `prompt_column` and
    `answer_column` default to the usual names: prompt, question, problem or input; answer, solution, ground_truth or
    target.
    """

    path: str = ""
    verifier: str = "numeric"
    prompt_column: str | None = None
    answer_column: str | None = None
    split: str = "train"
    chat: bool = True
    prefix: str = ""
    suffix: str = ""
    train_size: int = 0
    eval_size: int = 100
    seed: int = 0

    @model_validator(mode="after")
    def _check_source(self) -> "DatasetParams":
        if not self.path:
            raise ValueError("which one? give --dataset data.jsonl (jsonl, json, csv, parquet or hub:name)")
        verifier_kind(self.verifier)
        return self


class DatasetTask(VerifiedTask):
    """Rows of a data set in an order shuffled once by `seed`; the first `eval_size` (a fifth at most) evaluate."""

    shortest_answer_tokens = 2  # one answer token and the EOS

    def __init__(self, params: DatasetParams) -> None:
        path, train_size = params.path, params.train_size
        self.name = f"dataset-{_title(path)}"
        self.chat = params.chat
        self.verifier = make_verifier(params.verifier)
        self._right = verifier_kind(params.verifier).right
        rows = read_rows(path, params.split)
        columns = {"prompt": params.prompt_column, "answer": params.answer_column}
        prompt_key, answer_key = (_column(path, rows[0][1], role, name) for role, name in columns.items())
        prompts = []
        for number, (place, row) in enumerate(rows):
            text, answer = _text(row, prompt_key, place), _text(row, answer_key, place)
            problem = self.verifier.gold_problem(answer)
            if problem:
                needed = f"verifier '{params.verifier}' cannot compare with it: fix or drop the row"
                raise UsageError(f"{place}: answer {answer[:40]!r} {problem}; {needed}")
            prompts.append(
                Prompt(number, "\n".join(part for part in (params.prefix, text, params.suffix) if part), answer)
            )
        order = np.random.default_rng(params.seed).permutation(len(prompts))
        evaluated = held_out(len(prompts), train_size or len(prompts), params.eval_size)
        shuffled = [prompts[int(i)] for i in order]
        self.eval_prompts = shuffled[:evaluated]
        self.train_prompts = shuffled[evaluated : evaluated + train_size if train_size else None]

    def right_completion(self, prompt: Prompt) -> str:
        """A completion that solves `prompt`."""
        return self._right(prompt.answer)


def _title(path: str) -> str:
    return Path(re.split("[:@]", path.removeprefix(HUB))[0]).stem if path.startswith(HUB) else Path(path).stem


def _column(dataset: str, row: Row, role: str, asked: str | None) -> str:
    if asked is not None and asked in row:
        return asked
    if asked is None:
        for name in _USUAL_NAMES[role]:
            if name in row:
                return name
    wanted = f"column '{asked}'" if asked else f"{role} column ({', '.join(_USUAL_NAMES[role])})"
    raise UsageError(f"{dataset}: no {wanted}; it has {', '.join(row)}: name one with {role}_column")


def _text(row: Row, key: str, place: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, (dict, list)):
        raise UsageError(f"{place}: column '{key}' holds {type(value).__name__}; valid: text or a number in every row")
    return str(value)


def read_rows(dataset: str, split: str = "train") -> Sequence[tuple[str, Row]]:
    """All rows with the place (file and row) of each.

    Raises UsageError where the file is missing, empty, of an unknown kind, damaged, or has fewer than two rows.
    """
    if dataset.startswith(HUB):
        rows = _hub_rows(dataset.removeprefix(HUB), split)
    else:
        path = Path(dataset)
        if path.is_dir():
            raise UsageError(f"data set {dataset}: a folder; valid: one file ({', '.join(SUFFIXES)})")
        if not path.is_file():
            raise UsageError(f"data set {dataset}: no such file; a data set on the hub is written {HUB}name")
        if path.suffix not in SUFFIXES:
            raise UsageError(f"data set {dataset}: unknown kind '{path.suffix}'; valid: {', '.join(SUFFIXES)}")
        if path.stat().st_size == 0:
            raise UsageError(f"data set {dataset}: the file is empty")
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise UsageError(f"data set {dataset}: compressed by gzip: unpack it first (gunzip)")
        rows = list(_file_rows(path))
    if len(rows) < 2:
        raise UsageError(f"data set {dataset}: {len(rows)} rows; it takes two, one to train and one to evaluate")
    return rows


def _file_rows(path: Path) -> Iterator[tuple[str, Row]]:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"{path}: not a readable parquet file ({error})") from None
        yield from ((f"{path}, row {i}", row) for i, row in enumerate(table.to_pylist(), start=1))
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    elif path.suffix == ".json":
        rows = _parsed(_decoded(path.read_bytes(), str(path)), str(path))
        if not isinstance(rows, list):
            raise UsageError(f"{path}: holds one {type(rows).__name__}; valid: a list of objects")
        yield from ((f"{path}, row {i}", _object(row, f"{path}, row {i}")) for i, row in enumerate(rows, start=1))
    else:
        yield from ((place, _object(_parsed(line, place), place)) for place, line in _lines(path) if line.strip())


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The file's lines with the place of each."""
    for i, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        place = f"{path}, line {i}"
        yield place, _decoded(line, place)


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")  # spreadsheets put a byte order mark before the first column's name
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: not UTF-8 text (byte 0x{data[error.start]:02x}); save the file as UTF-8") from None


def _csv_rows(path: Path) -> Iterator[tuple[str, Row]]:
    reader = csv.DictReader(line for _, line in _lines(path))
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not readable as CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)
    columns = len(reader.fieldnames or ())
    for i, row in enumerate(rows, start=1):
        if extra := row.get(None):  # where DictReader keeps the cells beyond the last column
            cells = f"{columns + len(extra)} cells in {columns} columns"
            raise UsageError(f"{path}, row {i}: {cells}; put a cell that holds a comma between double quotes")
        yield f"{path}, row {i}", row


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}: not valid JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UsageError(f"{place}: not readable as JSON ({one_line(error)})") from None


def _object(row: Any, place: str) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{place}: holds {type(row).__name__}; valid: one JSON object per row")
    return row


def _hub_rows(reference: str, split: str) -> list[tuple[str, Row]]:
    """Rows of `name`, `name@revision` or `name:config@revision` of the Hugging Face hub; downloads it if need be."""
    why_not = no_hub()
    name, _, revision = reference.partition("@")
    name, _, config = name.partition(":")
    try:
        data = _from_hub(name, config or None, split, revision or None, offline=why_not is not None)
    except (OSError, ValueError) as error:  # what `datasets` raises for: not found, no network, unknown split or config
        reason = why_not if why_not and isinstance(error, OSError) else one_line(error)
        raise UsageError(f"data set {HUB}{reference}: is not available from the hub or the cache ({reason})") from None
    return [(f"{HUB}{name}, row {i}", row) for i, row in enumerate(data, start=1) if isinstance(row, dict)]


def _from_hub(name: str, config: str | None, split: str, revision: str | None, *, offline: bool) -> Any:
    """The data set; `offline` takes it from the cache at once, instead of after half a minute of retries."""
    from datasets import config as client
    from datasets import load_dataset

    before = client.HF_HUB_OFFLINE
    client.HF_HUB_OFFLINE = before or offline
    try:
        return load_dataset(name, config, split=split, revision=revision)
    finally:
        client.HF_HUB_OFFLINE = before
