"""Additive sums per optimizer step, from which every pooled figure follows.

A mean over a window is the ratio of two sums over its rows, never a mean of per-step means: steps with two incorrect
completions must not count as much as steps with sixty. So each run's completions are reduced once to one row of sums
per step, and metrics and curves only add these up.
"""

import numpy as np
import pandas as pd

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

_PER_TOKEN = {"entropy": "entropy", "clip": "clip_frac", "kl": "kl"}


def step_sums(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per step of one run, sorted by step: the counts and sums over its completions.

    `rows` has the columns of `ROLLOUT_COLUMNS` or `EVAL_COLUMNS`; rows without a length are left out, and a missing
    `correct`, `reward` or `terminated` leaves the row out of the sums that need it.
    """
    rows = rows[rows["length_tokens"].notna() & rows["step"].notna()]
    step_values, step_codes = np.unique(rows["step"].to_numpy(dtype=np.int64), return_inverse=True)
    lengths = rows["length_tokens"].to_numpy(dtype=float)
    correct, incorrect = _flags(rows["correct"])
    ended, cut = _flags(rows["terminated"])
    rewards = rows["reward"].to_numpy(dtype=float, na_value=np.nan)
    rewarded = ~np.isnan(rewards)

    def total(weights: np.ndarray) -> np.ndarray:
        return np.bincount(step_codes, weights=weights, minlength=len(step_values))

    sums = {
        "step": step_values,
        "rows": total(np.ones(len(rows))),
        "length_sum": total(lengths),
        "tokens": total(lengths),
        "correct_rows": total(correct),
        "correct_length_sum": total(correct * lengths),
        "incorrect_rows": total(incorrect),
        "incorrect_length_sum": total(incorrect * lengths),
        "judged_rows": total(correct + incorrect),
        "terminated_rows": total(ended),
        "terminated_length_sum": total(ended * lengths),
        "truncated_rows": total(cut),
        "ending_rows": total(ended + cut),
        "reward_rows": total(rewarded),
        "reward_sum": total(np.where(rewarded, rewards, 0.0)),
        "inverse_length_sum": total(np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)),
        "length_square_sum": total(lengths**2),
    }
    groups = _group_sums(rows, step_codes, len(step_values), lengths, correct, incorrect, rewards)
    return pd.DataFrame({**sums, **groups})


def _flags(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """A nullable flag column as two 0/1 float arrays: is true, is false."""
    values = column.to_numpy(dtype=float, na_value=np.nan)
    return (values == 1.0).astype(float), (values == 0.0).astype(float)


def _group_sums(
    rows: pd.DataFrame,
    step_codes: np.ndarray,
    steps: int,
    lengths: np.ndarray,
    correct: np.ndarray,
    incorrect: np.ndarray,
    rewards: np.ndarray,
) -> dict[str, np.ndarray]:
    """Per step: groups with rewards, those whose rewards are all equal, mixed groups and their summed length gaps."""
    names = ("groups", "zero_std_groups", "mixed_groups", "mixed_gap_sum")
    group_codes = _group_codes(rows, step_codes)
    known = group_codes >= 0
    if not known.any():
        return {name: np.zeros(steps) for name in names}
    codes, count = group_codes[known], int(group_codes.max()) + 1

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(codes, weights=values[known], minlength=count)

    n_correct, n_incorrect = total(correct), total(incorrect)
    mixed = (n_correct > 0) & (n_incorrect > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = total(incorrect * lengths) / n_incorrect - total(correct * lengths) / n_correct
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.fmin.at(lowest, codes, rewards[known])
    np.fmax.at(highest, codes, rewards[known])
    rewarded = np.isfinite(lowest)
    step_of_group = np.zeros(count, dtype=np.int64)
    step_of_group[codes[::-1]] = step_codes[known][::-1]

    def per_step(values: np.ndarray) -> np.ndarray:
        return np.bincount(step_of_group, weights=values, minlength=steps)

    values = (rewarded, rewarded & (lowest == highest), mixed, np.where(mixed, gap, 0.0))
    return {name: per_step(np.asarray(value, dtype=float)) for name, value in zip(names, values, strict=True)}


def _group_codes(rows: pd.DataFrame, step_codes: np.ndarray) -> np.ndarray:
    """A dense number per prompt group, -1 where the group is null. Rounds without a generation number count by step."""
    groups = rows["group"].to_numpy(dtype=float, na_value=np.nan)
    rounds = step_codes.astype(float)
    if "generation" in rows:
        generations = rows["generation"].to_numpy(dtype=float, na_value=np.nan)
        rounds = np.where(np.isnan(generations), rounds, generations)
    missing = np.isnan(groups)
    width = np.nanmax(groups) + 1 if not missing.all() else 1.0
    codes, _ = pd.factorize(rounds * width + np.where(missing, 0.0, groups))
    return np.where(missing, -1, codes)


def add_step_log(sums: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """`sums` with the logged per-token means of the `steps` table added as token-weighted sums, for every logged step.

    Optimizer steps that began no new generation have no completions of their own; their row sums are 0.
    """
    log = steps[steps["step"].notna()].drop_duplicates("step", keep="last")
    tokens = log["tokens"].to_numpy(dtype=float, na_value=np.nan)
    # Where the token count of a step is not logged, its means count as one step each.
    tokens = np.where(np.isnan(tokens), 1.0, tokens)
    extra = {"step": log["step"].to_numpy(dtype=np.int64)}
    for name, column in _PER_TOKEN.items():
        values = log[column].to_numpy(dtype=float, na_value=np.nan)
        extra[f"{name}_sum"] = np.where(np.isfinite(values), values * tokens, 0.0)
        extra[f"{name}_tokens"] = np.where(np.isfinite(values), tokens, 0.0)
    norms = log["grad_norm"].to_numpy(dtype=float, na_value=np.nan)
    extra["grad_norm_sum"] = np.where(np.isfinite(norms), norms, 0.0)
    extra["grad_norm_steps"] = np.isfinite(norms).astype(float)
    merged = sums.merge(pd.DataFrame(extra), on="step", how="outer", sort=True)
    return merged.fillna(0.0)


def sums_from_step_log(steps: pd.DataFrame) -> pd.DataFrame:
    """Sums for a run without recorded completions: each logged step counts once, whatever its number of rows.

    Logs of other trainers hold per-step means only; the result is then a mean of means, and the metrics' column
    `source` says so.
    """
    log = steps[steps["step"].notna()].drop_duplicates("step", keep="last").sort_values("step")
    sums = {"step": log["step"].to_numpy(dtype=np.int64)}
    pairs = {
        "length_mean": "length_mean", "length_correct": "length_correct", "length_incorrect": "length_incorrect",
        "length_terminated": "length_terminated", "reward": "reward_mean", "truncated_frac": "truncated_frac",
        "zero_std_frac": "zero_std_frac",
    }  # fmt: skip
    for quantity, column in pairs.items():
        values = log[column].to_numpy(dtype=float, na_value=np.nan)
        numerator, denominator = RATIOS[quantity]
        sums[numerator] = np.where(np.isfinite(values), values, 0.0)
        sums[denominator] = np.isfinite(values).astype(float)
    sums["tokens"] = log["tokens"].to_numpy(dtype=float, na_value=0.0)
    return pd.DataFrame(sums)


def ratios(sums: pd.DataFrame) -> pd.DataFrame:
    """The pooled quantities of `RATIOS` for each row of `sums` (rows of already added-up windows), NaN over nothing."""
    pooled = {}
    for quantity, (numerator, denominator) in RATIOS.items():
        if numerator not in sums or denominator not in sums:
            pooled[quantity] = np.full(len(sums), np.nan)
            continue
        bottom = sums[denominator].to_numpy(dtype=float)
        pooled[quantity] = np.divide(
            sums[numerator].to_numpy(dtype=float), bottom, out=np.full(len(sums), np.nan), where=bottom > 0
        )
    return pd.DataFrame(pooled, index=sums.index)


def pooled(sums: pd.DataFrame) -> dict[str, float]:
    """The pooled quantities over all rows of `sums` together."""
    row = ratios(sums.drop(columns="step").sum().to_frame().T).iloc[0]
    return {name: float(value) for name, value in row.items()}
