"""Two arms compared on one metric, over the seeds that both have."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lossbench.stats import (
    Interval,
    bootstrap_interval,
    detectable_d_z,
    power_paired_t,
    ratio_interval,
    sign_flip_p,
    smallest_p,
    t_interval,
)


@dataclass(frozen=True)
class PairedResult:
    """One metric of two arms over the seeds that both have: a minus b.

    `ratio` is the geometric mean of a/b over the pairs, NaN unless all values are positive. `ci_*` and `ratio_*` bounds
    are t intervals; `bootstrap` gives percentile intervals. p-values come from the exact sign-flip test of the
    differences; `p_greater` is against "a is not larger". `d_z` is the difference over the standard deviation of the
    differences, `power` that of a two-sided test at the observed `d_z`, and `detectable_difference` what n pairs of the
    observed spread find with 80 % power. `only_a`, `only_b` and `undefined` name the seeds left out: run in one arm
    only, or without a value. `reason` is set where nothing can be tested.
    """

    n: int
    seeds: tuple[Hashable, ...]
    only_a: tuple[Hashable, ...]
    only_b: tuple[Hashable, ...]
    undefined: tuple[Hashable, ...]
    values_a: tuple[float, ...]
    values_b: tuple[float, ...]
    mean_a: float
    mean_b: float
    difference: float
    ci_low: float
    ci_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    p_greater: float
    p_less: float
    p_two_sided: float
    smallest_p_one_sided: float
    smallest_p_two_sided: float
    d_z: float
    power: float
    detectable_difference: float
    confidence: float = 0.95
    reason: str | None = None

    @property
    def differences(self) -> tuple[float, ...]:
        """The paired differences a - b, in the order of `seeds`."""
        return tuple(a - b for a, b in zip(self.values_a, self.values_b, strict=True))

    def bootstrap(self, statistic: Literal["difference", "ratio"] = "difference", seed: int = 0) -> Interval:
        """Percentile bootstrap interval of the difference, or of mean(a)/mean(b)."""
        rng = np.random.default_rng(seed)
        return bootstrap_interval(self.values_a, self.values_b, rng, statistic, self.confidence)

    @property
    def statement(self) -> str:
        """Result of the two-sided test in a few words."""
        if self.reason is not None:
            return self.reason
        if all(value == 0 for value in self.differences):
            return f"no difference: identical in all {self.n} pairs"
        if self.p_two_sided <= 1 - self.confidence:
            return f"{'higher' if self.difference > 0 else 'lower'} (p = {self.p_two_sided:.3g}, n = {self.n})"
        if self.smallest_p_two_sided > 1 - self.confidence:
            smallest = f"smallest attainable p is {self.smallest_p_two_sided:.3g}"
            return f"not distinguishable: with n = {self.n} the {smallest}"
        return f"not distinguishable at n = {self.n} (p = {self.p_two_sided:.3g})"


def paired(a: Mapping[Hashable, float], b: Mapping[Hashable, float], confidence: float = 0.95) -> PairedResult:
    """Compare two arms over the seeds both have; `a` and `b` map a seed to the run's value (NaN or None: no value)."""
    common = sorted((seed for seed in a if seed in b), key=_order)
    used = tuple(seed for seed in common if _is_number(a[seed]) and _is_number(b[seed]))
    undefined = tuple(seed for seed in common if seed not in used)
    only_a = tuple(sorted((seed for seed in a if seed not in b), key=_order))
    only_b = tuple(sorted((seed for seed in b if seed not in a), key=_order))
    values_a, values_b = (np.array([side[seed] for seed in used], dtype=float) for side in (a, b))
    n = len(used)
    differences = values_a - values_b
    interval = t_interval(differences, confidence)
    ratio = ratio_interval(values_a, values_b, confidence)
    spread = float(differences.std(ddof=1)) if n > 1 else float("nan")
    d_z = interval.estimate / spread if n > 1 and spread > 0 else float("nan")
    alpha = 1 - confidence
    return PairedResult(
        n=n, seeds=used, only_a=only_a, only_b=only_b, undefined=undefined,
        values_a=tuple(values_a.tolist()), values_b=tuple(values_b.tolist()),
        mean_a=float(values_a.mean()) if n else float("nan"), mean_b=float(values_b.mean()) if n else float("nan"),
        difference=interval.estimate, ci_low=interval.low, ci_high=interval.high,
        ratio=ratio.estimate, ratio_low=ratio.low, ratio_high=ratio.high,
        p_greater=float(sign_flip_p(differences, "greater")), p_less=float(sign_flip_p(differences, "less")),
        p_two_sided=float(sign_flip_p(differences, "two-sided")),
        smallest_p_one_sided=smallest_p(n, "greater"), smallest_p_two_sided=smallest_p(n, "two-sided"),
        d_z=d_z, power=power_paired_t(d_z, n, alpha), detectable_difference=detectable_d_z(n, alpha=alpha) * spread,
        confidence=confidence, reason=_why_untestable(n, bool(a), bool(b), common, undefined),
    )  # fmt: skip


def _is_number(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


def _order(seed: Hashable) -> tuple[str, ...] | tuple[int | float | str, ...]:
    """A sort key for seeds: numbers by size, tuples by their parts, None first."""
    parts = seed if isinstance(seed, tuple) else (seed,)
    return tuple(f"{part:020d}" if isinstance(part, int) else "" if part is None else str(part) for part in parts)


def _why_untestable(n: int, has_a: bool, has_b: bool, common: Sequence[Hashable], undefined: Sequence) -> str | None:
    if n >= 2:
        return None
    if not (has_a and has_b):
        return "cannot be tested because one of the modes has no runs"
    if not common:
        return "cannot be tested because the two modes have no common seeds"
    if undefined:
        return f"cannot be tested because the metric has no value in {len(undefined)} of {len(common)} paired runs"
    return "cannot be tested because there is only one pair of runs"
