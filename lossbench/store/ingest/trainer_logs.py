"""What the logs of TRL's and ms-swift's trainers have in common: metric names, reward columns, repeated tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STEP_KEYS: dict[str, tuple[str, ...]] = {
    "reward_mean": ("reward",),
    "length_mean": ("completions/mean_length", "completion_length"),
    "length_terminated": ("completions/mean_terminated_length",),
    "truncated_frac": ("completions/clipped_ratio",),
    "zero_std_frac": ("frac_reward_zero_std",),
    "loss": ("loss",),
    "grad_norm": ("grad_norm",),
    "entropy": ("entropy", "entropy/mean"),
    "clip_frac": ("clip_ratio/region_mean", "cispo_clip_ratio", "clip_ratio"),
    "kl": ("kl",),
    "lr": ("learning_rate",),
    "wall_s": ("step_time",),
}
"""Columns of `steps` -> the keys of TRL's GRPOTrainer (0.14 to 1.16) and ms-swift's (3 and 4), newest first."""

CORRECT_COLUMNS = ("correct", "accuracy", "accuracy_reward", "Accuracy", "MathAccuracy")
_NOT_REWARDS = {
    "step", "gen_step", "prompt", "completion", "advantage", "advantages", "entropy", "image", "images", "num_turns",
}  # fmt: skip


def reward_names(logs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the reward functions, from the keys `rewards/<name>/mean` of step logs (old TRL: `rewards/<name>`)."""
    names: dict[str, None] = {}
    for row in logs:
        for key in row:
            parts = key.split("/")
            if parts[0] == "rewards" and len(parts) > 1:
                names.setdefault("/".join(parts[1:-1]) if parts[-1] in ("mean", "std") else "/".join(parts[1:]))
    return list(names)


def reward_columns(columns: Mapping[str, Sequence[Any]], known: Sequence[str], mapped: str | None) -> list[str]:
    """The columns whose sum is the reward.

    The mapped one; else `reward`; else those that the step logs name; else every column of numbers that is nothing
    else.
    """
    if mapped is not None:
        return [mapped]
    if "reward" in columns:
        return ["reward"]
    named = [name for name in known if name in columns]
    return named or [name for name, values in columns.items() if name not in _NOT_REWARDS and _numeric(values)]


def _numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)


def summed(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[float | None]:
    """Row by row sum of the named columns; nulls and NaN are left out, a row of nothing else is null."""
    totals: list[float | None] = []
    for values in zip(*(columns[name] for name in names), strict=True):
        present = [float(value) for value in values if value is not None and value == value]
        totals.append(sum(present) if present else None)
    return totals


def message_text(value: Any) -> str | None:
    """Plain text of a prompt or completion: text itself, or the contents of a list of chat messages, one per line.

    >>> message_text([{"role": "user", "content": "What is 1 + 1?"}])
    'What is 1 + 1?'
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return message_text(value.get("content", value.get("text")))
    if isinstance(value, Sequence):
        return "\n".join(text for part in value if (text := message_text(part)))
    return str(value)


class RepeatedTable:
    """Recognises a table that was logged again: these trainers log the latest generation at every optimizer step."""

    def __init__(self) -> None:
        """No table seen yet."""
        self._last: int | None = None

    def __call__(self, *columns: Sequence[Any]) -> bool:
        """Whether the columns equal those of the call before."""
        digest = hash(tuple(tuple(map(str, column)) for column in columns))
        repeated = digest == self._last
        self._last = digest
        return repeated
