"""From metrics per run to a verdict per claim."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lossbench.claims.dose_claim import judge_dose
from lossbench.claims.policies import PolicyPoint, judge_policies
from lossbench.claims.registry import ALPHA, NULL_ARMS, NULL_POLICY, REWARD_MOVED, Claim, Contrast
from lossbench.claims.verdict import NOTHING, DoseResponse, PolicyEffect, Verdict, three_digits
from lossbench.metrics.compare import arm_values, pair_label
from lossbench.metrics.length import METRICS
from lossbench.metrics.paired import paired
from lossbench.metrics.weights import EXACT_CHECKS, ExactCheck
from lossbench.stats import (
    holm,
    non_inferiority,
    ratio_interval,
    seeds_needed,
    sign_flip_p,
    smallest_p,
    t_interval,
    tost,
)

EQUIVALENCE_CONFIDENCE = 1 - 2 * ALPHA
"""The interval that two one-sided tests at `ALPHA` look at."""


def judge_all(
    claims: Sequence[Claim],
    metrics: pd.DataFrame,
    dose: DoseResponse | None = None,
    points: Sequence[PolicyPoint] = (),
) -> list[Verdict]:
    """Judge each claim; Holm runs over the primary ones among `claims`, tested or not."""
    drafts = [_draft(claim, metrics, dose, points) for claim in claims]
    adjusted = holm({numbers.claim.id: p for numbers, p, _ in drafts if numbers.claim.primary})
    return [_decide(draft, adjusted.get(draft[0].claim.id), len(adjusted)) for draft in drafts]


def judge(
    claim: Claim, metrics: pd.DataFrame, dose: DoseResponse | None = None, points: Sequence[PolicyPoint] = ()
) -> Verdict:  # fmt: skip
    """Judge one claim by itself, as if it had been the only one stated."""
    return judge_all([claim], metrics, dose, points)[0]


_Judged = tuple[Verdict, float, bool]
"""The claim's numbers, its p, and whether they speak against it; a verdict with a reason needs no p to be decided."""


def _draft(claim: Claim, metrics: pd.DataFrame, dose: DoseResponse | None, points: Sequence[PolicyPoint]) -> _Judged:
    exact = _exact_checks(claim)
    notes = tuple(check.detail for check in exact)
    failed = "; ".join(check.detail for check in exact if not check.holds)
    if failed:
        return _settled(Verdict(claim, "contradicted", failed, notes=notes))
    if claim.kind == "exact":
        return _settled(Verdict(claim, "supported", "holds exactly, by computation", notes=notes))
    if claim.kind == "dose-response":
        return _settled(judge_dose(claim, dose))
    if claim.kind in ("rank", "sign"):
        return judge_policies(claim, points)
    data = _Data.of(claim, metrics)
    untestable = data.untestable()
    if untestable is not None:
        return _settled(replace(untestable, notes=notes))
    return _tested(claim, data, (*notes, *_beside(claim, metrics), *_on_the_null_policy(claim, metrics)))


def _settled(verdict: Verdict) -> _Judged:
    return verdict, float("nan"), False


def _exact_checks(claim: Claim) -> list[ExactCheck]:
    return [EXACT_CHECKS[name]() for name in claim.exact]


