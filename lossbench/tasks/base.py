"""Tasks: prompts, and a verifiable reward for their completions.

A new task is one file that defines a factory, and one row in `lossbench/tasks/__init__.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Prompt:
    """One prompt: its number within the task, its text, and the answer that the verifier compares with."""

    id: int
    text: str
    answer: str


class Task(Protocol):
    """Prompts with a verifier. `verify` judges the answer alone; `reward` may also look at how the completion ended.

    Optional: `chat`, whether prompts are messages of a user; `forced_tokens`, tokens at the start of a completion that
    the task dictates, so that ending before them is no choice (default 0); `verifier`, which counts its errors;
    `right_completion(prompt)`.
    """

    name: str

    @property
    def train_prompts(self) -> list[Prompt]:
        """The prompts to train on, in a fixed order."""
        ...

    @property
    def eval_prompts(self) -> list[Prompt]:
        """The prompts to evaluate on, in a fixed order."""
        ...

    @property
    def shortest_answer_tokens(self) -> int:
        """Fewest tokens, EOS included, that a rewarded completion can have: a lower cap can teach nothing."""
        ...

    def verify(self, completion: str, answer: str) -> bool | None:
        """Whether `completion` gives `answer`, even if it was cut off; None: cannot tell. Never raises on odd text."""
        ...

    def reward(self, correct: bool | None, terminated: bool, length_tokens: int) -> float | None:
        """Reward of a completion of `length_tokens` tokens, EOS included; None: none, the row does not train."""
        ...


class WrappedTask:
    """Base class that delegates to another task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name = task.name

    @property
    def train_prompts(self) -> list[Prompt]:
        """The wrapped task's training prompts."""
        return self._task.train_prompts

    @property
    def eval_prompts(self) -> list[Prompt]:
        """The wrapped task's evaluation prompts."""
        return self._task.eval_prompts

    @property
    def shortest_answer_tokens(self) -> int:
        """The wrapped task's shortest rewarded completion, tokens."""
        return self._task.shortest_answer_tokens

    def verify(self, completion: str, answer: str) -> bool | None:
        """The wrapped task's verdict on the answer."""
        return self._task.verify(completion, answer)

    def reward(self, correct: bool | None, terminated: bool, length_tokens: int) -> float | None:
        """The wrapped task's reward."""
        return self._task.reward(correct, terminated, length_tokens)

    def __getattr__(self, name: str) -> Any:
        """Optional attributes (`chat`, `verifier`, `right_completion`) come from the wrapped task."""
        return getattr(self._task, name)


@dataclass(frozen=True)
class TaskEntry:
    """A registry row: how to make the task from its parameters, and one line about it."""

    factory: Callable[[Mapping[str, Any]], Task]
    summary: str


def correct_and_terminated(correct: bool | None, terminated: bool) -> float:
    """The reward of the built-in tasks: 1.0 for a right answer that ended by itself, else 0.0."""
    return 1.0 if correct and terminated else 0.0
