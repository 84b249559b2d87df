"""Batches for the probe from recorded completions: text or token ids, rewards, groups."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.errors import UsageError, one_line, unknown
from lossbench.probe.batches import PAIR_STREAM, ProbeBatch, Sampling, ending_tokens
from lossbench.sampling.endings import completion_tokens

_TEXT, _IDS = ("prompt", "completion"), ("prompt_ids", "completion_ids")
_NEEDED = "prompt or prompt_ids; completion or completion_ids; reward; group or prompt_id"
# The columns that name a group, from the outermost: a group's number may start over in each sampling round.
_GROUP_KEYS = ("run_id", "batch", "generation", "step", "prompt_id", "group")
_FIELDS = (*_TEXT, *_IDS, "reward", "correct", "terminated", *_GROUP_KEYS)
_TRL = re.compile(r"completions_\d+\.parquet")
_FOLDERS = ("completions_*.parquet", "completions/completions_*.parquet", "rollouts.parquet", "runs/*/rollouts.parquet")


class RecordedSource:
    """Batches from recorded groups, in an order drawn from the seed, of about `sampling.completions` rows.

    The file is parquet, CSV, JSON or JSON lines with a row per completion: `prompt` (text) or `prompt_ids`,
    `completion` (text) or `completion_ids`, `reward`, and what tells groups apart: `group` and whichever of run_id,
    batch, generation, step, prompt_id there are. Ids in CSV are written as lists, [1, 2]. `correct` defaults to
    reward > 0; `terminated` says whether text ended by itself and so is followed by an EOS (default: yes). A completion
    ends at its first EOS, whatever follows. Messages go through the tokenizer's chat template. `columns` maps these
    names to the file's own. The path may be a folder of lossbench (a sweep's or a run's), or TRL's output folder or one
    of its completion files, where neighbours with one prompt are a group and the only other number is the reward.
    The completions should come from the policy that is probed: from another one, directions and drifts are those of a
    mixture.
    """

    def __init__(
        self, path: Path, model: Any, tokenizer: Any, sampling: Sampling, columns: Mapping[str, str] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = ending_tokens(model, tokenizer)
        chat = bool(getattr(tokenizer, "chat_template", None))
        self._batches = recorded_batches(path, sampling, columns=columns, chat=chat)
        self.pairs = len(self._batches) // 2

    def __call__(self, stream: int, number: int) -> ProbeBatch:
        """Batch `number`; batches of other streams than the pairs' are the same ones, from the start again."""
        if stream == PAIR_STREAM and number >= 2 * self.pairs:
            raise UsageError(_too_few(self.pairs))
        groups = self._batches[number % len(self._batches)]
        rows = [{**row, "group": g} for g, group in enumerate(groups) for row in group.to_dict("records")]
        completions = [self._completion(row) for row in rows]
        return ProbeBatch(
            prompt_ids=[self._prompt(row) for row in rows],
            completion_ids=completions,
            prompt_id=[int(row["prompt_id"]) if _whole(row.get("prompt_id")) else row["group"] for row in rows],
            group=[row["group"] for row in rows],
            sample=[i for group in groups for i in range(len(group))],
            terminated=[self._terminated(row, ids) for row, ids in zip(rows, completions, strict=True)],
            reward=[float(row["reward"]) for row in rows],
            correct=[bool(row["correct"]) if _given(row.get("correct")) else row["reward"] > 0 for row in rows],
        )

    def _prompt(self, row: dict[str, Any]) -> list[int]:
        ids = _ids(row.get("prompt_ids"))
        if ids is None and _is_messages(row["prompt"]):
            messages = [dict(message) for message in row["prompt"]]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        elif ids is None:
            ids = self._tokenizer(row["prompt"])["input_ids"]
        if not ids:
            raise UsageError("a recorded prompt has no tokens: the first token of its completion has no probability")
        return ids

    def _completion(self, row: dict[str, Any]) -> list[int]:
        ids = _ids(row.get("completion_ids"))
        if ids is not None:
            return self._cut(ids)
        text = row["completion"]
        text = text if isinstance(text, str) else "".join(str(message["content"]) for message in text)
        ids = self._cut(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        ended = bool(row["terminated"]) if _given(row.get("terminated")) else True
        return [*ids, self._eos_ids[0]] if ended and not self._ends(ids) else ids

    def _cut(self, ids: list[int]) -> list[int]:
        return ids[: completion_tokens(ids, self._eos_ids)]

    def _ends(self, ids: list[int]) -> bool:
        return bool(ids) and ids[-1] in self._eos_ids

    def _terminated(self, row: dict[str, Any], ids: list[int]) -> bool | None:
        if _given(row.get("terminated")):
            return bool(row["terminated"])
        return None if _ids(row.get("completion_ids")) is None else self._ends(ids)


def recorded_batches(
    path: Path, sampling: Sampling, pairs: int | None = None, columns: Mapping[str, str] | None = None,
    chat: bool = True,
) -> list[list[Any]]:  # fmt: skip
    """The batches of a file or folder, each a list of groups (data frames), without a model.

    Without `chat`, prompts that are messages are refused. Raises UsageError where it cannot be used, or makes fewer
    than two batches or fewer than `pairs` pairs.
    """
    frame = _read_all(path, dict(columns or {}), chat)
    groups = [rows for _, rows in frame.groupby(_keys(frame), sort=False, observed=True)]
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


def _read_all(path: Path, columns: dict[str, str], chat: bool) -> Any:
    """The rows with a reward of every file at `path`, checked, under our names."""
    import pandas as pd

    files = [path]
    if path.is_dir():
        files = next((found for pattern in _FOLDERS if (found := sorted(path.glob(pattern)))), [])
        if not files:
            raise UsageError(f"{path}: holds no completions; valid: a file, or a folder with {' or '.join(_FOLDERS)}")
    frames: list[Any] = []
    for file in files:
        frame = _under_our_names(_read(file), file, columns)
        _check_columns(frame, file)
        frame = frame[frame["reward"].notna()]
        _check_rows(frame, file, chat)
        # TRL writes the latest completions again at each optimizer step that uses them.
        if not frames or not _TRL.fullmatch(file.name) or _texts(frame) != _texts(frames[-1]):
            frames.append(frame)
    return pd.concat(frames) if len(frames) > 1 else frames[0]


def _texts(frame: Any) -> list[str]:
    return [repr(values) for values in zip(frame["prompt"], frame["completion"], strict=True)]


def _read(path: Path) -> Any:
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


def _under_our_names(frame: Any, path: Path, columns: dict[str, str]) -> Any:
    """The frame with mapped columns renamed; of a file of TRL also reward and groups, which it names otherwise."""
    for ours, theirs in columns.items():
        if ours not in _FIELDS:
            raise UsageError(f"--map {ours}={theirs}: {unknown('field', ours, _FIELDS)}")
        if theirs not in frame.columns:
            raise UsageError(f"{path}: --map {ours}={theirs}: {unknown('column', theirs, map(str, frame.columns))}")
    frame = frame.drop(columns=[ours for ours in columns if ours in frame.columns and ours not in columns.values()])
    frame = frame.rename(columns={theirs: ours for ours, theirs in columns.items()})
    if not _TRL.fullmatch(path.name) or "prompt" not in frame.columns:
        return frame
    if "reward" not in frame.columns:
        numbers = [name for name in frame.select_dtypes("number") if name not in (*_FIELDS, "advantage")]
        if len(numbers) != 1:
            raise UsageError(f"{path}: the reward is one of {', '.join(numbers) or 'no column'}: --map reward=COLUMN")
        frame = frame.rename(columns={numbers[0]: "reward"})
    if not {"group", "prompt_id"} & set(frame.columns):
        prompts = frame["prompt"].map(repr)
        frame["group"] = (prompts != prompts.shift()).cumsum()
    return frame


def _check_columns(frame: Any, path: Path) -> None:
    names = set(frame.columns)
    alternatives = [{"prompt", "prompt_ids"}, {"completion", "completion_ids"}, {"reward"}, {"group", "prompt_id"}]
    for wanted in alternatives:
        if not names & wanted:
            raise UsageError(
                f"{path}: no column {' or '.join(sorted(wanted))}; needed: {_NEEDED} (--map FIELD=COLUMN names others)"
            )
        if all(frame[name].isna().all() for name in names & wanted):
            raise UsageError(f"{path}: column {' and '.join(sorted(names & wanted))} is empty; needed: {_NEEDED}")


def _check_rows(frame: Any, path: Path, chat: bool) -> None:
    """Every row must say what it is: a row that is left out or made up would shift its whole group."""
    _refuse(frame, path, ["reward"], _is_finite, "is not a finite number")
    for name in ("correct", "terminated"):
        if name in frame.columns:
            _refuse(frame, path, [name], _is_flag, "is neither true nor false")
    applied = "prompt as the model reads it, chat template applied"
    for text, ids, give in (("prompt", "prompt_ids", applied), ("completion", "completion_ids", "completion's text")):
        there = [name for name in (text, ids) if name in frame.columns]
        is_told = _is_told if chat or text == "completion" else _is_plain
        _refuse(frame, path, there, is_told, f"cannot be tokenised: give the {give}, or {ids} as a list of integers")
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


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or _ids(value) is not None


def _is_told(value: Any) -> bool:
    return _is_plain(value) or _is_messages(value)


def _is_messages(value: Any) -> bool:
    """Whether it is a list of chat messages, {"role", "content"}."""
    return isinstance(value, list | np.ndarray) and len(value) > 0 and all(
        isinstance(part, dict) and isinstance(part.get("content"), str) for part in value
    )  # fmt: skip


def _keys(frame: Any) -> list[str]:
    return [key for key in _GROUP_KEYS if key in frame.columns and frame[key].notna().all()]


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
