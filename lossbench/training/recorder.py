"""What one run writes while it goes: a row per optimizer step, a row per completion."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lossbench.store.write import PartWriter


@dataclass(frozen=True)
class Rollout:
    """One sampled completion, as the verifier and the trainer saw it."""

    generation: int
    prompt_id: int
    group: int
    sample: int
    length_tokens: int
    terminated: bool
    reward: float | None
    correct: bool | None
    advantage: float
    prompt: str | None
    completion: str | None


@dataclass(frozen=True)
class StepStats:
    """Sums over one optimizer step, over all micro-batches and ranks."""

    step: int
    loss: float
    tokens: int
    entropy_sum: float
    clipped_tokens: float | None
    kl_sum: float | None
    weight_sum: float
    grad_norm: float | None
    lr: float | None
    wall_s: float


class Recorder:
    """Writes the part files of a run; `on_step(step, reward_mean, length_mean)` is told of each step."""

    def __init__(
        self,
        writer: PartWriter,
        labels: Mapping[str, Any],
        *,
        keep_text: bool = True,
        on_step: Callable[[int, float | None, float | None], None] | None = None,
    ) -> None:
        self.writer = writer
        self.labels = dict(labels)
        self.keep_text = keep_text
        self.on_step = on_step
        self._unused: dict[int, Rollout] = {}
        self._sampled: list[Rollout] = []

    def begin_generation(self, first_row: int, rollouts: Sequence[Rollout]) -> None:
        """A sampling round gave these completions, whose rows are numbered from `first_row`."""
        self._unused.update(enumerate(rollouts, first_row))
        self._sampled.extend(rollouts)

    def use_rows(self, step: int, term_of_row: Mapping[int, float], scalar: float) -> None:
        """Write the rows that are used for the first time, with the step and their weight (row term times `scalar`)."""
        fresh = [row for row in sorted(term_of_row) if row in self._unused]
        rows = [self._row(step, self._unused.pop(row), term_of_row[row] * scalar) for row in fresh]
        if rows:
            self._append("rollouts", step, rows)

    def end_step(self, stats: StepStats) -> None:
        """Write the step's row."""
        sampled, self._sampled = self._sampled, []
        row = {**step_row(stats), **(sampling_row(sampled) if sampled else {})}
        self._append("steps", stats.step, [row])
        if self.on_step:
            self.on_step(stats.step, row.get("reward_mean"), row.get("length_mean"))

    def _row(self, step: int, rollout: Rollout, weight: float) -> dict[str, Any]:
        text = {} if self.keep_text else {"prompt": None, "completion": None}
        return {"step": step, "token_weight": weight, **rollout.__dict__, **text}

    def _append(self, table: str, step: int, rows: list[dict[str, Any]]) -> None:
        self.writer.append(table, step, [{**self.labels, **row} for row in rows])


def step_row(stats: StepStats) -> dict[str, Any]:
    """The training columns of one step; means per token, null where the step had no token."""
    tokens = stats.tokens or None
    return {
        "step": stats.step,
        "loss": _finite(stats.loss),
        "grad_norm": _finite(stats.grad_norm),
        "entropy": stats.entropy_sum / tokens if tokens else None,
        "clip_frac": stats.clipped_tokens / tokens if tokens and stats.clipped_tokens is not None else None,
        "kl": stats.kl_sum / tokens if tokens and stats.kl_sum is not None else None,
        "lr": stats.lr,
        "weight_sum": stats.weight_sum,
        "tokens": stats.tokens,
        "wall_s": stats.wall_s,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def sampling_row(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """The sampling columns over freshly sampled rows: pooled means, null where there is nothing to average."""

    def mean(values: list[float]) -> float | None:
        return fmean(values) if values else None

    rewards: dict[tuple[int, int], list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            rewards.setdefault((rollout.generation, rollout.group), []).append(rollout.reward)
    return {
        "generation": rollouts[-1].generation,
        "reward_mean": mean([r.reward for r in rollouts if r.reward is not None]),
        "length_mean": mean([r.length_tokens for r in rollouts]),
        "length_correct": mean([r.length_tokens for r in rollouts if r.correct]),
        "length_incorrect": mean([r.length_tokens for r in rollouts if r.correct is False]),
        "length_terminated": mean([r.length_tokens for r in rollouts if r.terminated]),
        "truncated_frac": mean([not r.terminated for r in rollouts]),
        "zero_std_frac": mean([max(group) == min(group) for group in rewards.values()]),
    }
