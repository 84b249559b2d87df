"""Prompts as a policy reads them: those of a chat task go through the tokenizer's chat template, others stay."""

from typing import Any

from lossbench.policies.hub import chat_renderer
from lossbench.tasks.base import Prompt, Task


class ChatTask:
    """A task whose prompt texts are the rendered messages; everything else is the task's own."""

    def __init__(self, task: Task, tokenizer: Any, reference: str) -> None:
        """Raises UsageError where the tokenizer of `reference` has no chat template, or the template fails."""
        render = chat_renderer(tokenizer, reference)
        self._task = task
        self.name = task.name
        self.train_prompts = [Prompt(p.id, render(p.text), p.answer) for p in task.train_prompts]
        self.eval_prompts = [Prompt(p.id, render(p.text), p.answer) for p in task.eval_prompts]
        self.shortest_answer_tokens = task.shortest_answer_tokens

    def verify(self, completion: str, answer: str) -> bool:
        """The wrapped task's word on the answer."""
        return self._task.verify(completion, answer)

    def reward(self, correct: bool, terminated: bool, length_tokens: int) -> float:
        """The wrapped task's reward."""
        return self._task.reward(correct, terminated, length_tokens)

    def __getattr__(self, name: str) -> Any:
        """Optional attributes (`verifier`) come from the wrapped task."""
        return getattr(self._task, name)


def as_read_by(task: Task, tokenizer: Any, reference: str) -> Task:
    """`task` with its prompts as the policy `reference` reads them: rendered where the task has `chat` set."""
    return ChatTask(task, tokenizer, reference) if getattr(task, "chat", False) else task
