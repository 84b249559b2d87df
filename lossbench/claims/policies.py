"""Policies as the unit: what training does to each, beside what the probe of the same policy says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats as scipy_stats

from lossbench.claims.registry import DR_GRPO, FEWEST_SIGNS, GRPO, Claim
from lossbench.claims.verdict import Verdict
from lossbench.loss.modes import parse_mode
from lossbench.metrics.length import records
from lossbench.probe.drift import DriftTable
from lossbench.probe.projections import Projections
from lossbench.probe.response import drift_parts
from lossbench.stats import Interval, t_interval
from lossbench.store.read import RUN_FILE, Sweep, read_json

if TYPE_CHECKING:
    import pandas as pd

_RESAMPLES = 9_999
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class PolicyPoint:
    """One policy; `kind` is shared by policies that differ in their seed alone.

    - growth_tokens: late incorrect length under grpo beyond dr_grpo's, mean over the seeds that both completed
    - cancelled: the share ρ of grpo's push that is cancelled
    - drift: of incorrect length under grpo at equal mean weight, with its 95 % interval over pairs
    """

    kind: str
    policy_seed: int | None
    growth_tokens: float
    cancelled: float
    drift: Interval


def policy_points(sweep: Sweep, metrics: "pd.DataFrame", probes: Sequence[Projections]) -> list[PolicyPoint]:
    """The policies that both modes started from and that `probes` are about, in the order of the plan."""
    lengths: dict[tuple[str, int | None], dict[str, dict[Any, float]]] = {}
    for run in records(metrics.loc[metrics["complete"].astype(bool) & metrics["mode"].isin([GRPO, DR_GRPO])]):
        spec = read_json(sweep.run_dir(run["run_id"]) / RUN_FILE).get("spec") or {}
        params = (spec.get("settings") or {}).get("policy_params")
        mine = lengths.setdefault(_key(run["policy"], params, run["policy_seed"]), {GRPO: {}, DR_GRPO: {}})
        mine[run["mode"]].setdefault(run["seed"], run["late_length_incorrect"])
    probed = {
        _key(str(facts.get("policy") or probe.policy.split(" ")[0]),
             (facts.get("load_options") or {}).get("policy_params"), facts.get("policy_seed")): probe
        for probe in probes for facts in (probe.facts,)
    }  # fmt: skip
    mode, points = parse_mode(GRPO), []
    for key, by_mode in lengths.items():
        growth = [by_mode[GRPO][seed] - by_mode[DR_GRPO][seed] for seed in by_mode[GRPO] if seed in by_mode[DR_GRPO]]
        if key in probed and growth and np.isfinite(np.mean(growth)):
            table, metric = DriftTable(probed[key]), probed[key].metrics[0]
            drift = t_interval(table.per_pair(mode, "incorrect", metric, "row-weight").values_P)
            share = drift_parts(table, mode, metric).cancelled
            points.append(PolicyPoint(*key, float(np.mean(growth)), np.nan if share is None else share, drift))
    return points


def _key(policy: str, params: dict[str, Any] | None, seed: Any) -> tuple[str, int | None]:
    words = [policy, *(f"{name}={value}" for name, value in sorted((params or {}).items()))]
    return " ".join(words), None if seed is None or seed != seed else int(seed)


def judge_policies(claim: Claim, points: Sequence[PolicyPoint]) -> tuple[Verdict, float, bool]:
    """The claim's numbers, its p, and whether the numbers speak against it."""
    return _by_rank(claim, points) if claim.kind == "rank" else _by_sign(claim, points)


def rank_correlation(x_P: np.ndarray, y_P: np.ndarray, seed: int = 0) -> tuple[Interval, float]:
    """Spearman's correlation with its percentile bootstrap interval over policies, and its two-sided bootstrap p."""
    picks_RP = np.random.default_rng(seed).integers(len(x_P), size=(_RESAMPLES, len(x_P)))
    with np.errstate(invalid="ignore"):  # a resample of one policy alone has no correlation
        drawn_R = _correlation(*(scipy_stats.rankdata(values_P[picks_RP], axis=1) for values_P in (x_P, y_P)))
    drawn_R = drawn_R[np.isfinite(drawn_R)]
    tails = (1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2
    low, high = np.quantile(drawn_R, tails) if len(drawn_R) else (np.nan, np.nan)
    whole = _correlation(*(scipy_stats.rankdata(values_P)[None] for values_P in (x_P, y_P)))[0]
    beyond = min(np.count_nonzero(drawn_R <= 0), np.count_nonzero(drawn_R >= 0))
    return Interval(float(whole), float(low), float(high)), min(1.0, 2 * (1 + beyond) / (1 + len(drawn_R)))


def _correlation(x_RP: np.ndarray, y_RP: np.ndarray) -> np.ndarray:
    x_RP, y_RP = (values - values.mean(axis=1, keepdims=True) for values in (x_RP, y_RP))
    return (x_RP * y_RP).sum(axis=1) / np.sqrt((x_RP**2).sum(axis=1) * (y_RP**2).sum(axis=1))


def _by_rank(claim: Claim, points: Sequence[PolicyPoint]) -> tuple[Verdict, float, bool]:
    known = [point for point in points if np.isfinite(point.cancelled)]
    if len(known) < 3:
        return _untested(claim, len(known), 3), np.nan, False
    growth_P = np.array([point.growth_tokens for point in known])
    left_P = 1 - np.array([point.cancelled for point in known])
    found, p = rank_correlation(left_P, growth_P)
    kinds = np.array([point.kind for point in known])
    notes: tuple[str, ...] = ()
    if len(set(kinds)) > 1 and len(set(kinds)) < len(known):
        within, _ = rank_correlation(_about_kind_means(left_P, kinds), _about_kind_means(growth_P, kinds))
        notes = (f"within kinds of policy, pooled: {within.estimate:.2f} [{within.low:.2f}, {within.high:.2f}]",)
    verdict = Verdict(claim, "inconclusive", "", effect=found, unit="rank correlation", n=len(known), notes=notes)
    return verdict, p, found.high < 0


def _about_kind_means(values_P: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    return values_P - np.array([values_P[kinds == kind].mean() for kind in kinds])


def _by_sign(claim: Claim, points: Sequence[PolicyPoint]) -> tuple[Verdict, float, bool]:
    settled = [point for point in points if point.drift.outside(0.0, 0.0)]
    if len(settled) < FEWEST_SIGNS:
        return _untested(claim, len(settled), FEWEST_SIGNS), np.nan, False
    equal = sum(point.drift.estimate * point.growth_tokens > 0 for point in settled)
    test = scipy_stats.binomtest(equal, len(settled), alternative="greater")
    bounds = scipy_stats.binomtest(equal, len(settled)).proportion_ci()
    share = Interval(equal / len(settled), float(bounds.low), float(bounds.high))
    negative = sum(point.drift.estimate < 0 for point in settled)
    notes = (f"{equal} of {len(settled)} signs agree; the drift is negative on {negative} of these policies",)
    verdict = Verdict(claim, "inconclusive", "", effect=share, unit="share of signs", n=len(settled), notes=notes)
    return verdict, float(test.pvalue), share.high < 0.5


def _untested(claim: Claim, found: int, needed: int) -> Verdict:
    reason = f"cannot be tested because {found} policies have both modes' runs and a probe that tells"
    return Verdict(claim, "not tested", reason, f"runs and probes of at least {needed} policies", n=found)