@dataclass(frozen=True)
class _Data:
    """The claim's metric by arm over the seeds that all its arms have: arrays of shape (n,)."""

    claim: Claim
    keys: tuple[Hashable, ...]
    by_arm: dict[str, np.ndarray]
    absent: tuple[str, ...]
    left_out: tuple[str, ...]
    undefined: int
    untaught: bool = False

    @classmethod
    def of(cls, claim: Claim, metrics: pd.DataFrame) -> "_Data":
        values = {arm: arm_values(metrics, arm, str(claim.metric)) for arm in claim.arms}
        absent = tuple(arm for arm, found in values.items() if not found)
        every = list(dict.fromkeys(key for found in values.values() for key in found))
        untaught = _untaught(claim, metrics)
        shared = [
            key for key in every if all(key in found for found in values.values()) and _policy(key) not in untaught
        ]
        keys = [key for key in shared if all(np.isfinite(found[key]) for found in values.values())]
        left_out = [
            f"{pair_label(key)}: {untaught.get(_policy(key), 'not completed in every mode')}"
            for key in every
            if key not in shared
        ]
        left_out += [f"{pair_label(key)}: {claim.metric} has no value" for key in shared if key not in keys]
        by_arm = {arm: np.array([found.get(key, np.nan) for key in keys]) for arm, found in values.items()}
        return cls(claim, tuple(keys), by_arm, absent, tuple(left_out), len(shared) - len(keys), bool(untaught))

    def contrast(self, contrast: Contrast) -> np.ndarray:
        return sum((weight * self.by_arm[arm] for arm, weight in contrast.items()), np.zeros(len(self.keys)))

    def untestable(self) -> Verdict | None:
        """The verdict "not tested" with its reason, None where there are two pairs or more."""
        if self.absent:
            names = ", ".join(self.absent)
            remedy = f"completed runs of {', '.join(self.claim.arms)} with the same seeds"
            return Verdict(self.claim, "not tested", f"no completed runs of {names}", remedy, left_out=self.left_out)
        if len(self.keys) >= 2:
            return None
        if not self.keys and self.undefined:
            why = f"{self.claim.metric} has no value in any seed that all its modes share"
        elif not self.keys and self.untaught:
            why = "the policies of its null control never learned, so nothing could have come of any mode"
        elif not self.keys:
            why = "its modes have no completed seeds in common"
        else:
            why = "only one seed has a value in all its modes"
        remedy = f"at least {seeds_needed(ALPHA)} seeds common to {', '.join(self.claim.arms)}"
        reason = f"cannot be tested because {why}"
        return Verdict(
            self.claim, "not tested", reason, remedy, n=len(self.keys), seeds=self.keys, left_out=self.left_out
        )


def _tested(claim: Claim, data: _Data, notes: tuple[str, ...]) -> _Judged:
    differences = data.contrast(claim.contrast)
    ratio_values = _ratio_pairs(claim, data)
    metric = METRICS[str(claim.metric)]
    numbers = Verdict(
        claim, "inconclusive", "", effect=t_interval(differences), unit=metric.unit,
        ratio=ratio_interval(*ratio_values) if ratio_values else NOTHING,
        n=len(data.keys), seeds=data.keys, left_out=data.left_out, notes=notes,
        per_policy=_per_policy(data, differences, ratio_values),
    )  # fmt: skip
    return _TESTS[claim.kind](data, differences, numbers)


def _beside(claim: Claim, metrics: pd.DataFrame) -> Iterator[str]:
    """The claim's descriptive metrics in words: the mean over completed runs of each arm that has one."""
    for name in claim.beside:
        values = {arm: list(arm_values(metrics, arm, name).values()) for arm in claim.arms}
        known = {arm: [value for value in found if np.isfinite(value)] for arm, found in values.items()}
        means = [
            f"{arm} {three_digits(float(np.mean(found)))} (n = {len(found)})" for arm, found in known.items() if found
        ]
        if means:
            yield f"{METRICS[name].label}, {METRICS[name].unit}: {', '.join(means)}"


def _policy(key: Hashable) -> Hashable:
    """The warm start of a pair key."""
    return key[0] if isinstance(key, tuple) else None


def _untaught(claim: Claim, metrics: pd.DataFrame) -> dict[Hashable, str]:
    """The policies on which an arm of a null control never learned, with the words for it.

    There, equal lengths of two modes are no evidence: no mode had anything to act on.
    """
    found: dict[Hashable, str] = {}
    for arm in (arm for arm in claim.arms if arm in NULL_ARMS):
        late, early = (arm_values(metrics, arm, name) for name in ("late_reward", "early_reward"))
        for policy in dict.fromkeys(map(_policy, late)):
            gains = [late[key] - early[key] for key in late if _policy(key) == policy and key in early]
            if gains and np.isfinite(np.mean(gains)) and np.mean(gains) < REWARD_MOVED:
                found[policy] = f"{arm} never learned from this policy"
    return found


