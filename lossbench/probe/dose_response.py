"""Dose-response of the length exponent, and the lengths and weights behind a probe's drifts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lossbench.loss.modes import Mode, dose_mode
from lossbench.metrics.weights import elasticity, jensen_gap, sign_length_imbalance
from lossbench.probe.drift import Drift, DriftTable, Match, row_advantages, row_weights
from lossbench.probe.projections import Projections

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class DosePoint:
    """Drift under `length-power:alpha`, and the branch model's, scaled to agree at the reference alpha."""

    alpha: float
    drift: Drift
    theory: float | None


@dataclass(frozen=True)
class DoseResponse:
    """One direction and metric: points by alpha, and the alphas at which drift and whole drift cross zero.

    The drift crosses at 1 by construction, where the weights are the baseline's; `raw_zero` is where the bias cancels
    what reward and length share, if it does so within the alphas probed.
    """

    direction: str
    metric: str
    match: Match
    points: list[DosePoint]
    zero: float | None
    raw_zero: float | None


def dose_response(
    table: DriftTable, direction: str = "incorrect", metric: str = "plain", alphas: Sequence[float] = ALPHAS,
    match: Match = "row-weight", advantage: str = "none",
) -> DoseResponse:  # fmt: skip
    """Drift against the exponent of the weight, from w ~ 1/L (alpha 0) over constant (1) to w ~ L (2)."""
    ordered = sorted(alphas)
    modes = [dose_mode(alpha, advantage) for alpha in ordered]
    drifts = [table.drift(mode, direction, metric, match) for mode in modes]
    shape = [branch_model(table.probe, alpha, direction) for alpha in ordered]
    reference = min(range(len(ordered)), key=lambda i: (ordered[i] == 1.0, abs(ordered[i])))
    at_reference = drifts[reference].drift
    factor = at_reference / shape[reference] if at_reference is not None and shape[reference] else None
    points = [
        DosePoint(alpha, drift, None if factor is None else factor * value + 0.0)
        for alpha, drift, value in zip(ordered, drifts, shape, strict=True)
    ]
    return DoseResponse(
        direction, metric, match, points,
        zero_crossing(ordered, [drift.drift for drift in drifts]),
        zero_crossing(ordered, [drift.raw for drift in drifts]),
    )  # fmt: skip


def branch_model(probe: Projections, alpha: float, direction: str = "incorrect") -> float:
    """The branch model's drift under w = L^(alpha-1) at equal mean weight, from the measured lengths, up to one factor.

    With the score 1 - L / mean(L) of a stopping hazard, the pull is -Cov(w, L) / (mean(L) mean(w)) among the incorrect,
    its negative among the correct, and mu-weighted for all (Dr. GRPO's setting; derived for geometric lengths, where
    it is 0.749 at alpha 0 and mean length 50).
    """
    lengths_N, correct_N = probe.pool("lengths_N").astype(float), probe.pool("correct_N")
    live = lengths_N > 0
    lengths_N, correct_N = lengths_N[live], correct_N[live]
    mean_weight = float((lengths_N ** (alpha - 1)).mean())
    pulls = {
        name: -float(np.cov(values ** (alpha - 1), values, bias=True)[0, 1]) / (values.mean() * mean_weight)
        for name, values in (("incorrect", lengths_N[~correct_N]), ("correct", lengths_N[correct_N]))
        if len(values)
    }
    accuracy = float(correct_N.mean())
    if direction == "all":
        return (1 - accuracy) * pulls.get("incorrect", 0.0) - accuracy * pulls.get("correct", 0.0)
    return pulls.get(direction, 0.0) * (-1.0 if direction == "correct" else 1.0)


def zero_crossing(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """First x at which the broken line through the points crosses or touches 0; None where it does not."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 == 0:
            return x0
        if y0 * y1 < 0:
            return x0 + (x1 - x0) * y0 / (y0 - y1)
    return points[-1][0] if points and points[-1][1] == 0 else None


@dataclass(frozen=True)
class LengthFacts:
    """Lengths of one class of completions: count, mean (tokens), variation coefficient, Jensen gap (K2, 1/tokens)."""

    direction: str
    completions: int
    length_mean: float | None
    length_cv: float | None
    jensen_gap: float | None


def length_facts(probe: Projections) -> list[LengthFacts]:
    """A row per class of completions."""
    lengths_N, correct_N = probe.pool("lengths_N").astype(float), probe.pool("correct_N")
    classes = {"incorrect": ~correct_N, "correct": correct_N, "all": np.ones_like(correct_N)}
    rows = []
    for name, inside in classes.items():
        values = lengths_N[inside]
        if not len(values):
            rows.append(LengthFacts(name, 0, None, None, None))
            continue
        mean = float(values.mean())
        gap = jensen_gap(values)
        cv = float(values.std() / mean) if mean else None
        rows.append(LengthFacts(name, len(values), mean, cv, None if np.isnan(gap) else gap))
    return rows


@dataclass(frozen=True)
class Mechanism:
    """Means over the windows: elasticity of a token's weight in its row's length, among incorrect rows and among all
    (K1), and the sign-length imbalance sum w L A / sum w L |A| (K3)."""  # fmt: skip

    mode: str
    elasticity_incorrect: float | None
    elasticity_all: float | None
    sign_length_imbalance: float | None


def mechanism(probe: Projections, mode: Mode, micro_batch_rows: int | None = None) -> Mechanism:
    """K1 and K3 of one mode on the probed windows, which `micro_batch_rows` cuts for micro-token-mean."""
    found: list[tuple[float, float, float]] = []
    for window in probe.windows:
        weights_N = row_weights(window, mode, probe.horizon, micro_batch_rows)
        wrong = ~window.correct_N
        found.append((
            elasticity(window.lengths_N[wrong], weights_N[wrong]),
            elasticity(window.lengths_N, weights_N),
            sign_length_imbalance(weights_N, window.lengths_N, row_advantages(window, mode)),
        ))  # fmt: skip
    columns = np.array(found).T
    return Mechanism(mode.name, *(_settled(np.nanmean(c)) if not np.isnan(c).all() else None for c in columns))


def _settled(value: np.floating) -> float:
    """The value; 0 where it is no more than the rounding of a sum that is 0."""
    return 0.0 if abs(value) < 1e-12 else float(value)
