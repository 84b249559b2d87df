"""One run's way through reward, length and tokens: the reward plateau, the slope after it, values at a given reward."""

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from lossbench.metrics.step_sums import Columns, select

SMOOTHING_STEPS = 5
"""Width of the trailing window of a trajectory: the first points of a run do not depend on how long it was to be."""

PLATEAU_SHARE = 0.95
"""The plateau begins where the smoothed reward has made this share of its whole rise."""

PLATEAU_STEPS = 10
"""Fewest points after the plateau from which a slope is taken."""

_SLOPE_POINTS = 250


@dataclass(frozen=True)
class Trajectory:
    """A run's smoothed path, arrays of shape (K,), one point per step that began a generation.

    `reward` and `length_tokens` are pooled over the trailing window; `tokens` counts all completion tokens generated up
    to the step. The first points, before one whole window has passed, are left out.
    """

    step: np.ndarray
    tokens: np.ndarray
    reward: np.ndarray
    length_tokens: np.ndarray

    def at_reward(self, threshold: float) -> tuple[float, float]:
        """Tokens generated until the smoothed reward first reaches `threshold`, and the smoothed length there.

        Linear between the two points around the crossing; the first point's values where the path starts above the
        threshold; (NaN, NaN) where it never gets there.
        """
        above = np.flatnonzero(self.reward >= threshold)
        if above.size == 0:
            return float("nan"), float("nan")
        k = int(above[0])
        if k == 0:
            return float(self.tokens[0]), float(self.length_tokens[0])
        share = (threshold - self.reward[k - 1]) / (self.reward[k] - self.reward[k - 1])
        tokens, length = (float(y[k - 1] + share * (y[k] - y[k - 1])) for y in (self.tokens, self.length_tokens))
        return tokens, length


def trajectory(sums: Columns) -> Trajectory:
    """The path of one run from its step sums, smoothed over `SMOOTHING_STEPS`."""
    used = select(sums, sums["length_mean_rows"] > 0)
    step = used["step"]
    before = np.searchsorted(step, step - SMOOTHING_STEPS, side="right")

    def trailing(column: str) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(used[column])])
        return total[1:] - total[before]

    with np.errstate(invalid="ignore", divide="ignore"):
        reward = trailing("reward_sum") / trailing("reward_rows")
        length = trailing("length_mean_sum") / trailing("length_mean_rows")
    tokens = np.cumsum(used["tokens"])
    whole = (step >= SMOOTHING_STEPS) & np.isfinite(reward)
    return Trajectory(step[whole], tokens[whole], reward[whole], length[whole])


def plateau_step(path: Trajectory, late_reward: float) -> int | None:
    """The step at which the reward plateau begins, None where the reward did not rise.

    It is the first step whose smoothed reward has made `PLATEAU_SHARE` of the rise from the path's first point to
    `late_reward`, the pooled reward of the run's last fifth.
    """
    if path.step.size == 0 or not np.isfinite(late_reward):
        return None
    rise = late_reward - path.reward[0]
    if rise <= 0:
        return None
    reached = np.flatnonzero(path.reward >= path.reward[0] + PLATEAU_SHARE * rise)
    return int(path.step[reached[0]]) if reached.size else None


def slope_after(sums: Columns, first_step: int | None) -> tuple[float, float]:
    """Theil-Sen and least-squares slope of mean length against step from `first_step` on, tokens per 100 steps.

    NaN with fewer than `PLATEAU_STEPS` steps. Long runs are first pooled into at most 250 blocks of equal size, since
    the estimator looks at every pair of points.
    """
    if first_step is None:
        return float("nan"), float("nan")
    used = select(sums, (sums["length_mean_rows"] > 0) & (sums["step"] >= first_step))
    points = len(used["step"])
    if points < PLATEAU_STEPS:
        return float("nan"), float("nan")
    block = np.arange(points) * min(points, _SLOPE_POINTS) // points
    step = np.bincount(block, weights=used["step"]) / np.bincount(block)
    length = np.bincount(block, weights=used["length_mean_sum"]) / np.bincount(block, weights=used["length_mean_rows"])
    theil_sen = scipy_stats.theilslopes(length, step).slope  # pyright: ignore[reportAttributeAccessIssue]
    least_squares = np.polyfit(step, length, 1)[0]
    return 100 * float(theil_sen), 100 * float(least_squares)


def common_reward(paths: list[Trajectory]) -> float:
    """A reward that every path gets to on its way up, NaN if absent.

    Each path's plateau level is the smoothed reward at `PLATEAU_SHARE` of its rise from its first point to the mean of
    its last fifth; the lowest of these levels is the common one. (The highest reward ever touched would be a matter of
    noise.) It must be above every path's first point: one that a run begins with tells nothing of the way there.
    """
    paths = [path for path in paths if path.step.size]
    if not paths:
        return float("nan")
    starts = [float(path.reward[0]) for path in paths]
    ends = [float(path.reward[path.reward.size * 4 // 5 :].mean()) for path in paths]
    level = min(start + PLATEAU_SHARE * (end - start) for start, end in zip(starts, ends, strict=True))
    return level if level > max(starts) else float("nan")
