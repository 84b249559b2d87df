"""Rewards, messages and repeated tables in the completions that TRL's and ms-swift's trainers log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.ingest.base import IngestedRun, Request
from lossbench.ingest.fields import number, whole

_USUAL: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "completion": ("completion",),
    "correct": ("correct", "accuracy", "accuracy_reward", "Accuracy", "MathAccuracy"),
    "advantage": ("advantage", "advantages"),
    "length": (),
    "terminated": (),
    "group": (),
}
_VERDICTS = ("correct", "accuracy", "Accuracy")  # of those, the ones that need not be a reward function
_NOT_REWARDS = {
    "step", "gen_step", "prompt", "completion", "advantage", "advantages", "entropy", "image", "images", "num_turns",
}  # fmt: skip


def training_rows(logs: Iterable[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows of training in a trainer's log, which holds evaluations and a summary too."""
    return [(step, row) for step, row in logs if "loss" in row or "reward" in row]


def evaluated_steps(logs: Iterable[tuple[int, Mapping[str, Any]]]) -> set[int]:
    """Steps (from pairs of step and log row) after which the trainer evaluated."""
    return {step for step, row in logs if any(str(key).startswith("eval_") for key in row)}


def rewards_by_step(logs: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, float]:
    """Logged mean rewards of those steps that were logged alone, not as the mean over several steps."""
    rows = dict(logs)
    alone = {step: number(row.get("reward")) for step, row in rows.items() if step == 1 or step - 1 in rows}
    return {step: reward for step, reward in alone.items() if reward is not None}


def reward_names(logs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the reward functions, from the keys `rewards/<name>/mean` of step logs (old TRL: `rewards/<name>`)."""
    names: dict[str, None] = {}
    for row in logs:
        for key in row:
            parts = key.split("/")
            if parts[0] == "rewards" and len(parts) > 1:
                names.setdefault("/".join(parts[1:-1]) if parts[-1] in ("mean", "std") else "/".join(parts[1:]))
    return list(names)


@dataclass
class Rewards:
    """The reward functions of a run: their names in its log, and their weights where a file holds them.

    `weights` are in the order of the table's columns; none at all (`()`) are known to be 1 each, None is not known.
    `notes` takes what the user should know of how the reward was made.
    """

    names: Sequence[str]
    weights: Sequence[float] | None = None
    notes: list[str] = field(default_factory=list)

    def weights_in(self, columns: Mapping[str, Sequence[Any]], request: Request, place: str) -> Mapping[str, float]:
        """The columns of a table whose weighted sum is the reward; none where it has no column of rewards.

        It is the mapped column; else the sum of those that the log names; else `reward`; else the sum of every column
        of numbers that is nothing else.
        """
        mapped = request.column("reward", (), columns, place)
        given = {mapped: 1.0} if mapped else request.reward_weights
        if missing := [name for name in given if name not in columns]:
            raise UsageError(f"{place}: no column '{missing[0]}' for --reward-weight; it has {', '.join(columns)}")
        named = [name for name in columns if name in self.names]
        if given or (not named and "reward" in columns):
            return given or {"reward": 1.0}
        summands = named or _numeric_columns(columns, request)
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
        if summands and doubt and note not in self.notes:
            self.notes.append(note)
        return dict(zip(summands, weights, strict=True))


def _numeric_columns(columns: Mapping[str, Sequence[Any]], request: Request) -> list[str]:
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


def stage_table(
    columns: Mapping[str, Sequence[Any]],
    lines: Sequence[int],
    file: Path,
    rewards: Rewards,
    run: IngestedRun,
    request: Request,
) -> None:
    """Stage a table whose step, prompt and completion have these names; `lines` are its rows' numbers in the file.

    A row without a step is damage.
    """
    place = f"{file}, line {lines[0]}"
    weights = rewards.weights_in(columns, request, place)
    names = request.fields(_USUAL, columns, place)
    fields: dict[str, Sequence[Any]] = {ours: columns[name] for ours, name in names.items()}
    fields |= {name: [message_text(v) for v in columns[name]] for name in ("prompt", "completion") if name in columns}
    if weights:
        fields["reward"], names["reward"] = weighted_sum(columns, weights), " + ".join(weights)
    run.saw({"step": "step"} | names, columns)
    steps = columns["step"]
    good = [whole(step) is not None for step in steps]
    for line, step, known in zip(lines, steps, good, strict=True):
        if not known:
            run.damage.add(f"{file}, line {line}", f"step {step!r} is no number")
    fields = {name: list(compress(values, good)) for name, values in {"step": steps, **fields}.items()}
    request.staging.add(fields, list(compress(lines, good)), run.keys[0], file)


def weighted_sum(columns: Mapping[str, Sequence[Any]], weights: Mapping[str, float]) -> list[float | None]:
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
        elif isinstance(part, Sequence) and not isinstance(part, str):
            waiting.extend(reversed(part))
        elif part is not None:
            texts.append(str(part))
    if not texts and (value is None or isinstance(value, Mapping)):
        return None
    return "\n".join(filter(None, texts))


class RepeatedTable:
    """Recognises a table that was logged again: these trainers log the latest generation at every optimizer step."""

    def __init__(self) -> None:
        """No table seen yet."""
        self._last: list[Sequence[Any]] = []

    def known_rows(self, *columns: Sequence[Any]) -> int:
        """Number of leading rows of this table that are the whole of the one before; 0 if it is another."""
        known = len(self._last[0]) if self._last and len(self._last) == len(columns) else 0
        if not all(_begins_with(column, last) for column, last in zip(columns, self._last, strict=False)):
            known = 0
        self._last = [*columns]
        return known


def _begins_with(column: Sequence[Any], earlier: Sequence[Any]) -> bool:
    """Whether a column's first values are those of an earlier one, NaN where that is NaN."""
    pairs = zip(column, earlier, strict=False)
    return len(column) >= len(earlier) and all(new == old or (new != new and old != old) for new, old in pairs)


class TrainingTables:
    """Filter for the new rows of training in a file of tables, read in order.

    Rows logged before are not new: a table may repeat the one before, or begin with it and go on. A table that begins
    afresh at a step that has one already is no training's, nor is one of a step that was evaluated and not trained.
    """

    def __init__(self, only_evaluated: set[int]) -> None:
        """`only_evaluated`: steps at which the trainer logged an evaluation and no training."""
        self.left_out: set[int] = set()
        self._only_evaluated = only_evaluated
        self._repeated = RepeatedTable()
        self._steps: set[int] = set()
        self._training, self._first = True, None  # of the table that goes on: whether it is read, and at which step

    def new_rows(self, columns: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]] | None:
        """The columns (step and completion among them) without the rows known already; None where no row is new."""
        steps = {step for step in map(whole, set(map(str, columns["step"]))) if step is not None}
        compared = [columns[name] for name in ("prompt", "completion") if name in columns]
        known, rows = self._repeated.known_rows(*compared), len(columns["completion"])
        if known == 0 and rows:
            self._training = not steps & self._steps and not (steps and steps <= self._only_evaluated)
            self._first = columns["step"][0]
            self.left_out |= set() if self._training else steps
        self._steps |= steps
        if known == rows or not self._training:
            return None
        if known == 0:
            return columns
        rest = {name: values[known:] for name, values in columns.items()}
        return {**rest, "step": [self._first] * (rows - known)}  # one generation, at the step that it began with
