"""Batches for the probe from recorded completions: text or token ids, rewards, groups."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.errors import UsageError, one_line
from lossbench.probe.batches import PAIR_STREAM, ProbeBatch, Sampling, ending_tokens

_TEXT, _IDS = ("prompt", "completion"), ("prompt_ids", "completion_ids")
_NEEDED = "prompt or prompt_ids; completion or completion_ids; reward; group or prompt_id"
# The columns that name a group, from the outermost: a group's number may start over in each sampling round.
_GROUP_KEYS = ("run_id", "batch", "generation", "step", "prompt_id", "group")


class RecordedSource:
    """Cuts recorded groups, in an order drawn from the seed, into batches of about `sampling.completions` rows.

    The file is parquet, CSV, JSON or JSON lines with a row per completion: `prompt` (text) or `prompt_ids`,
    `completion` (text) or `completion_ids`, `reward`, and what tells groups apart: `group` and whichever of run_id,
    batch, generation, step, prompt_id there are. Ids in CSV are written as lists, [1, 2]. `correct` defaults to
    reward > 0; `terminated` says whether text ended by itself and so is followed by an EOS (default: yes). The
    completions should come from the policy that is probed: from another one, directions and drifts are those of a
    mixture.
    """

    def __init__(self, path: Path, model: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = ending_tokens(model, tokenizer)
        self._batches = recorded_batches(path, sampling)
        self.pairs = len(self._batches) // 2

    def __call__(self, stream: int, number: int) -> ProbeBatch:
        """Batch `number`; batches of other streams than the pairs' are the same ones, from the start again."""
        if stream == PAIR_STREAM and number >= 2 * self.pairs:
            raise UsageError(_too_few(self.pairs))
        return self._batch(self._batches[number % len(self._batches)])

    def _batch(self, groups: list[Any]) -> ProbeBatch:
        rows = [{**row, "group": g} for g, group in enumerate(groups) for row in group.to_dict("records")]
        numbers = [i for group in groups for i in range(len(group))]
        return ProbeBatch(
            prompt_ids=[self._prompt(row) for row in rows],
            completion_ids=[self._completion(row) for row in rows],
            prompt_id=[int(row["prompt_id"]) if _whole(row.get("prompt_id")) else row["group"] for row in rows],
            group=[row["group"] for row in rows],
            sample=numbers,
            terminated=[self._terminated(row) for row in rows],
            reward=[float(row["reward"]) for row in rows],
            correct=[bool(row["correct"]) if _given(row.get("correct")) else row["reward"] > 0 for row in rows],
        )

    def _prompt(self, row: dict[str, Any]) -> list[int]:
        ids = _ids(row.get("prompt_ids"))
        ids = self._tokenizer(row["prompt"])["input_ids"] if ids is None else ids
        if not ids:
            raise UsageError("a recorded prompt has no tokens: the first token of its completion has no probability")
        return ids

    def _completion(self, row: dict[str, Any]) -> list[int]:
        ids = _ids(row.get("completion_ids"))
        if ids is not None:
            return ids
        ids = self._tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
        ended = bool(row["terminated"]) if _given(row.get("terminated")) else True
        return [*ids, self._eos_ids[0]] if ended and (not ids or ids[-1] not in self._eos_ids) else ids

    def _terminated(self, row: dict[str, Any]) -> bool | None:
        if _given(row.get("terminated")):
            return bool(row["terminated"])
        ids = _ids(row.get("completion_ids"))
        return None if ids is None else bool(ids) and ids[-1] in self._eos_ids


def recorded_batches(path: Path, sampling: Sampling, pairs: int | None = None) -> list[list[Any]]:
    """The file's batches, each a list of groups (data frames), without a model.

    Raises UsageError where the file cannot be used, or makes fewer than two batches or fewer than `pairs` pairs.
    """
    frame = read_frame(path)
    _check_columns(frame, path)
    frame = frame[frame["reward"].notna()]
    _check_rows(frame, path)
    groups = _groups(frame)
    if not any(rows["reward"].nunique() > 1 for rows in groups):
        raise UsageError(f"{path}: no group has rewards that differ, so every mode's gradient is 0")
    order = np.random.default_rng(sampling.seed).permutation(len(groups))
    batches = _cut([groups[i] for i in order], sampling.completions)
    if len(batches) < 2:
        raise UsageError(
            f"{path}: {len(frame)} completions in {len(groups)} groups do not make two batches of "
            f"{sampling.completions}: give more, or fewer --completions"
        )
    if pairs is not None and len(batches) // 2 < pairs:
        raise UsageError(f"{path}: {_too_few(len(batches) // 2)}")
    return batches


