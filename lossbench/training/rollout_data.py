"""The prompts of a whole run laid out as one pass, and the reward function that judges their completions."""

from typing import Any

import numpy as np
from datasets import Dataset

from lossbench.tasks.base import Task
from lossbench.tasks.judging import judge, plain_text

_PROMPT_STREAM = 1


def prompt_order(prompts: int, draws: int, seed: int) -> np.ndarray:
    """Indices (draws,) of the prompts in the order of training: one shuffled pass over all of them after another.

    A function of the seed and the position alone, so a run that continues from a checkpoint meets the same prompts.
    """
    passes = -(-draws // prompts)
    orders = [np.random.default_rng([seed, _PROMPT_STREAM, i]).permutation(prompts) for i in range(passes)]
    return np.concatenate(orders)[:draws]


def training_data(task: Task, *, generations: int, prompts_per_generation: int, seed: int) -> Dataset:
    """A row per group, in order: prompt, answer, prompt_id, and the group's number and generation (from 1)."""
    prompts = task.train_prompts
    order = prompt_order(len(prompts), generations * prompts_per_generation, seed)
    return Dataset.from_list(
        [
            {
                "prompt": prompts[number].text,
                "answer": prompts[number].answer,
                "prompt_id": prompts[number].id,
                "group": i % prompts_per_generation,
                "generation": 1 + i // prompts_per_generation,
            }
            for i, number in enumerate(order)
        ]
    )


class TaskReward:
    """TRL's reward function for a task; it also hands the verdicts to the trainer's record."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.__name__ = task.name
        self.trainer: Any = None  # set once the trainer exists, which needs its reward functions first

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """Rewards of the local rows."""
        outcomes = [
            judge(self.task, *row, self.trainer.eos_token_ids)
            for row in zip(map(plain_text, prompts), answer, map(plain_text, completions), completion_ids, strict=True)
        ]
        self.trainer.note_outcomes(outcomes)
        return [outcome["reward"] for outcome in outcomes]
