"""Tasks: prompts with a verifiable reward. A new one is a file with a class, and a row in `TASKS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lossbench.errors import UsageError, unknown
from lossbench.tasks.arithmetic import Arithmetic, ArithmeticParams
from lossbench.tasks.base import Prompt, Task
from lossbench.tasks.countdown import Countdown, CountdownParams
from lossbench.tasks.dataset import HUB, DatasetParams, DatasetTask
from lossbench.tasks.overlong import OverlongPenalty, WithOverlongPenalty
from lossbench.tasks.params import TaskParams, read_params
from lossbench.tasks.reasoning_gym import PREFIX, ReasoningGymParams, ReasoningGymTask
from lossbench.tasks.selfcheck import SelfCheck
from lossbench.tasks.user_file import is_file_reference, task_from_file

__all__ = ["TASKS", "Prompt", "Task", "TaskEntry", "make_task", "remote_data"]


@dataclass(frozen=True)
class TaskEntry:
    """A registry row: what makes the task from its parameters, what these are, and one line about it."""

    make: Callable[[Any], Task]
    params: type[TaskParams]
    summary: str


TASKS: dict[str, TaskEntry] = {
    "selfcheck": TaskEntry(
        lambda _: SelfCheck(), TaskParams, "one-digit sums, then any number of self-checks (the built-in experiment)"
    ),
    "arithmetic": TaskEntry(
        Arithmetic, ArithmeticParams, "sums as plain text, with worked examples, or as a chat question"
    ),
    "countdown": TaskEntry(Countdown, CountdownParams, "combine numbers with + - * / into a target"),
    "dataset": TaskEntry(
        DatasetTask, DatasetParams, "prompts and answers of a jsonl, json, csv or parquet file, or of hub:name"
    ),
}


class _Overlong(TaskParams):
    overlong_max_tokens: int = 0
    overlong_cache_tokens: int = 0


def make_task(name: str, params: Mapping[str, Any] | None = None) -> Task:
    """The task `name`: a row of `TASKS`, `reasoning-gym:NAME`, or `file.py:Name`, with its parameters.

    Every task also takes `overlong_max_tokens` (DAPO's soft overlong penalty, off at 0; DAPO's is the completion cap)
    and with it `overlong_cache_tokens`. Raises UsageError on an unknown name or parameter.
    """
    own, overlong = _split(name, params)
    if name in TASKS:
        task = TASKS[name].make(read_params(name, own, TASKS[name].params))
    elif name.startswith(PREFIX):
        task = ReasoningGymTask(name.removeprefix(PREFIX), read_params(name, own, ReasoningGymParams))
    elif is_file_reference(name):
        task = task_from_file(name, own)
    else:
        raise UsageError(unknown("task", name, [*TASKS, f"{PREFIX}NAME", "file.py:Task"]))
    return WithOverlongPenalty(task, overlong) if overlong else task


def remote_data(name: str, params: Mapping[str, Any] | None = None) -> str | None:
    """The data set on the hub that the task asks for, None where it needs none. Raises UsageError as `make_task`."""
    own, _ = _split(name, params)
    path = read_params(name, own, DatasetParams).path if name == "dataset" else ""
    return path if path.startswith(HUB) else None


def _split(name: str, params: Mapping[str, Any] | None) -> tuple[dict[str, Any], OverlongPenalty | None]:
    """The task's own parameters, and the penalty that they ask for."""
    own = dict(params or {})
    overlong = read_params(name, {key: own.pop(key) for key in _Overlong.model_fields if key in own}, _Overlong)
    max_tokens, cache_tokens = overlong.overlong_max_tokens, overlong.overlong_cache_tokens
    if cache_tokens and not max_tokens:
        raise UsageError(
            f"task '{name}': overlong_cache_tokens={cache_tokens} is the slope below overlong_max_tokens, which is "
            "off: give both (in DAPO the latter is max_completion_length)"
        )
    return own, OverlongPenalty(max_tokens, cache_tokens) if max_tokens else None
