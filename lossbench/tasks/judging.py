"""The verdict on one completion: length, ending, correctness and reward."""

from collections.abc import Sequence
from typing import Any

from lossbench.tasks.base import Task


def judge(
    task: Task, prompt: str, answer: str, text: str, ids: Sequence[int], eos_ids: Sequence[int]
) -> dict[str, Any]:
    """What the tables say of one completion: its length in tokens, ending, correctness, reward and text."""
    terminated = bool(ids) and ids[-1] in eos_ids
    correct = task.verify(text, answer)
    return {
        "length_tokens": len(ids),
        "terminated": terminated,
        "correct": correct,
        "reward": task.reward(correct, terminated, len(ids)),
        "prompt": prompt,
        "completion": text,
    }


def plain_text(message: Any) -> str:
    """The text of a prompt or completion, given as text or as chat messages."""
    return message if isinstance(message, str) else "\n".join(part["content"] for part in message)