def _too_few(pairs: int) -> str:
    return f"the recorded completions make {pairs} pairs of batches: give --batches {pairs}, or fewer --completions"


def read_frame(path: Path) -> Any:
    """A table of completions as a data frame. Raises UsageError where the file is missing or not a table.

    Text stays text: a completion "030" is three characters, not a number, and "None" is a word.
    """
    import pandas as pd

    values: dict[str, Any] = {"dtype": False, "convert_dates": False}
    as_written = {**dict.fromkeys(_TEXT, str), **dict.fromkeys(_IDS, json.loads)}
    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": pd.read_parquet,
        ".csv": lambda file: pd.read_csv(file, converters=as_written),
        ".json": partial(pd.read_json, **values),
        ".jsonl": partial(pd.read_json, lines=True, **values),
    }
    if path.suffix not in readers:
        raise UsageError(f"{path}: unknown kind of file; valid: {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({one_line(error)})") from None


def _check_columns(frame: Any, path: Path) -> None:
    names = set(frame.columns)
    alternatives = [{"prompt", "prompt_ids"}, {"completion", "completion_ids"}, {"reward"}, {"group", "prompt_id"}]
    for wanted in alternatives:
        if not names & wanted:
            raise UsageError(f"{path}: no column {' or '.join(sorted(wanted))}; needed: {_NEEDED}")
        if all(frame[name].isna().all() for name in names & wanted):
            raise UsageError(f"{path}: column {' and '.join(sorted(names & wanted))} is empty; needed: {_NEEDED}")


def _check_rows(frame: Any, path: Path) -> None:
    """Every row must say what it is: a row that is left out or made up would shift its whole group."""
    _refuse(frame, path, ["reward"], _is_finite, "is not a finite number")
    for name in ("correct", "terminated"):
        if name in frame.columns:
            _refuse(frame, path, [name], _is_flag, "is neither true nor false")
    applied = "prompt as the model reads it, chat template applied"
    for text, ids, give in (("prompt", "prompt_ids", applied), ("completion", "completion_ids", "completion's text")):
        there = [name for name in (text, ids) if name in frame.columns]
        _refuse(frame, path, there, _is_told, f"cannot be tokenised: give the {give}, or {ids} as a list of integers")
    if not _keys(frame):
        key = next(key for key in ("group", "prompt_id") if key in frame.columns)
        _refuse(frame, path, [key], _given, "names no group")


def _refuse(frame: Any, path: Path, columns: list[str], is_right: Callable[[Any], bool], why: str) -> None:
    """Raise UsageError for the first row in which none of the columns is right."""
    for number, values in zip(frame.index, zip(*(frame[name] for name in columns), strict=True), strict=True):
        if not any(is_right(value) for value in values):
            found = repr(values[0])[:60] if _given(values[0]) else "null"
            raise UsageError(f"{path}: row {int(number) + 1}: {columns[0]} {found} {why}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


def _is_flag(value: Any) -> bool:
    return not _given(value) or (isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1))


def _is_told(value: Any) -> bool:
    return isinstance(value, str) or _ids(value) is not None


def _keys(frame: Any) -> list[str]:
    return [key for key in _GROUP_KEYS if key in frame.columns and frame[key].notna().all()]


def _groups(frame: Any) -> list[Any]:
    return [rows for _, rows in frame.groupby(_keys(frame), sort=False, observed=True)]


def _cut(groups: list[Any], completions: int) -> list[list[Any]]:
    """Consecutive groups, a batch being full once it has `completions` rows; what is left over is not used."""
    batches, current, rows = [], [], 0
    for group in groups:
        current.append(group)
        rows += len(group)
        if rows >= completions:
            batches.append(current)
            current, rows = [], 0
    return batches


def _ids(value: Any) -> list[int] | None:
    if not isinstance(value, list | tuple | np.ndarray) or not all(isinstance(t, int | np.integer) for t in value):
        return None
    return [int(token) for token in value]


def _given(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and np.isnan(value))


def _whole(value: Any) -> bool:
    return _given(value) and not isinstance(value, str) and float(value).is_integer()
