"""Prompts as a policy reads them: those of a chat task go through the tokenizer's chat template, others stay."""

from typing import Any

from lossbench.policies.hub import chat_renderer
from lossbench.tasks.base import Prompt, Task, WrappedTask


class ChatTask(WrappedTask):
    """A task whose prompt texts are the rendered messages."""

    def __init__(self, task: Task, tokenizer: Any, reference: str) -> None:
        """Raises UsageError where the tokenizer of `reference` has no chat template, or the template fails."""
        super().__init__(task)
        render = chat_renderer(tokenizer, reference)
        self._train, self._eval = (
            [Prompt(p.id, render(p.text), p.answer) for p in prompts]
            for prompts in (task.train_prompts, task.eval_prompts)
        )

    @property
    def train_prompts(self) -> list[Prompt]:
        """The wrapped task's training prompts, rendered."""
        return self._train

    @property
    def eval_prompts(self) -> list[Prompt]:
        """The wrapped task's evaluation prompts, rendered."""
        return self._eval


def as_read_by(task: Task, tokenizer: Any, reference: str) -> Task:
    """`task` with its prompts as the policy `reference` reads them: rendered where the task has `chat` set."""
    return ChatTask(task, tokenizer, reference) if getattr(task, "chat", False) else task
