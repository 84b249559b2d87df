"""The verdict on one completion, and the one place where rewards and verdicts of any task are checked."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.tasks.base import Task

UNJUDGED = {
    "verifier_errors": "the verifier itself failed on {:,} completions, which count as incorrect",
    "unjudged": "{:,} completions have no verdict: neither right nor wrong, they are in no mean over either",
    "unrewarded": "{:,} completions have no reward: they are left out of their group, and train nothing",
}
"""Counts in run.json of completions that were not judged as asked, and the sentence on each."""


def judging_problems(run: Mapping[str, Any]) -> list[str]:
    """A sentence per count of `UNJUDGED` that is above 0 in a run's run.json."""
    return [sentence.format(run[name]) for name, sentence in UNJUDGED.items() if run.get(name)]


def judge(
    task: Task, prompt: str, answer: str, text: str, ids: Sequence[int], eos_ids: Sequence[int]
) -> dict[str, Any]:
    """Table columns of one completion: its length in tokens, ending, correctness, reward and text.

    `correct` is None where the task cannot tell, `reward` None where it gives none (None or NaN); such rows are left
    out of means and of their group's baseline. Raises UsageError for a verdict or reward that is neither.
    """
    terminated = bool(ids) and ids[-1] in eos_ids
    correct = checked_verdict(task.name, task.verify(text, answer))
    return {
        "length_tokens": len(ids),
        "terminated": terminated,
        "correct": correct,
        "reward": checked_reward(task.name, task.reward(correct, terminated, len(ids))),
        "prompt": prompt,
        "completion": text,
    }


def checked_verdict(task: str, value: Any) -> bool | None:
    """A task's verdict: a truth value (0 is false, other whole numbers true), or None where it cannot tell.

    Raises UsageError for anything else, such as a score between.
    """
    number = _number(value)
    if number is None or number.is_integer():
        return None if number is None else bool(number)
    raise UsageError(f"task '{task}': verify returned {one_line(repr(value), 60)}; valid: True, False, or None")


def checked_reward(task: str, value: Any) -> float | None:
    """A task's reward: a finite number, or None where it gives none (NaN too). Raises UsageError for anything else."""
    number = _number(value)
    if number is not None and not math.isfinite(number):
        raise UsageError(
            f"task '{task}': reward is {one_line(repr(value), 60)}; valid: a finite number, or None for none"
        )
    return number


def _number(value: Any) -> float | None:
    """A number as a float: infinite where it has none as a float or is no number at all; None for None and NaN."""
    if value is None:
        return None
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a scalar of numpy
        value = value.item()
    try:
        number = float(value) if isinstance(value, Real) else math.inf
    except OverflowError:
        number = math.inf
    return None if math.isnan(number) else number


def plain_text(message: Any) -> str:
    """The text of a prompt or completion, given as text or as chat messages."""
    return message if isinstance(message, str) else "\n".join(part["content"] for part in message)
