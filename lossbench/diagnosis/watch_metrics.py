"""Figures of one generation for a trainer's loggers: lengths, stopping hazards, pushes of this and other modes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lossbench.diagnosis.diagnose import compared_modes
from lossbench.loss.modes import Mode
from lossbench.metrics.push import hazards, pushes
from lossbench.store.step_row import Rollout


def group_numbers(prompts: Sequence[Any], num_generations: int | None) -> list[tuple[int, int]]:
    """Number of the group and of the sample in it, per row: rows of one prompt in a row, at most a group's size.

    >>> group_numbers(["a", "a", "b", "b", "b", "b"], 2)
    [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    """
    found: list[tuple[int, int]] = []
    for i, prompt in enumerate(prompts):
        if i == 0:
            found.append((0, 0))
            continue
        group, sample = found[-1]
        same = prompt == prompts[i - 1] and sample + 1 != num_generations
        found.append((group, sample + 1) if same else (group + 1, 0))
    return found


def length_metrics(
    rows: Sequence[Rollout], figures: Mapping[str, Any], mode: Mode | None, group_size: int | None
) -> dict[str, float]:
    """Metrics of one generation for the trainer's loggers; figures that it lacks are left out.

    Pushes are over the groups that are whole on this process, of the run's own mode and of `COMPARED`.
    """
    wrong, right = figures["length_incorrect"], figures["length_correct"]
    found = {
        "length_incorrect": wrong,
        "length_correct": right,
        "length_ratio": wrong / right if wrong and right else None,
        "truncated_incorrect": _truncated(rows, False),
        "truncated_correct": _truncated(rows, True),
    }
    names = ("group", "length_tokens", "terminated", "correct", "reward")
    table = {name: np.array([getattr(row, name) for row in rows], dtype=float) for name in names}  # None is NaN
    table["step"] = np.zeros(len(rows))
    found |= {f"stop_{name}": _first(values) for name, values in hazards(table).items() if name != "step"}
    if group_size is not None:
        sizes = np.bincount(table["group"].astype(int))[table["group"].astype(int)]
        whole = {name: values[sizes == group_size] for name, values in table.items()}
        for name, pushed in pushes(whole, compared_modes(mode)).items() if len(whole["step"]) else ():
            found |= {f"{key}/{name}": _first(pushed[key]) for key in ("push_incorrect", "push_correct")}
    return {name: float(value) for name, value in found.items() if value is not None}


def _first(values: np.ndarray) -> float | None:
    return float(values[0]) if len(values) and not np.isnan(values[0]) else None


def _truncated(rows: Sequence[Rollout], correct: bool) -> float | None:
    ended = [row.terminated for row in rows if row.correct is correct and row.terminated is not None]
    return ended.count(False) / len(ended) if ended else None
