"""Changes over one run: first to last fifth of its steps, with an interval from a block bootstrap over steps."""

from dataclasses import dataclass

import numpy as np

LEAST_STEPS = 5
"""Fewer steps with a value in either window give no interval."""
_SHARE = 0.2
_DRAWS = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Change:
    """Means over the first and the last fifth of the steps, and the interval of their difference where it has one."""

    first: float
    last: float
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float:
        """Last minus first."""
        return self.last - self.first

    @property
    def told(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def ends(self) -> str:
        """First and last, as text."""
        return f"{self.first:.3g} → {self.last:.3g}"

    @property
    def interval(self) -> str:
        """The interval as text; empty where it has none."""
        return "" if self.low is None or self.high is None else f"change [{self.low:+.2g}, {self.high:+.2g}]"


def fifth(count: int) -> int:
    """Number of steps that count as first, and as last, out of `count`."""
    return max(1, round(_SHARE * count))


def late_mean(values_S: np.ndarray) -> float:
    """Mean over the last fifth of the steps; NaN where it has no value there."""
    values = values_S[-fifth(len(values_S)) :]
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def change(values_S: np.ndarray, seed: int = 0) -> Change | None:
    """The change of a step's value (S, in order of steps; NaN where a step has none) over the run.

    Neighbouring steps share their policy, so whole blocks of about the root of the window are drawn (Künsch 1989); the
    interval is the 95 % percentile interval of the difference. None where a window has no value at all.
    """
    size = fifth(len(values_S))
    windows = [w[~np.isnan(w)] for w in (values_S[:size], values_S[-size:])]
    if not all(len(window) for window in windows):
        return None
    first, last = (float(window.mean()) for window in windows)
    if min(map(len, windows)) < LEAST_STEPS:
        return Change(first, last)
    rng = np.random.default_rng(seed)
    draws = _block_means(windows[1], rng) - _block_means(windows[0], rng)
    low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Change(first, last, float(low), float(high))


def _block_means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means of `_DRAWS` series made of blocks that wrap around, each as long as `values`."""
    count = len(values)
    block = max(1, round(count**0.5))
    starts = rng.integers(0, count, (_DRAWS, -(-count // block)))
    index = (starts[:, :, None] + np.arange(block)) % count
    return values[index.reshape(_DRAWS, -1)[:, :count]].mean(1)
