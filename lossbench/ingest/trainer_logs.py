"""Rewards, messages and repeated tables in the completions that TRL's and ms-swift's trainers log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.ingest.base import IngestedRun, Request
from lossbench.ingest.curves import add_logs
from lossbench.ingest.fields import number, whole

Columns = Mapping[str, Sequence[Any]]
Logged = Sequence[tuple[int, Mapping[str, Any]]]
"""Step and row of a trainer's log, in its order."""

_USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "completion": ("completion",),
    "correct": ("correct", "accuracy", "accuracy_reward", "Accuracy", "MathAccuracy"),
    "advantage": ("advantage", "advantages"),
    **dict.fromkeys(("length", "terminated", "group"), ()),
}
_VERDICTS = ("correct", "accuracy", "Accuracy")  # of those, the ones that need not be a reward function
_NOT_REWARDS = {
    "step", "gen_step", "prompt", "completion", "advantage", "advantages", "entropy", "image", "images", "num_turns",
}  # fmt: skip
_REWARD = re.compile(r"rewards/(.+?)(/mean|/std)?")  # old TRL: without the last part


def evaluated_steps(logged: Logged) -> set[int]:
    """Steps after which the trainer evaluated."""
    return {step for step, row in logged if any(str(key).startswith("eval_") for key in row)}


@dataclass
class TrainerTables:
    """The tables of completions that a trainer logged for a run, read in order.

    `names` are those of the reward functions in its log; `weights` theirs, in the order of a table's columns: none at
    all (`()`) are known to be 1 each, None is not known.
    """

    run: IngestedRun
    request: Request
    names: Sequence[str] = ()
    weights: Sequence[float] | None = None
    _last: Sequence[Sequence[Any]] = ()

    def read_log(self, logged: Logged) -> set[int]:
        """Add the trainer's log to the run, and take the names of the reward functions from it; the steps trained.

        A log holds evaluations and a summary too, which are left out.
        """
        rows = [(step, row) for step, row in logged if "loss" in row or "reward" in row]
        add_logs(self.run, rows, self.request)
        self.names = [match[1] for _, row in rows for key in row if (match := _REWARD.fullmatch(key))]
        steps = dict(rows)
        for step, row in steps.items():  # others hold a mean over several steps
            if (step == 1 or step - 1 in steps) and (reward := number(row.get("reward"))) is not None:
                self.run.logged_rewards[step] = reward
        return set(steps)

    def known_rows(self, columns: Columns, names: Sequence[str] = ("prompt", "completion")) -> int:
        """Number of leading rows of this table that are the whole of the one before, by `names`; 0 if it is another.

        These trainers log the latest generation at every optimizer step.
        """
        last, self._last = self._last, [columns[name] for name in names if name in columns]
        begins_so = len(last) == len(self._last) and all(
            len(column) >= len(earlier)
            and all(new == old or (new != new and old != old) for new, old in zip(column, earlier, strict=False))
            for column, earlier in zip(self._last, last, strict=True)
        )
        return len(last[0]) if last and begins_so else 0

    def stage(self, columns: Columns, lines: Sequence[int], file: Path) -> None:
        """Stage a table whose step, prompt and completion have these names; `lines` are its rows' numbers in the file.

        A row without a step is damage.
        """
        place = f"{file}, line {lines[0]}"
        weights = self._weights_in(columns, place)
        names = {"step": "step"} | self.request.fields(_USUAL, columns, place)
        fields: dict[str, Sequence[Any]] = {ours: columns[name] for ours, name in names.items()}
        fields |= {ours: list(map(message_text, columns[ours])) for ours in ("prompt", "completion") if ours in columns}
        if weights:
            fields["reward"], names["reward"] = weighted_sum(columns, weights), " + ".join(weights)
        self.run.saw(names, columns)
        good = [whole(step) is not None for step in columns["step"]]
        for line, step, known in zip(lines, columns["step"], good, strict=True):
            if not known:
                self.run.damage.add(f"{file}, line {line}", f"step {step!r} is no number")
        fields = {name: list(compress(values, good)) for name, values in fields.items()}
        self.request.staging.add(fields, list(compress(lines, good)), self.run.keys[0], file)

    def _weights_in(self, columns: Columns, place: str) -> Mapping[str, float]:
        """The columns of a table whose weighted sum is the reward; none where it has no column of rewards.

        It is the mapped column; else the sum of those that the log names; else `reward`; else the sum of every column
        of numbers that is nothing else.
        """
        mapped = self.request.column("reward", (), columns, place)
        given = {mapped: 1.0} if mapped else self.request.reward_weights
        if missing := [name for name in given if name not in columns]:
            raise UsageError(f"{place}: no column '{missing[0]}' for --reward-weight; it has {', '.join(columns)}")
        named = [name for name in columns if name in self.names]
        if given or (not named and "reward" in columns):
            return given or {"reward": 1.0}
        summands = named or _numeric_columns(columns, self.request)
        weights, doubt = self.weights or [1.0] * len(summands), ""
        if not named:
            doubt = "no log of the steps names the reward functions (--map reward=COLUMN)"
        elif self.weights is None and len(summands) > 1:
            doubt = "the log does not hold their weights (--reward-weight NAME=WEIGHT)"
        if len(weights) != len(summands):
            doubt = doubt or f"the arguments hold {len(weights)} reward weights for {len(summands)} columns"
            weights = [1.0] * len(summands)
        kind = "the plain sum of " if set(weights) == {1.0} else "the weighted sum of "
        note = f"reward is {kind if len(summands) > 1 else ''}{', '.join(summands)}: {doubt}"
        if summands and doubt and note not in self.run.notes:
            self.run.notes.append(note)
        return dict(zip(summands, weights, strict=True))


def _numeric_columns(columns: Columns, request: Request) -> list[str]:
    """The columns that can only be reward functions: numbers, and no field of ours.

    A verdict counts if no other exists: these trainers write a column for every reward function, so one is.
    """
    others = _NOT_REWARDS | {column for ours, column in request.columns.items() if ours != "correct"}
    numeric = [name for name, values in columns.items() if name not in others and _numeric(values)]
    verdicts = {*_VERDICTS, request.columns.get("correct")}
    return [name for name in numeric if name not in verdicts] or numeric


def _numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)


def weighted_sum(columns: Columns, weights: Mapping[str, float]) -> list[float | None]:
    """Row by row weighted sum of columns; nulls and NaN are left out, a row of nothing else is null."""
    rows = zip(*(map(number, columns[name]) for name in weights), strict=True)
    known = ([w * v for w, v in zip(weights.values(), row, strict=True) if v is not None] for row in rows)
    return [sum(values) if values else None for values in known]


def message_text(value: Any) -> str | None:
    """Plain text of a prompt or completion: text itself, or the contents of a list of chat messages, one per line.

    >>> message_text([{"role": "user", "content": "What is 1 + 1?"}])
    'What is 1 + 1?'
    """
    if type(value) is str:
        return value
    texts, waiting = [], [value]
    while waiting:  # not by recursion: how deep a logged value goes is not ours to say
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting.append(part.get("content", part.get("text")))
        elif isinstance(part, list | tuple):
            waiting.extend(reversed(part))
        elif part is not None:
            texts.append(str(part))
    return "\n".join(filter(None, texts)) if texts or isinstance(value, list | tuple) else None
