"""`lossbench tasks`: what there is to train on, and how a task judges."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._options import TaskSetOption, task_params
from lossbench.cli._shared import Format, FormatOption, print_table

if TYPE_CHECKING:
    from lossbench.tasks.base import Prompt, Task

_SHOWN = ["prompt", "answer", "right", "reward_right", "reward_cut", "wrong", "reward_wrong"]


def tasks(
    name: Annotated[str | None, typer.Argument(help="A task, reasoning-gym:NAME, or file.py:Task.")] = None,
    show: Annotated[int, typer.Option(min=1, help="How many prompts to show.")] = 3,
    settings: TaskSetOption = None,
    dataset: Annotated[str | None, typer.Option(help="jsonl, json, csv or parquet file, or hub:name.")] = None,
    verifier: Annotated[str | None, typer.Option(help="numeric, exact, choice or math, for --dataset.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List the tasks, or show what one asks and how it judges.

    For each prompt a right and a wrong answer with their rewards, and the reward of the right answer cut at the cap.
    Your own task is one file: --task mytask.py:Task.

    Example: lossbench tasks arithmetic --set task_params.digits=2 --show 3
    """
    from lossbench.tasks import TASKS, make_task

    if name is None and dataset is None:
        rows = [{"task": task, "about": entry.summary} for task, entry in TASKS.items()]
        rows.append(
            {"task": "reasoning-gym:NAME", "about": "a generator of reasoning-gym with its own scorer (extra `tasks`)"}
        )
        rows.append({"task": "file.py:Task", "about": "your own: a class or function in a Python file"})
        print_table(rows, format=format)
        return
    params = task_params(settings or [])
    params |= {key: value for key, value in (("path", dataset), ("verifier", verifier)) if value is not None}
    task = make_task(name or "dataset", params)
    print_table([_shown(task, prompt) for prompt in task.train_prompts[:show]], _SHOWN, format)


def _shown(task: "Task", prompt: "Prompt") -> dict[str, Any]:
    right, wrong = _right(task, prompt), _wrong(task, prompt)
    tokens = task.shortest_answer_tokens
    return {
        "prompt": prompt.text,
        "answer": prompt.answer,
        "right": right,
        "reward_right": task.reward(task.verify(right, prompt.answer), True, tokens),
        "reward_cut": task.reward(task.verify(right, prompt.answer), False, tokens),
        "wrong": wrong,
        "reward_wrong": task.reward(task.verify(wrong, prompt.answer), True, tokens),
    }


def _right(task: "Task", prompt: "Prompt") -> str:
    solve = getattr(task, "right_completion", None)
    return solve(prompt) if solve is not None else prompt.answer


def _wrong(task: "Task", prompt: "Prompt") -> str:
    """The right completion with its last digit changed, where that makes it wrong; else a plain refusal."""
    right = _right(task, prompt)
    for at in range(len(right) - 1, -1, -1):
        if right[at].isdecimal():
            changed = f"{right[:at]}{(int(right[at]) + 1) % 10}{right[at + 1 :]}"
            if not task.verify(changed, prompt.answer):
                return changed
    return "I do not know."
