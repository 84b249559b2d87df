"""Tasks: prompts, and a verifiable reward for their completions.

A new task is one file that defines a factory, and one row in `lossbench/tasks/__init__.py`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from lossbench.tasks.verifiers import Verifier


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


class VerifiedTask:
    """Base of the built-in tasks: a verifier judges the answer, and a right one that ended by itself earns 1.0."""

    verifier: Verifier

    def verify(self, completion: str, answer: str) -> bool:
        """The verifier's verdict on the completion."""
        return self.verifier(completion, answer)

    def reward(self, correct: bool | None, terminated: bool, length_tokens: int) -> float:
        """1.0 for a right answer that ended before the cap, else 0.0."""
        return 1.0 if correct and terminated else 0.0


class WrappedTask:
    """Base class that delegates to another task, also for the optional attributes (`chat`, `right_completion`)."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.name, self.shortest_answer_tokens = task.name, task.shortest_answer_tokens
        self.train_prompts, self.eval_prompts = task.train_prompts, task.eval_prompts

    def verify(self, completion: str, answer: str) -> bool | None:
        """The wrapped task's verdict on the answer."""
        return self._task.verify(completion, answer)

    def reward(self, correct: bool | None, terminated: bool, length_tokens: int) -> float | None:
        """The wrapped task's reward."""
        return self._task.reward(correct, terminated, length_tokens)

    def __getattr__(self, name: str) -> Any:
        """Attributes that the wrapper lacks, from the wrapped task."""
        return getattr(self._task, name)
