"""Curves per arm: the mean over seeds with a pointwise band, and every seed's own line."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as scipy_stats

from lossbench.errors import unknown
from lossbench.metrics.compare import arms_of, pair_key
from lossbench.metrics.length import RunSummary, Summary
from lossbench.metrics.step_sums import RATIOS, pooled_by_block

Axis = Literal["step", "tokens"]

UNITS = {
    "length_mean": "tokens", "length_correct": "tokens", "length_incorrect": "tokens", "length_terminated": "tokens",
    "reward": "reward", "accuracy": "share", "truncated_frac": "share", "zero_std_frac": "share",
    "gap_within_prompt": "tokens", "entropy": "nats per token", "clip_frac": "share", "kl": "nats per token",
    "grad_norm": "norm", "hazard_incorrect": "per token", "hazard_correct": "per token", "push_incorrect": "push",
    "push_correct": "push", "added_incorrect": "push", "added_correct": "push",
}  # fmt: skip
"""The quantities that have curves, with their units."""


@dataclass(frozen=True)
class Line:
    """One run: `y` of shape (K,) on the curve's `x`, NaN where the run has nothing."""

    run_id: str
    key: Hashable
    y: np.ndarray


@dataclass(frozen=True)
class Curve:
    """One arm: arrays of shape (K,).

    `x` is the end of each block, in steps or tokens; `mean` is over the `n` runs that have the block; `low` and `high`
    are a *pointwise* t band of that mean (NaN with fewer than two runs): it covers the mean at one x at the stated
    confidence, not the whole curve.
    """

    arm: str
    quantity: str
    unit: str
    axis: Axis
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray
    lines: tuple[Line, ...]
    confidence: float = 0.95


def curves(
    summary: Summary, quantity: str, axis: Axis = "step", points: int = 40, confidence: float = 0.95
) -> dict[str, Curve]:
    """Arm → curve of `quantity` (a key of `UNITS`) over blocks of equal width, pooled within each run and block.

    All arms share the blocks, so that their curves compare point by point. Raises ValueError for an unknown quantity.
    """
    if quantity not in UNITS or quantity not in RATIOS:
        raise ValueError(unknown("quantity", quantity, UNITS))
    amounts = {run_id: _amount(run, axis) for run_id, run in summary.by_run.items()}
    # A log that does not count tokens has no place along them.
    amounts = {run_id: amount for run_id, amount in amounts.items() if np.all(np.isfinite(amount))}
    longest = max((float(amount.max(initial=0.0)) for amount in amounts.values()), default=0.0)
    edges = _edges(longest, axis, points)
    by_arm: dict[str, list[Line]] = {arm: [] for arm in arms_of(summary.metrics)}
    for run_id, amount in amounts.items():
        run = summary.by_run[run_id]
        if len(edges) and len(amount):
            blocks = np.minimum(np.searchsorted(edges, amount, side="left"), len(edges) - 1)
            y = pooled_by_block(run.sums, blocks, len(edges), quantity)
            by_arm[str(run.row["arm"])].append(Line(run_id, pair_key(run.row), y))
    return {arm: _curve(arm, quantity, axis, edges, lines, confidence) for arm, lines in by_arm.items()}


def _amount(run: RunSummary, axis: Axis) -> np.ndarray:
    return run.sums["step"] if axis == "step" else np.cumsum(run.sums["tokens"])


def _edges(longest: float, axis: Axis, points: int) -> np.ndarray:
    """The upper ends of the blocks; whole steps where the axis is steps."""
    if longest <= 0:
        return np.zeros(0)
    width = longest / points
    if axis == "step":
        width = max(1.0, np.ceil(width))
    return np.minimum(width * np.arange(1, int(np.ceil(longest / width - 1e-9)) + 1), longest)


def _curve(arm: str, quantity: str, axis: Axis, x: np.ndarray, lines: list[Line], confidence: float) -> Curve:
    y = np.array([line.y for line in lines]).reshape(len(lines), len(x))
    known = np.isfinite(y)
    n = known.sum(axis=0)
    total = np.where(known, y, 0.0).sum(axis=0)
    mean = np.divide(total, n, out=np.full(len(x), np.nan), where=n > 0)
    squares = np.where(known, (y - mean) ** 2, 0.0).sum(axis=0)
    variance = np.divide(squares, n - 1, out=np.full(len(x), np.nan), where=n > 1)
    half = scipy_stats.t.ppf((1 + confidence) / 2, np.maximum(n - 1, 1)) * np.sqrt(variance / np.maximum(n, 1))
    return Curve(arm, quantity, UNITS[quantity], axis, x, mean, mean - half, mean + half, n, tuple(lines), confidence)


@dataclass(frozen=True)
class LengthCounts:
    """Counts of each length among completions of one window and kind, over an arm's runs: (K,) arrays."""

    arm: str
    late: bool
    correct: bool
    length_tokens: np.ndarray
    rows: np.ndarray


def length_distributions(summary: Summary) -> list[LengthCounts]:
    """The distributions of length per arm, early and late, of incorrect and of correct completions."""
    found = []
    for arm in arms_of(summary.metrics):
        runs = [run.lengths for run in summary.by_run.values() if run.row["arm"] == arm]
        columns = {
            name: np.concatenate([run[name] for run in runs]) for name in ("late", "correct", "length_tokens", "rows")
        }
        for late in (False, True):
            for correct in (False, True):
                mask = (columns["late"] == late) & (columns["correct"] == correct)
                lengths, codes = np.unique(columns["length_tokens"][mask], return_inverse=True)
                rows = np.bincount(codes, weights=columns["rows"][mask], minlength=len(lengths))
                found.append(LengthCounts(arm, late, correct, lengths, rows))
    return found
