"""Additive sums per optimizer step, from which every pooled figure follows.

A mean over a window is the ratio of two sums over its rows, never a mean of per-step means: steps with two incorrect
completions must not count as much as steps with sixty. So each run's completions are reduced once to one row of sums
per step, and metrics and curves only add these up.
"""

import numpy as np
import pyarrow as pa

Columns = dict[str, np.ndarray]
"""A table as float64 arrays of equal length, NaN where a cell is null."""

ROLLOUT_COLUMNS = ["step", "generation", "group", "length_tokens", "terminated", "reward", "correct"]
"""The rollout columns that `step_sums` reads."""

EVAL_COLUMNS = ["step", "group", "length_tokens", "terminated", "reward", "correct"]
"""The evaluation columns that `step_sums` reads; an evaluation is its own sampling round."""

RATIOS: dict[str, tuple[str, str]] = {
    "length_mean": ("length_sum", "rows"),
    "length_correct": ("correct_length_sum", "correct_rows"),
    "length_incorrect": ("incorrect_length_sum", "incorrect_rows"),
    "length_terminated": ("terminated_length_sum", "terminated_rows"),
    "reward": ("reward_sum", "reward_rows"),
    "accuracy": ("correct_rows", "judged_rows"),
    "truncated_frac": ("truncated_rows", "ending_rows"),
    "truncated_frac_incorrect": ("incorrect_truncated_rows", "incorrect_ending_rows"),
    "zero_std_frac": ("zero_std_groups", "groups"),
    "gap_within_prompt": ("mixed_gap_sum", "mixed_groups"),
    "inverse_length_mean": ("inverse_length_sum", "rows"),
    "length_square_mean": ("length_square_sum", "rows"),
    "entropy": ("entropy_sum", "entropy_tokens"),
    "clip_frac": ("clip_sum", "clip_tokens"),
    "kl": ("kl_sum", "kl_tokens"),
    "grad_norm": ("grad_norm_sum", "grad_norm_steps"),
}
"""Pooled quantity → (numerator, denominator) among the columns of the sums; NaN where the denominator is 0."""

_LOGGED_MEANS = {
    "length_mean": "length_mean", "length_correct": "length_correct", "length_incorrect": "length_incorrect",
    "length_terminated": "length_terminated", "reward": "reward_mean", "truncated_frac": "truncated_frac",
    "zero_std_frac": "zero_std_frac",
}  # fmt: skip


def as_columns(table: pa.Table) -> Columns:
    """The numbers and flags of `table` (true 1, false 0) as `Columns`; text columns are left out."""
    columns = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_boolean(field.type):
            column = column.cast(pa.int8())
        elif not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            continue
        columns[field.name] = column.cast(pa.float64()).to_numpy()
    return columns


def select(columns: Columns, mask: np.ndarray) -> Columns:
    """The rows of `columns` where `mask` holds, or those that an array of row numbers names."""
    if mask.dtype == bool and mask.all():
        return columns
    return {name: values[mask] for name, values in columns.items()}


def step_sums(rows: Columns) -> Columns:
    """One row per step of one run, sorted by step: the counts and sums over its completions.

    `rows` has the columns of `ROLLOUT_COLUMNS` or `EVAL_COLUMNS`; rows without a length are left out, and a missing
    `correct`, `reward` or `terminated` leaves the row out of the sums that need it.
    """
    rows = select(rows, ~(np.isnan(rows["length_tokens"]) | np.isnan(rows["step"])))
    step_values, step_codes = np.unique(rows["step"], return_inverse=True)
    lengths, rewards = rows["length_tokens"], rows["reward"]
    correct, incorrect = (rows["correct"] == flag for flag in (1, 0))
    ended, cut = (rows["terminated"] == flag for flag in (1, 0))
    rewarded = ~np.isnan(rewards)

    def total(weights: np.ndarray) -> np.ndarray:
        return np.bincount(step_codes, weights=weights, minlength=len(step_values))

    sums = {
        "step": step_values,
        "rows": total(np.ones(len(lengths))),
        "length_sum": total(lengths),
        "tokens": total(lengths),
        "correct_rows": total(correct),
        "correct_length_sum": total(correct * lengths),
        "incorrect_rows": total(incorrect),
        "incorrect_length_sum": total(incorrect * lengths),
        "judged_rows": total(correct | incorrect),
        "terminated_rows": total(ended),
        "terminated_length_sum": total(ended * lengths),
        "truncated_rows": total(cut),
        "ending_rows": total(ended | cut),
        "incorrect_truncated_rows": total(incorrect & cut),
        "incorrect_ending_rows": total(incorrect & (ended | cut)),
        "reward_rows": total(rewarded),
        "reward_sum": total(np.where(rewarded, rewards, 0.0)),
        "rewarded_length_sum": total(rewarded * lengths),
        "inverse_length_sum": total(np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)),
        "length_square_sum": total(lengths**2),
    }
    return sums | _group_sums(rows, step_codes, len(step_values))


