"""A user's own task: one Python file given by path, `mytask.py:Task`."""

import inspect
from collections.abc import Mapping
from typing import Any

from lossbench.errors import UsageError
from lossbench.tasks.base import Prompt, Task, WrappedTask
from lossbench.tasks.judging import checked_verdict
from lossbench.tasks.verifiers import Verifier
from lossbench.user_code import attribute_of

_NEEDED = ("name", "train_prompts", "eval_prompts", "shortest_answer_tokens", "verify", "reward")


class UserTask(WrappedTask):
    """A user's task whose `verify` cannot raise: `verifier` counts and logs its errors, which mean "not correct".

    `verifier` is the task's own where it has one, so that the errors inside it are in the same count.
    """

    def __init__(self, task: Task, reference: str) -> None:
        super().__init__(task)
        own = getattr(task, "verifier", None)
        self.verifier = own if isinstance(own, Verifier) else Verifier(reference, task.verify)

    def verify(self, completion: str, answer: str) -> bool | None:
        """The user's verdict on the answer. Raises UsageError where it is none (`checked_verdict`)."""
        return checked_verdict(self.name, self.verifier.guarded(self._task.verify, completion, answer))


def is_file_reference(name: str) -> bool:
    """Whether `name` has the form `path/to/file.py:Name`.

    >>> is_file_reference("mytask.py:Task"), is_file_reference("selfcheck")
    (True, False)
    """
    return name.partition(":")[0].endswith(".py")


def task_from_file(reference: str, params: Mapping[str, Any]) -> Task:
    """The task that `reference` names: a class or a function of its parameters, called with `params` as keywords.

    Raises UsageError where the file or the name is missing, its code fails, or what it makes is not a task.
    """
    factory = attribute_of(reference, "task")
    try:
        task = factory(**params)
    except UsageError:
        raise
    except Exception as error:  # the user's own code: its failure is the user's to read, in one line
        raise UsageError(f"task {reference}: {type(error).__name__}: {error}") from error
    _check_task(task, reference)
    return UserTask(task, reference)


def _check_task(task: Any, reference: str) -> None:
    missing = [name for name in _NEEDED if not hasattr(task, name)]
    if missing:
        raise UsageError(f"task {reference}: lacks {', '.join(missing)}; a task has {', '.join(_NEEDED)}")
    for which in ("verify", "reward"):
        if inspect.iscoroutinefunction(getattr(task, which)):
            raise UsageError(f"task {reference}: {which} is asynchronous; valid: a plain function")
    for which in ("train_prompts", "eval_prompts"):
        prompts = getattr(task, which)
        if not prompts or not all(isinstance(prompt, Prompt) for prompt in prompts):
            raise UsageError(f"task {reference}: {which} must be a non-empty list of lossbench.tasks.base.Prompt")
