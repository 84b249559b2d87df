"""The row of an optimizer step: which columns it has, and how each follows from completions and training sums.

The trainer's recorder, the ingested logs and the metrics all take a step's figures from here. Every figure over
completions is a `Mean`; `sampling_row` works them out for rows in memory, `step_sums_sql` for a table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

EQUAL_REWARDS = 1e-8
"""Rewards of a group that differ by no more than this, or this share of the largest, are equal (TRL: isclose)."""


@dataclass(frozen=True)
class Mean:
    """A mean of column `value` over the completions that have one and whose `flag` is `wanted` (no flag: over all).

    Columns are those of `rollouts`, and `truncated`, the opposite of `terminated`. `value` may be an SQL expression
    where only tables are asked for the mean.
    """

    value: str
    flag: str | None = None
    wanted: bool = True

    def sums_sql(self, name: str) -> str:
        """SQL for its sum and its number of rows, as `<name>_sum` and `<name>_rows`."""
        where = f" FILTER ({'' if self.wanted else 'NOT '}{self.flag})" if self.flag else ""
        return f"sum(({self.value})::DOUBLE){where} AS {name}_sum, (count({self.value}){where})::DOUBLE AS {name}_rows"


SAMPLED: dict[str, Mean] = {
    "reward_mean": Mean("reward"),
    "length_mean": Mean("length_tokens"),
    "length_correct": Mean("length_tokens", "correct"),
    "length_incorrect": Mean("length_tokens", "correct", False),
    "length_terminated": Mean("length_tokens", "terminated"),
    "truncated_frac": Mean("truncated"),
}
"""The columns of `steps` that are means over the completions sampled for the step, by name."""


@dataclass(frozen=True)
class Rollout:
    """One sampled completion, in columns of the `rollouts` table."""

    generation: int
    prompt_id: int
    group: int
    sample: int
    length_tokens: int
    terminated: bool | None
    reward: float | None
    correct: bool | None
    advantage: float | None
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


def sampling_row(rollouts: Sequence[Any]) -> dict[str, Any]:
    """The sampling columns over freshly sampled rollouts: pooled means, null where there is nothing to average."""
    rows = [{**vars(row), "truncated": None if row.terminated is None else not row.terminated} for row in rollouts]
    rewards: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if row["reward"] is not None:
            rewards.setdefault((row["generation"], row["group"]), []).append(row["reward"])
    equal = [equal_rewards(min(group), max(group)) for group in rewards.values()]
    means = {
        name: _mean([row[mean.value] for row in rows if mean.flag is None or row[mean.flag] is mean.wanted])
        for name, mean in SAMPLED.items()
    }
    return {"generation": rows[-1]["generation"], **means, "zero_std_frac": _mean(equal)}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def equal_rewards(lowest: float, highest: float) -> bool:
    """Whether a group's rewards, between `lowest` and `highest`, are equal up to rounding.

    >>> equal_rewards(0.3, 0.1 + 0.2), equal_rewards(0.3, 0.31)
    (True, False)
    """
    return highest - lowest <= EQUAL_REWARDS * max(1.0, abs(lowest), abs(highest))


def step_sums_sql(source: str, means: Mapping[str, Mean] = SAMPLED) -> str:
    """SQL for one row per step of `source`, a table with the completion columns of `rollouts`, in order of steps.

    Columns: `step`, `generation` (the last one), `rows`, `lowest_reward`; `<mean>_sum` and `<mean>_rows` for each of
    `means`, which must include the lengths of correct and incorrect completions; `groups` (with rewards),
    `zero_std_groups` (whose rewards are equal), `mixed_groups` (with correct and incorrect completions) and
    `mixed_gap_sum` (their mean incorrect minus mean correct length). A group is one number in one generation, or in one
    step where the generation is null; it counts in its first step. Sums of integers are exact in any order, sums of
    reals only the same on one thread.
    """
    names = [f"{name}_{part}" for name in means for part in ("sum", "rows")]
    kinds = [name for name in names if name.startswith(("length_correct_", "length_incorrect_"))]
    gap = "length_incorrect_sum / length_incorrect_rows - length_correct_sum / length_correct_rows"
    return f"""
    WITH completions AS (SELECT *, NOT terminated AS truncated FROM {source} WHERE step IS NOT NULL),
    cells AS (
        SELECT step, generation, "group", count(*)::DOUBLE AS rows,
            {", ".join(mean.sums_sql(name) for name, mean in means.items())},
            min(reward) AS lowest, max(reward) AS highest
        FROM completions GROUP BY step, generation, "group"),
    prompts AS (
        SELECT min(step) AS step, min(lowest) AS lowest, max(highest) AS highest,
            {", ".join(f"sum({name}) AS {name}" for name in kinds)}
        FROM cells WHERE "group" IS NOT NULL
        GROUP BY generation, CASE WHEN generation IS NULL THEN step END, "group"),
    per_group AS (
        SELECT step, count(lowest)::DOUBLE AS groups,
            (count(*) FILTER (highest - lowest <= {EQUAL_REWARDS} * greatest(1, abs(lowest), abs(highest))))::DOUBLE
                AS zero_std_groups,
            (count(*) FILTER (length_correct_rows > 0 AND length_incorrect_rows > 0))::DOUBLE AS mixed_groups,
            coalesce(sum({gap}) FILTER (length_correct_rows > 0 AND length_incorrect_rows > 0), 0) AS mixed_gap_sum
        FROM prompts GROUP BY step),
    per_step AS (
        SELECT step, max(generation) AS generation, sum(rows) AS rows, coalesce(min(lowest), 0) AS lowest_reward,
            {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in names)}
        FROM cells GROUP BY step)
    SELECT per_step.*, coalesce(groups, 0) AS groups, coalesce(zero_std_groups, 0) AS zero_std_groups,
        coalesce(mixed_groups, 0) AS mixed_groups, coalesce(mixed_gap_sum, 0) AS mixed_gap_sum
    FROM per_step LEFT JOIN per_group USING (step) ORDER BY step"""


def sampling_rows_sql(source: str) -> str:
    """SQL for the sampling columns of `steps`, one row per step of `source`; null where there is nothing to average.

    `tokens` is null where a completion of the step has no length.
    """
    means = ", ".join(f"{name}_sum / nullif({name}_rows, 0) AS {name}" for name in SAMPLED)
    return f"""
    SELECT step, generation, {means}, zero_std_groups / nullif(groups, 0) AS zero_std_frac,
        CASE WHEN length_mean_rows = rows THEN length_mean_sum::BIGINT END AS tokens
    FROM ({step_sums_sql(source)}) ORDER BY step"""