def _group_sums(rows: Columns, step_codes: np.ndarray, steps: int) -> Columns:
    """Per step: groups with rewards, those whose rewards are all equal, mixed groups and their summed length gaps."""
    group_codes = _group_codes(rows, step_codes)
    known = group_codes >= 0
    rows, codes, step_codes = select(rows, known), group_codes[known], step_codes[known]
    count = int(codes.max()) + 1 if len(codes) else 0
    lengths, rewards = rows["length_tokens"], rows["reward"]

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(codes, weights=values, minlength=count)

    correct, incorrect = (rows["correct"] == flag for flag in (1, 0))
    n_correct, n_incorrect = total(correct), total(incorrect)
    mixed = (n_correct > 0) & (n_incorrect > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = total(incorrect * lengths) / n_incorrect - total(correct * lengths) / n_correct
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.fmin.at(lowest, codes, rewards)
    np.fmax.at(highest, codes, rewards)
    rewarded = np.isfinite(lowest)
    step_of_group = np.zeros(count, dtype=np.int64)
    step_of_group[codes[::-1]] = step_codes[::-1]
    values = {
        "groups": rewarded,
        "zero_std_groups": rewarded & (lowest == highest),
        "mixed_groups": mixed,
        "mixed_gap_sum": np.where(mixed, gap, 0.0),
    }
    return {name: np.bincount(step_of_group, weights=value, minlength=steps) for name, value in values.items()}


def _group_codes(rows: Columns, step_codes: np.ndarray) -> np.ndarray:
    """A dense number per prompt group, -1 where the group is null. Rounds without a generation number count by step."""
    groups = rows["group"]
    rounds = step_codes.astype(float)
    if "generation" in rows:
        rounds = np.where(np.isnan(rows["generation"]), rounds, rows["generation"])
    missing = np.isnan(groups)
    width = np.nanmax(groups) + 1 if not missing.all() else 1.0
    keys = rounds * width + np.where(missing, 0.0, groups)
    # Rows of a group stand together as a rule: number the stretches, then merge stretches of equal key.
    starts = np.ones(len(keys), dtype=bool)
    starts[1:] = keys[1:] != keys[:-1]
    _, merged = np.unique(keys[starts], return_inverse=True)
    return np.where(missing, -1, merged[np.cumsum(starts) - 1] if len(keys) else 0)


def add_step_log(sums: Columns, log: Columns) -> Columns:
    """`sums` with the means that the `steps` table logs added as token-weighted sums, for every logged step.

    Optimizer steps that began no new generation have no completions of their own; their row sums are 0. Where the token
    count of a step is not logged, its means count as one token.
    """
    log = _last_of_each_step(log)
    steps = np.union1d(sums["step"], log["step"])
    merged = {"step": steps}
    place = np.searchsorted(steps, sums["step"])
    for name in sums:
        if name != "step":
            merged[name] = np.zeros(len(steps))
            merged[name][place] = sums[name]
    tokens = np.where(np.isnan(log["tokens"]), 1.0, log["tokens"])
    place = np.searchsorted(steps, log["step"])
    for quantity, weights in (("entropy", tokens), ("clip_frac", tokens), ("kl", tokens), ("grad_norm", 1.0)):
        known = np.isfinite(log[quantity])
        for name, values in zip(RATIOS[quantity], (log[quantity] * weights, weights), strict=True):
            merged[name] = np.zeros(len(steps))
            merged[name][place] = np.where(known, values, 0.0)
    return merged


def _last_of_each_step(log: Columns) -> Columns:
    """The rows of a step log in step order, the last of rows that repeat a step."""
    log = select(log, ~np.isnan(log["step"]))
    order = np.argsort(log["step"], kind="stable")
    ordered = select(log, order)
    last = np.ones(len(order), dtype=bool)
    last[:-1] = ordered["step"][1:] != ordered["step"][:-1]
    return select(ordered, last)


def sums_from_step_log(log: Columns) -> Columns:
    """Sums for a run without recorded completions: each logged step counts once, whatever its number of rows.

    Logs of other trainers hold per-step means only; the result is then a mean of means, and the metrics' column
    `source` says so.
    """
    log = _last_of_each_step(log)
    sums = {"step": log["step"], "tokens": log["tokens"]}
    for quantity, column in _LOGGED_MEANS.items():
        known = np.isfinite(log[column])
        numerator, denominator = RATIOS[quantity]
        sums[numerator] = np.where(known, log[column], 0.0)
        sums[denominator] = known.astype(float)
    sums["rewarded_length_sum"] = sums["length_sum"] * sums["reward_rows"]
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
