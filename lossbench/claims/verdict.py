"""Verdicts on claims: plain data that reports print."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from lossbench.claims.registry import Claim
from lossbench.metrics.length import METRICS
from lossbench.stats import Interval

Status = Literal["supported", "contradicted", "inconclusive", "not tested"]

NOTHING = Interval(float("nan"), float("nan"), float("nan"))
"""The interval of an effect that does not exist."""


def three_digits(value: float, sign: str = "") -> str:
    """Three significant digits as people write them, without an exponent where the number is large.

    >>> three_digits(107_432.0), three_digits(17.66), three_digits(0.04321, "+")
    ('107,000', '17.7', '+0.0432')
    """
    return f"{float(f'{value:.3g}'):{sign},.0f}" if abs(value) >= 999.5 else f"{value:{sign}.3g}"


@dataclass(frozen=True)
class PolicyEffect:
    """The effect among the seeds that start from one warm-started policy."""

    policy_seed: int | None
    n: int
    effect: Interval
    ratio: Interval


@dataclass(frozen=True)
class Verdict:
    """One claim judged.

    - effect: the contrast, in `unit` (the metric's unit, or "ratio" for claims about a ratio), with its 95 % t interval
      (90 % for ratio-equivalent claims, the interval that their test looks at)
    - ratio: first arm / second arm of a two-arm claim with its interval, NaN otherwise
    - p: of the claim's own test, NaN where it has none; p_holm: adjusted over the primary claims, NaN for others
    - seeds: pair keys (policy_seed, seed) used; left_out: what was not used, with why
    - reason: what decided the status; remedy: what would test or settle it, empty where it is settled
    - notes: further findings that belong beside the verdict
    """

    claim: Claim
    status: Status
    reason: str
    remedy: str = ""
    effect: Interval = NOTHING
    unit: str = ""
    ratio: Interval = NOTHING
    p: float = float("nan")
    p_holm: float = float("nan")
    n: int = 0
    seeds: tuple[Hashable, ...] = ()
    left_out: tuple[str, ...] = ()
    per_policy: tuple[PolicyEffect, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def policy_unit(self) -> str:
        """The unit of the effects per policy: they are differences of the metric also where the claim is of a ratio."""
        return METRICS[self.claim.metric].unit if self.claim.metric else self.unit

    def row(self) -> dict:
        """The verdict as one flat row for tables and machines."""
        return {
            "claim": self.claim.id, "sentence": self.claim.sentence, "status": self.status, "n": self.n,
            "effect": self.effect.estimate, "ci_low": self.effect.low, "ci_high": self.effect.high, "unit": self.unit,
            "confidence": self.effect.confidence, "ratio": self.ratio.estimate, "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high, "p": self.p, "p_holm": self.p_holm, "primary": self.claim.primary,
            "rank": self.claim.rank, "paper": self.claim.source_figure, "source": self.claim.source,
            "reason": self.reason, "remedy": self.remedy, "notes": "; ".join(self.notes),
            "left_out": "; ".join(self.left_out),
        }  # fmt: skip


@dataclass(frozen=True)
class DoseResponse:
    """Findings of the probe along α of length-power:α, for the claim on it; arrays as tuples of equal length.

    `drift` is the predicted drift of incorrect length relative to seq-mean-token-sum with its 95 % interval;
    `p_falling` is the one-sided p, over independent pairs of batches, of a slope against α that is not below 0, and
    `p_rising` of one that is not above it.
    """

    alphas: tuple[float, ...]
    drift: tuple[float, ...]
    ci_low: tuple[float, ...]
    ci_high: tuple[float, ...]
    pairs: int
    p_falling: float
    p_rising: float
