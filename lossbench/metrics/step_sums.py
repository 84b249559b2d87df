"""Additive sums per optimizer step, from which every pooled figure follows.

A mean over a window is the ratio of two sums over its rows, never a mean of per-step means: steps with two incorrect
completions must not count as much as steps with sixty. So each run's completions are reduced once to one row of sums
per step, and metrics and curves only add these up.
"""

from typing import TYPE_CHECKING

import numpy as np

from lossbench.store.step_row import SAMPLED, Mean, step_sums_sql

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, np.ndarray]
"""A table as float64 arrays of equal length, NaN where a cell is null."""

EVAL_COLUMNS = ["step", "group", "length_tokens", "terminated", "reward", "correct"]
ROLLOUT_COLUMNS = [*EVAL_COLUMNS, "generation"]
"""The columns of `rollouts` (of `evals`: `EVAL_COLUMNS`) that sums are made of."""

LOG_COLUMNS = ["step", *SAMPLED, "zero_std_frac", "entropy", "clip_frac", "kl", "grad_norm", "tokens", "wall_s"]
"""The columns of `steps` that metrics are made of."""

MEANS: dict[str, Mean] = {
    **{"reward" if name == "reward_mean" else name: mean for name, mean in SAMPLED.items()},
    "accuracy": Mean("correct"),
    "truncated_frac_incorrect": Mean("truncated", "correct", False),
    "inverse_length_mean": Mean("CASE WHEN length_tokens > 0 THEN 1 / length_tokens ELSE 0 END"),
    "length_square_mean": Mean("length_tokens * length_tokens"),
    "rewarded_length": Mean("CASE WHEN reward IS NOT NULL THEN length_tokens END"),
}
"""Pooled quantities that are means over completions."""

RATIOS: dict[str, tuple[str, str]] = {
    **{name: (f"{name}_sum", f"{name}_rows") for name in MEANS},
    "zero_std_frac": ("zero_std_groups", "groups"),
    "gap_within_prompt": ("mixed_gap_sum", "mixed_groups"),
    "hazard_incorrect": ("ended_incorrect", "free_incorrect"),
    "hazard_correct": ("ended_correct", "free_correct"),
    "push_incorrect": ("added_incorrect", "share_incorrect"),
    "push_correct": ("added_correct", "share_correct"),
    "added_incorrect": ("added_incorrect", "pushed_steps"),
    "added_correct": ("added_correct", "pushed_steps"),
    "entropy": ("entropy_sum", "entropy_tokens"),
    "clip_frac": ("clip_sum", "clip_tokens"),
    "kl": ("kl_sum", "kl_tokens"),
    "grad_norm": ("grad_norm_sum", "grad_norm_steps"),
}
"""Pooled quantity → (numerator, denominator) among the columns of the sums; NaN where the denominator is 0."""


def as_columns(table: "pa.Table") -> Columns:
    """The numbers and flags of `table` (true 1, false 0) as `Columns`."""
    import pyarrow as pa

    flags = {field.name for field in table.schema if pa.types.is_boolean(field.type)}
    columns = {name: table.column(name) for name in table.column_names}
    return {
        name: (column.cast(pa.int8()) if name in flags else column).cast(pa.float64()).to_numpy()
        for name, column in columns.items()
    }


def select(columns: Columns, mask: np.ndarray) -> Columns:
    """The rows of `columns` where `mask` holds, or those that an array of row numbers names."""
    return {name: values[mask] for name, values in columns.items()}


def completions_sql(source: str) -> str:
    """SQL for the sums over the completions of each step of `source`, in order of steps.

    Rows without a length are left out; a missing `correct`, `reward` or `terminated` leaves the row out of the sums
    that need it.
    """
    measured = f"(SELECT * FROM {source} WHERE length_tokens IS NOT NULL)"
    return f"SELECT *, length_mean_sum AS tokens FROM ({step_sums_sql(measured, MEANS)}) ORDER BY step"


def evaluations_sql(source: str) -> str:
    """`completions_sql` of a source without generations: each evaluation is its own round."""
    return completions_sql(f"(SELECT *, NULL::BIGINT AS generation FROM {source})")