def _on_the_null_policy(claim: Claim, metrics: pd.DataFrame) -> Iterator[str]:
    """Beside a claim about reward: the reward difference of its arms where they start from the null policy."""
    if claim.metric is None or not METRICS[claim.metric].unit.startswith("reward"):
        return
    first, second = (arm_values(metrics, f"{arm}[{NULL_POLICY}]", "late_reward") for arm in claim.contrast)
    found = paired(first, second)
    if found.n >= 2:
        low, high = three_digits(found.ci_low, "+"), three_digits(found.ci_high, "+")
        yield (
            f"late reward on the null policy, where the length bias is absent: {three_digits(found.difference, '+')} "
            f"[{low}, {high}], p = {found.p_two_sided:.3g} two-sided (n = {found.n})"
        )


def _ratio_pairs(claim: Claim, data: _Data) -> tuple[np.ndarray, np.ndarray] | None:
    """The two arms' values for claims about two arms, None for others."""
    if len(claim.contrast) != 2 or claim.rivals:
        return None
    first, second = claim.contrast
    return data.by_arm[first], data.by_arm[second]


def _greater(data: _Data, differences: np.ndarray, numbers: Verdict) -> _Judged:
    return numbers, float(sign_flip_p(differences, "greater")), numbers.effect.high < 0


def _non_inferior(data: _Data, differences: np.ndarray, numbers: Verdict) -> _Judged:
    margin = float(data.claim.margin or 0)
    p = non_inferiority(differences, margin)
    p_equal = tost(differences, -margin, margin)
    word = "equivalent" if p_equal <= ALPHA else "equivalence not shown"
    note = f"within ±{margin:g} (two one-sided t tests): {word}, p = {p_equal:.3g}"
    return replace(numbers, notes=(*numbers.notes, note)), p, numbers.effect.high < -margin


def _dominates(data: _Data, differences: np.ndarray, numbers: Verdict) -> _Judged:
    """Intersection-union test: the contrast exceeds each rival and its negative, so the largest p is the test's.

    One margin below 0 contradicts, and there are two for each rival, so their intervals share the level.
    """
    rivals = [data.contrast(rival) for rival in data.claim.rivals]
    margins = [differences + sign * rival for rival in rivals for sign in (-1, 1)]
    p = max(float(sign_flip_p(margin, "greater")) for margin in margins)
    against = any(t_interval(margin, 1 - ALPHA / len(margins)).high < 0 for margin in margins)
    largest = max(rivals, key=lambda rival: abs(rival.mean()))
    interval = t_interval(largest)
    low, high = three_digits(interval.low), three_digits(interval.high)
    note = f"largest rival effect {three_digits(interval.estimate, '+')} [{low}, {high}] {numbers.unit}"
    return replace(numbers, notes=(*numbers.notes, note)), p, against


def _ratio_equivalent(data: _Data, differences: np.ndarray, numbers: Verdict) -> _Judged:
    del differences  # a ratio is judged on the logs
    claim, ratio_values = data.claim, _ratio_pairs(data.claim, data)
    if ratio_values is None or claim.margin is None:
        raise ValueError(f"claim {claim.id}: a ratio needs two modes and a margin")
    a, b = ratio_values
    if not (np.all(a > 0) and np.all(b > 0)):
        reason = f"cannot be tested because {claim.metric} is not positive in every run, so it has no ratio"
        return _settled(replace(numbers, status="not tested", reason=reason))
    p = tost(np.log(a) - np.log(b), -np.log(claim.margin), np.log(claim.margin))
    against = numbers.ratio.outside(1 / claim.margin, claim.margin)
    numbers = replace(numbers, effect=ratio_interval(a, b, EQUIVALENCE_CONFIDENCE), unit="ratio")
    return numbers, p, against


