"""Tests and intervals for paired differences, one number per pair of runs.

The test is the exact paired sign-flip test (Fisher's randomisation test of paired differences): under the null
hypothesis each difference is as likely as its negative, so the p-value is the share of the 2ⁿ sign patterns whose sum
is at least as extreme as the one observed. Intervals are paired t intervals; ratios get theirs on the log scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy import optimize
from scipy import stats as scipy_stats

Alternative = Literal["greater", "less", "two-sided"]
Values = Sequence[float] | np.ndarray

EXACT_PAIRS = 18  # up to this many pairs all 2ⁿ sign patterns are enumerated; beyond it they are sampled
SAMPLED_FLIPS = 50_000  # random sign patterns drawn, each used with its opposite
RESAMPLES = 9_999  # of a bootstrap
_TIE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Interval:
    """A point estimate with its interval; NaN bounds where the data give none (one pair, or undefined values)."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95

    def outside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies strictly outside [`low`, `high`] (False for NaN bounds)."""
        return bool(self.high < low or high < self.low)


def sign_flip_p(differences: np.ndarray, alternative: Alternative = "two-sided", seed: int = 0) -> np.ndarray:
    """p-values of the paired sign-flip test along the last axis of `differences`, shape (..., n) → (...).

    Exact for n ≤ `EXACT_PAIRS`; beyond it (1 + hits)/(1 + draws) over sign patterns drawn with `seed`. n = 0 and NaN
    differences give NaN.
    """
    differences = np.asarray(differences, dtype=float)
    n = differences.shape[-1]
    if n == 0:
        return np.full(differences.shape[:-1], np.nan)
    observed = differences.sum(axis=-1, keepdims=True)
    slack = _TIE_TOLERANCE * np.abs(differences).sum(axis=-1, keepdims=True)
    exact = n <= EXACT_PAIRS
    sums = _half_of_flipped_sums(differences) if exact else differences @ _random_signs(n, seed)
    # A pattern's opposite has the opposite sum, so half of the patterns stand for all.
    above, below = (sums >= observed - slack), (sums <= slack - observed)
    if alternative == "less":
        above, below = (sums <= observed + slack), (sums >= -observed - slack)
    elif alternative == "two-sided":
        above = below = np.abs(sums) >= np.abs(observed) - slack
    hits = above.sum(axis=-1) + below.sum(axis=-1)
    p = hits / (2 * sums.shape[-1]) if exact else (hits + 1) / (2 * sums.shape[-1] + 1)
    return np.where(np.isnan(observed[..., 0]), np.nan, p)


def _half_of_flipped_sums(differences: np.ndarray) -> np.ndarray:
    """Sums of `differences` (..., n) under every sign pattern that keeps the first sign, shape (..., 2ⁿ⁻¹)."""
    sums = differences[..., :1]
    for k in range(1, differences.shape[-1]):
        column = differences[..., k : k + 1]
        sums = np.concatenate([sums + column, sums - column], axis=-1)
    return sums


@lru_cache(maxsize=2)
def _random_signs(n: int, seed: int) -> np.ndarray:
    """Signs of shape (n, `SAMPLED_FLIPS`); kept, since a sweep asks for the same ones over and over."""
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), size=(n, SAMPLED_FLIPS))


def smallest_p(n: int, alternative: Alternative = "two-sided") -> float:
    """The smallest p the exact test can give with n pairs: 1/2ⁿ one-sided, 2/2ⁿ two-sided (1 for n = 0)."""
    return min(1.0, (2.0 if alternative == "two-sided" else 1.0) / 2.0**n)


def seeds_needed(alpha: float, alternative: Alternative = "greater") -> int:
    """The smallest number of pairs with which the exact test can reach `alpha`."""
    n = 1
    while smallest_p(n, alternative) > alpha:
        n += 1
    return n


def t_interval(values: Values, confidence: float = 0.95) -> Interval:
    """Mean of `values` with its t interval; the bounds are NaN with fewer than two values."""
    values = np.asarray(values, dtype=float)
    n = values.size
    mean = float(values.mean()) if n else np.nan
    if n < 2:
        return Interval(mean, np.nan, np.nan, confidence)
    half = float(scipy_stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, confidence)


def ratio_interval(a: Values, b: Values, confidence: float = 0.95) -> Interval:
    """Geometric mean of a/b over pairs with the t interval of the log ratios; NaN unless all values are positive."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.size == 0 or not (np.all(a > 0) and np.all(b > 0)):
        return Interval(np.nan, np.nan, np.nan, confidence)
    logs = t_interval(np.log(a) - np.log(b), confidence)
    return Interval(float(np.exp(logs.estimate)), float(np.exp(logs.low)), float(np.exp(logs.high)), confidence)


