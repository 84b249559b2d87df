"""`lossbench tasks`: what there is to train on, and how a task judges."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table

if TYPE_CHECKING:
    from lossbench.tasks.base import Prompt, Task

_MORE = {
    "reasoning-gym:NAME": "a generator of reasoning-gym with its own scorer (extra `tasks`)",
    "file.py:Task": "your own: a class or function in a Python file",
}


def tasks(
    name: Annotated[o.Text, Argument(help="A task, reasoning-gym:NAME, or file.py:Task.")] = None,
    show: Annotated[int, o.option("How many prompts to show.", min=1)] = 3,
    settings: Annotated[
        o.Texts, o.option("A parameter of the task: --set task_params.digits=2; repeatable.", "--set")
    ] = None,
    dataset: Annotated[o.Text, o.option("jsonl, json, csv or parquet file, or hub:name.")] = None,
    verifier: Annotated[o.Text, o.option("numeric, exact, choice or math, for --dataset.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """List the tasks, or show what one asks and how it judges.

    For each prompt a right and a wrong answer with their rewards, and the reward of the right answer cut at the cap.
    Your own task is one file: --task mytask.py:Task.

    Example: lossbench tasks arithmetic --set task_params.digits=2 --show 3
    """
    from lossbench.tasks import TASKS, make_task

    if name is None and dataset is None:
        about = {task: entry.summary for task, entry in TASKS.items()} | _MORE
        print_table([{"task": task, "about": text} for task, text in about.items()], None, format)
        return
    params = o.params(settings, "task_params")["task_params"]
    params |= {key: value for key, value in (("path", dataset), ("verifier", verifier)) if value is not None}
    task = make_task(name or "dataset", params)
    print_table([_shown(task, prompt) for prompt in task.train_prompts[:show]], None, format)


def _shown(task: "Task", prompt: "Prompt") -> dict[str, Any]:
    def reward(completion: str, ended: bool) -> float | None:
        return task.reward(task.verify(completion, prompt.answer), ended, task.shortest_answer_tokens)

    right = getattr(task, "right_completion", lambda prompt: prompt.answer)(prompt)
    wrong = _wrong(task, prompt, right)
    return {
        "prompt": prompt.text, "answer": prompt.answer, "right": right, "reward_right": reward(right, True),
        "reward_cut": reward(right, False), "wrong": wrong, "reward_wrong": reward(wrong, True),
    }  # fmt: skip


def _wrong(task: "Task", prompt: "Prompt", right: str) -> str:
    """The right completion with its last digit changed, where that makes it wrong; else a plain refusal."""
    for at in range(len(right) - 1, -1, -1):
        if right[at].isdecimal():
            changed = f"{right[:at]}{(int(right[at]) + 1) % 10}{right[at + 1 :]}"
            if not task.verify(changed, prompt.answer):
                return changed
    return "I do not know."