_TESTS = {
    "greater": _greater, "non-inferior": _non_inferior, "dominates": _dominates, "ratio-equivalent": _ratio_equivalent,
}  # fmt: skip
"""Kind of claim about runs → its test."""


def _per_policy(
    data: _Data, differences: np.ndarray, ratio_values: tuple[np.ndarray, np.ndarray] | None
) -> tuple[PolicyEffect, ...]:
    policies = np.array([-1 if _policy(key) is None else _policy(key) for key in data.keys])
    effects = []
    for policy in np.unique(policies):
        mine = policies == policy
        ratio = ratio_interval(ratio_values[0][mine], ratio_values[1][mine]) if ratio_values else NOTHING
        name = None if policy == -1 else int(policy)
        effects.append(PolicyEffect(name, int(mine.sum()), t_interval(differences[mine]), ratio))
    return tuple(effects)


def _decide(judged: _Judged, p_holm: float | None, family: int) -> Verdict:
    verdict, p_alone, against = judged
    if verdict.reason:
        return verdict
    p = p_alone if p_holm is None else p_holm
    verdict = replace(verdict, p=p_alone, p_holm=float("nan") if p_holm is None else p_holm)
    name = "p" if p_holm is None or family == 1 else f"p after Holm over {family}"
    if p <= ALPHA and not against:
        return replace(verdict, status="supported", reason=f"{name} = {p:.3g}")
    if against:
        remedy = "" if verdict.n >= 5 else "more seeds: an interval of few runs is easily misled"
        why = "the 95 % interval lies on the other side"
        if verdict.claim.kind == "dominates":
            why = (
                "a rival effect is larger: the interval of what the claimed one has over it lies below 0, "
                f"at 95 % for all {2 * len(verdict.claim.rivals)} margins together"
            )
        return replace(verdict, status="contradicted", reason=why, remedy=remedy)
    reason, remedy = _why_inconclusive(verdict, f"{name} = {p:.3g}", family if p_holm is not None else 1)
    return replace(verdict, reason=reason, remedy=remedy)


def _why_inconclusive(verdict: Verdict, found: str, family: int) -> tuple[str, str]:
    needed = seeds_needed(ALPHA / family)
    if verdict.claim.kind in ("rank", "sign"):
        return f"{found} over {verdict.n} policies", "more policies, or more pairs of the probe"
    sign_test = verdict.claim.kind != "ratio-equivalent"
    if sign_test and smallest_p(verdict.n, "greater") > ALPHA / family:
        smallest = smallest_p(verdict.n, "greater")
        share = f"{ALPHA:g}" if family == 1 else f"{ALPHA:g} / {family}"
        reason = (
            f"{verdict.n} seeds cannot decide: the smallest attainable p is {smallest:.3g}, the first threshold {share}"
        )
        return reason, f"at least {needed} seeds"
    if verdict.effect.low == verdict.effect.high == 0:
        return f"no difference: identical in all {verdict.n} seeds", ""
    if sign_test:
        return f"{found}, and the interval does not exclude the claim", "more seeds, or longer runs"
    interval = f"[{verdict.effect.low:.3g}, {verdict.effect.high:.3g}]"
    margin = float(verdict.claim.margin or 1)
    return f"the 90 % interval {interval} is not inside {1 / margin:.3g} … {margin:g}", "more seeds"


def family_note(verdicts: Iterable[Verdict]) -> str:
    """One sentence on the family of primary claims, for the foot of a verdict table."""
    members = [verdict.claim.id for verdict in verdicts if verdict.claim.primary]
    if not members:
        return "No primary claims were stated."
    return f"Primary claims, adjusted together by Holm's method at {ALPHA:g}: {', '.join(members)}."
