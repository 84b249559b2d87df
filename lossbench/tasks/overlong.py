"""DAPO's soft overlong penalty (arXiv 2503.14476, eq. 13), beside any task's own reward and any loss mode."""

from dataclasses import dataclass

from lossbench.errors import UsageError
from lossbench.tasks.base import Task, WrappedTask
from lossbench.tasks.judging import checked_reward


@dataclass(frozen=True)
class OverlongPenalty:
    """0 up to `max_tokens - cache_tokens`, then falling in a straight line to -1 at `max_tokens`, -1 beyond.

    With `cache_tokens` 0 the slope is missing: 0 up to `max_tokens`, -1 beyond.
    """

    max_tokens: int
    cache_tokens: int

    def __post_init__(self) -> None:
        """Raise UsageError unless 0 <= cache_tokens <= max_tokens and max_tokens >= 1."""
        if self.max_tokens < 1 or not 0 <= self.cache_tokens <= self.max_tokens:
            raise UsageError(
                f"overlong penalty: max_tokens={self.max_tokens}, cache_tokens={self.cache_tokens}; "
                "valid: max_tokens >= 1 and 0 <= cache_tokens <= max_tokens"
            )

    def __call__(self, length_tokens: int) -> float:
        """The penalty, in [-1, 0], of a completion of `length_tokens` tokens (EOS included)."""
        free_tokens = self.max_tokens - self.cache_tokens
        if length_tokens <= free_tokens:
            return 0.0
        if length_tokens > self.max_tokens:
            return -1.0
        return (free_tokens - length_tokens) / self.cache_tokens


class WithOverlongPenalty(WrappedTask):
    """A task whose reward has the penalty added."""

    def __init__(self, task: Task, penalty: OverlongPenalty) -> None:
        super().__init__(task)
        self.penalty = penalty

    def reward(self, correct: bool | None, terminated: bool, length_tokens: int) -> float | None:
        """The wrapped task's reward plus the penalty of the length; None where it gives none."""
        reward = checked_reward(self.name, self._task.reward(correct, terminated, length_tokens))
        return None if reward is None else reward + self.penalty(length_tokens)
