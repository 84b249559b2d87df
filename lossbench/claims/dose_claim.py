"""The dose-response of a frozen probe as its claim needs it: drift by α with intervals, and one test of the fall."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lossbench.claims.registry import ALPHA, Claim
from lossbench.claims.verdict import DoseResponse, Verdict
from lossbench.loss.modes import dose_mode
from lossbench.probe.dose_response import ALPHAS
from lossbench.probe.drift import DriftTable
from lossbench.stats import Interval, sign_flip_p, t_interval


def dose_claim(table: DriftTable, alphas: Sequence[float] = ALPHAS, metric: str | None = None) -> DoseResponse:
    """Drift of incorrect length under length-power:α at equal row weight, without std in the advantage.

    `p_falling` and `p_rising` are one-sided sign-flip p over the pairs of batches, whose least-squares slopes against α
    are independent of each other. `metric` defaults to the probe's first.
    """
    metric = metric or table.probe.metrics[0]
    modes = [dose_mode(alpha) for alpha in alphas]
    values_AP = np.array([table.per_pair(mode, "incorrect", metric, "row-weight").values_P for mode in modes])
    intervals = [t_interval(values_P) for values_P in values_AP]
    pairs = values_AP.shape[1]
    slopes_P = np.polyfit(alphas, values_AP, 1)[0] if pairs and len(alphas) > 1 else np.zeros(0)
    return DoseResponse(
        alphas=tuple(alphas),
        drift=tuple(interval.estimate for interval in intervals),
        ci_low=tuple(interval.low for interval in intervals),
        ci_high=tuple(interval.high for interval in intervals),
        pairs=pairs,
        p_falling=float(sign_flip_p(slopes_P, "less")),
        p_rising=float(sign_flip_p(slopes_P, "greater")),
    )


def _lack_of(dose: DoseResponse, enough_alphas: bool, drift: np.ndarray) -> tuple[str, str] | None:
    """Reason why a probe cannot decide its claim, and the remedy; None if it can."""
    if not enough_alphas:
        return "the probe has too few values of α", "a probe with three or more values of α"
    if dose.pairs < 2:
        return "the probe has fewer than two pairs of batches", "a probe of several pairs (--batches)"
    if not np.all(np.isfinite(drift)):
        return "the probe has no incorrect completions whose length could drift", "a task that is sometimes failed"
    if not np.any(drift):
        return "every drift is zero: no group of the probe has rewards that differ", "a policy that sometimes succeeds"
    return None


def judge_dose(claim: Claim, dose: DoseResponse | None) -> Verdict:
    """The verdict on the probe's claim; None (no probe file) is not tested."""
    if dose is None:
        remedy = "lossbench probe with length-power:α for several α"
        return Verdict(claim, "not tested", "no probe file", remedy)
    order = np.argsort(dose.alphas)
    alphas, drift = np.array(dose.alphas)[order], np.array(dose.drift)[order]
    lack = _lack_of(dose, len(alphas) >= 3, drift)
    if lack is not None:
        return Verdict(claim, "not tested", f"cannot be tested because {lack[0]}", lack[1], n=dose.pairs)
    effect = Interval(*(float(np.array(side)[order][0]) for side in (dose.drift, dose.ci_low, dose.ci_high)))
    numbers = Verdict(claim, "inconclusive", "", effect=effect, unit=f"drift at α = {alphas[0]:g}", p=dose.p_falling,
                      n=dose.pairs)  # fmt: skip
    if dose.p_rising <= ALPHA:
        return replace(numbers, status="contradicted", reason=f"drift rises with α, p = {dose.p_rising:.3g}")
    if dose.p_falling <= ALPHA and bool(np.all(np.diff(drift) < 0)):
        return replace(numbers, status="supported", reason=f"falls at every step of α, p = {dose.p_falling:.3g}")
    return replace(numbers, reason=f"the fall is not monotone or not certain (p = {dose.p_falling:.3g})",
                   remedy="more pairs of batches")  # fmt: skip