def bootstrap_interval(
    a: Values, b: Values, rng: np.random.Generator, statistic: Literal["difference", "ratio"] = "difference",
    confidence: float = 0.95, resamples: int = RESAMPLES,
) -> Interval:  # fmt: skip
    """Percentile bootstrap over pairs of mean(a) - mean(b) or of mean(a)/mean(b), by `scipy.stats.bootstrap`.

    Percentile intervals of few pairs are too narrow: read them beside the t interval, not instead of it.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)

    def value(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        top, bottom = x.mean(axis=axis), y.mean(axis=axis)
        return top - bottom if statistic == "difference" else top / bottom

    if a.size == 0 or not np.all(np.isfinite([a, b])) or (statistic == "ratio" and not np.all(b > 0)):
        return Interval(np.nan, np.nan, np.nan, confidence)
    estimate = float(value(a, b))
    if a.size < 2:
        return Interval(estimate, np.nan, np.nan, confidence)
    found = scipy_stats.bootstrap(
        (a, b), value, paired=True, vectorized=True, n_resamples=resamples, confidence_level=confidence,
        method="percentile", rng=rng,
    ).confidence_interval  # fmt: skip
    return Interval(estimate, float(found.low), float(found.high), confidence)


def power_paired_t(d_z: float, n: int, alpha: float = 0.05, sides: Literal[1, 2] = 2) -> float:
    """Power of the paired t test at standardised effect `d_z` (mean / standard deviation of the differences).

    The noncentral t gives the exact sign-flip test's power closely, except where that test rejects for few patterns of
    signs: for none below `seeds_needed(alpha)` pairs, where the power is 0, and only where all pairs have one sign a
    pair or two above, where it is at most the chance of that for normal differences.
    """
    alternative: Alternative = "greater" if sides == 1 else "two-sided"
    if n < 2 or not np.isfinite(d_z):
        return float("nan")
    if smallest_p(n, alternative) > alpha:
        return 0.0
    power = _t_power(abs(d_z), n, alpha, sides)
    if 2 * smallest_p(n, alternative) <= alpha:
        return power
    one_sign = scipy_stats.norm.cdf(abs(d_z)) ** n + (scipy_stats.norm.cdf(-abs(d_z)) ** n if sides == 2 else 0.0)
    return min(power, float(one_sign))


def _t_power(d_z: float, n: int, alpha: float, sides: int) -> float:
    critical = scipy_stats.t.ppf(1 - alpha / sides, n - 1)
    shift = d_z * np.sqrt(n)
    below = scipy_stats.nct.cdf(-critical, n - 1, shift) if sides == 2 else 0.0
    return float(min(1.0, scipy_stats.nct.sf(critical, n - 1, shift) + below))


@lru_cache(maxsize=256)
def detectable_d_z(n: int, power: float = 0.8, alpha: float = 0.05, sides: Literal[1, 2] = 2) -> float:
    """Standardised paired effect that n pairs detect with `power` by the paired t test (NaN for n < 2)."""
    if n < 2:
        return float("nan")
    high = 1.0
    while _t_power(high, n, alpha, sides) < power:
        high *= 2
    root: Any = optimize.brentq(lambda d_z: _t_power(d_z, n, alpha, sides) - power, 0.0, high, xtol=1e-14)
    return float(root)


def non_inferiority(differences: Values, margin: float) -> float:
    """One-sided exact p against "the mean difference is ≤ -margin": the sign-flip test of differences + margin.

    A small p says that the first arm is not worse than the second by `margin` (> 0, units of the metric) or more.
    """
    if not margin > 0:
        raise ValueError(f"margin must be > 0, got {margin}")
    return float(sign_flip_p(np.asarray(differences, dtype=float) + margin, "greater"))


def tost(differences: Values, low: float, high: float) -> float:
    """p of the two one-sided t tests that the mean of `differences` lies between `low` and `high`.

    p ≤ α exactly when the (1 - 2α) t interval lies inside the margins (Schuirmann 1987). NaN with fewer than two
    values.
    """
    if not low < high:
        raise ValueError(f"margins must satisfy low < high, got {low} and {high}")
    values = np.asarray(differences, dtype=float)
    if values.size < 2 or not np.all(np.isfinite(values)):
        return float("nan")
    if values.std(ddof=1) == 0:
        return 0.0 if low < values[0] < high else 1.0
    above: Any = scipy_stats.ttest_1samp(values, low, alternative="greater")
    below: Any = scipy_stats.ttest_1samp(values, high, alternative="less")
    return float(max(above.pvalue, below.pvalue))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values of a family; a NaN member counts as p = 1 and stays NaN.

    A claim that was announced but could not be tested thus still costs the others their share: dropping it would make
    the family smaller after looking at the data.
    """
    size = len(p_values)
    ordered = sorted(p_values, key=lambda name: (np.isnan(p_values[name]), p_values[name]))
    adjusted, highest = {}, 0.0
    for rank, name in enumerate(ordered):
        p = p_values[name]
        highest = max(highest, min(1.0, (size - rank) * p)) if not np.isnan(p) else highest
        adjusted[name] = highest if not np.isnan(p) else float("nan")
    return {name: adjusted[name] for name in p_values}