def lengths_sql(source: str, steps_planned: int) -> str:
    """SQL for how many early (late 0) and late (late 1) completions of a run, correct or not, have which length."""
    windows = (f"(step - 1) * 5 < {steps_planned}", f"({steps_planned} - step) * 5 < {steps_planned}")
    parts = (
        f"SELECT {late} AS late, correct, length_tokens, count(*) AS rows FROM {source}"
        f" WHERE correct IS NOT NULL AND length_tokens IS NOT NULL AND {window} GROUP BY ALL"
        for late, window in enumerate(windows)
    )
    return f"{' UNION ALL '.join(parts)} ORDER BY late, correct, length_tokens"


def add_step_log(sums: Columns, log: Columns) -> Columns:
    """`sums` with the means that the `steps` table logs added as token-weighted sums, for every logged step.

    Optimizer steps that began no new generation have no completions of their own; their row sums are 0. Where the token
    count of a step is not logged, its means count as one token.
    """
    steps = np.union1d(sums["step"], log["step"])
    merged = {name: np.zeros(len(steps)) for name in sums} | {"step": steps}
    place = np.searchsorted(steps, sums["step"])
    for name in sums.keys() - {"step"}:
        merged[name][place] = sums[name]
    tokens = np.where(np.isnan(log["tokens"]), 1.0, log["tokens"])
    place = np.searchsorted(steps, log["step"])
    for quantity, weights in (("entropy", tokens), ("clip_frac", tokens), ("kl", tokens), ("grad_norm", 1.0)):
        known = np.isfinite(log[quantity])
        for name, values in zip(RATIOS[quantity], (log[quantity] * weights, weights), strict=True):
            merged[name] = np.zeros(len(steps))
            merged[name][place] = np.where(known, values, 0.0)
    return merged


def last_of_each_step(log: Columns) -> Columns:
    """The rows of a step log in step order, the last of rows that repeat a step."""
    log = select(log, ~np.isnan(log["step"]))
    ordered = select(log, np.argsort(log["step"], kind="stable"))
    return select(ordered, np.append(np.diff(ordered["step"]) != 0, True)[: len(ordered["step"])])


def sums_from_step_log(log: Columns) -> Columns:
    """Sums for a run without recorded completions: each logged step counts once, regardless of its number of rows.

    Logs of other trainers hold per-step means only; the result is then a mean of means, and the metrics' column
    `source` says so.
    """
    sums = {"step": log["step"], "tokens": log["tokens"]}
    for column in (*SAMPLED, "zero_std_frac"):
        numerator, denominator = RATIOS["reward" if column == "reward_mean" else column]
        known = np.isfinite(log[column])
        sums[numerator], sums[denominator] = np.where(known, log[column], 0.0), known.astype(float)
    sums["lowest_reward"] = sums["reward_sum"]
    sums["rewarded_length_sum"] = sums["length_mean_sum"] * sums["reward_rows"]
    return sums


def pooled(sums: Columns, mask: np.ndarray | slice = slice(None)) -> dict[str, float]:
    """The quantities of `RATIOS` over the rows of `sums` in `mask` together; NaN over nothing."""
    values = {}
    for quantity, (numerator, denominator) in RATIOS.items():
        bottom = float(sums[denominator][mask].sum()) if denominator in sums and numerator in sums else 0.0
        values[quantity] = float(sums[numerator][mask].sum()) / bottom if bottom > 0 else float("nan")
    return values


def pooled_by_block(sums: Columns, blocks: np.ndarray, count: int, quantity: str) -> np.ndarray:
    """One of the `RATIOS` pooled over each block of rows, shape (count,); `blocks` numbers the rows' blocks from 0."""
    numerator, denominator = RATIOS[quantity]
    if numerator not in sums or denominator not in sums:
        return np.full(count, np.nan)
    top, bottom = (np.bincount(blocks, weights=sums[name], minlength=count) for name in (numerator, denominator))
    return np.divide(top, bottom, out=np.full(count, np.nan), where=bottom > 0)
