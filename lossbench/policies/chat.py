"""Prompts as a policy reads them: those of a chat task go through the tokenizer's chat template, others stay."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.tasks.base import Task, WrappedTask

PLAIN = "ask in plain text with --set task_params.chat=false (arithmetic: --set task_params.form=plain)"


class ChatTask(WrappedTask):
    """A task whose prompt texts are the rendered messages."""

    def __init__(self, task: Task, tokenizer: Any, reference: str) -> None:
        super().__init__(task)
        render = chat_renderer(tokenizer, reference)
        self.train_prompts, self.eval_prompts = (
            [replace(prompt, text=render(prompt.text)) for prompt in prompts]
            for prompts in (task.train_prompts, task.eval_prompts)
        )


def as_read_by(task: Task, tokenizer: Any, reference: str) -> Task:
    """`task` with its prompts as the policy `reference` reads them: rendered where the task has `chat` set.

    Raises UsageError where the tokenizer has no chat template, or the template fails.
    """
    return ChatTask(task, tokenizer, reference) if getattr(task, "chat", False) else task


def chat_renderer(tokenizer: Any, reference: str) -> Callable[[str], str]:
    """Text -> the model's input text for it as a user's message, by the tokenizer's chat template.

    A leading BOS of the template is dropped where the tokenizer adds one itself. Raises UsageError as `as_read_by`.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"model '{reference}' has no chat template: {PLAIN}")
    bos = tokenizer.bos_token
    adds_bos = bos is not None and tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]

    def render(text: str) -> str:
        message = {"role": "user", "content": text}
        try:
            rendered = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is code of the model's author and may raise anything
            raise UsageError(
                f"model '{reference}': its chat template fails ({type(error).__name__}: {one_line(error)}): {PLAIN}"
            ) from error
        return rendered.removeprefix(bos) if adds_bos else rendered

    return render
