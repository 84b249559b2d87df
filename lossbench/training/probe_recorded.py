"""Batches for the probe from recorded completions: text or token ids, rewards, groups."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.errors import UsageError, one_line
from lossbench.training.probe_batch import PAIR_STREAM, ProbeBatch, Sampling, ending_tokens

_NEEDED = "prompt or prompt_ids; completion or completion_ids; reward; group or prompt_id"
# The columns that name a group, from the outermost: a group's number may start over in each sampling round.
_GROUP_KEYS = ("run_id", "batch", "generation", "step", "prompt_id", "group")


class RecordedSource:
    """Cuts recorded groups, in an order drawn from the seed, into batches of about `sampling.completions` rows.

    The file is parquet, CSV, JSON or JSON lines with a row per completion: `prompt` (text) or `prompt_ids`,
    `completion` (text) or `completion_ids`, `reward`, and what tells groups apart: `group` and whichever of run_id,
    batch, generation, step, prompt_id there are. `correct` defaults to reward > 0; `terminated` says whether text ended
    by itself and so is followed by an EOS (default: yes). The completions should come from the policy that is probed:
    from another one, directions and drifts are those of a mixture.
    """

    def __init__(self, path: Path, model: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = ending_tokens(model, tokenizer)
        frame = read_frame(path)
        _check_columns(frame, path)
        groups = _groups(frame)
        if not any(rows["reward"].nunique() > 1 for rows in groups):
            raise UsageError(f"{path}: no group has rewards that differ, so every mode's gradient is 0")
        order = np.random.default_rng(sampling.seed).permutation(len(groups))
        self._batches = _cut([groups[i] for i in order], sampling.completions)
        self.pairs = len(self._batches) // 2
        if self.pairs < 1:
            raise UsageError(
                f"{path}: {len(frame)} completions in {len(groups)} groups do not make two batches of "
                f"{sampling.completions}: give more, or fewer --completions"
            )

    def __call__(self, stream: int, number: int) -> ProbeBatch:
        """Batch `number`; batches of other streams than the pairs' are the same ones, from the start again."""
        if stream == PAIR_STREAM and number >= 2 * self.pairs:
            raise UsageError(
                f"the recorded completions make {self.pairs} pairs of batches: give --batches {self.pairs}"
            )
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
        ids = self._tokenizer(str(row["prompt"]))["input_ids"] if ids is None else ids
        if not ids:
            raise UsageError("a recorded prompt has no tokens: the first token of its completion has no probability")
        return ids

    def _completion(self, row: dict[str, Any]) -> list[int]:
        ids = _ids(row.get("completion_ids"))
        if ids is not None:
            return ids
        text = row["completion"] if isinstance(row["completion"], str) else ""
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ended = bool(row["terminated"]) if _given(row.get("terminated")) else True
        return [*ids, self._eos_ids[0]] if ended and (not ids or ids[-1] not in self._eos_ids) else ids

    def _terminated(self, row: dict[str, Any]) -> bool | None:
        if _given(row.get("terminated")):
            return bool(row["terminated"])
        ids = _ids(row.get("completion_ids"))
        return None if ids is None else bool(ids) and ids[-1] in self._eos_ids


def read_frame(path: Path) -> Any:
    """A table of completions as a data frame. Raises UsageError where the file is missing or not a table."""
    import pandas as pd

    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": pd.read_parquet, ".csv": pd.read_csv, ".json": pd.read_json,
        ".jsonl": lambda file: pd.read_json(file, lines=True),
    }  # fmt: skip
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


def _groups(frame: Any) -> list[Any]:
    keys = [key for key in _GROUP_KEYS if key in frame.columns and frame[key].notna().all()]
    scored = frame[frame["reward"].notna()]
    return [rows for _, rows in scored.groupby(keys, sort=False, observed=True)]


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
    return [int(token) for token in value] if isinstance(value, list | tuple | np.ndarray) else None


def _given(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and np.isnan(value))


def _whole(value: Any) -> bool:
    return _given(value) and not isinstance(value, str) and float(value).is_integer()
