"""The sentence at the top: the answer to the sweep's first claim, or the first comparison, or one run's diagnosis."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations

from lossbench.claims.registry import ALPHA, Claim
from lossbench.claims.verdict import Verdict
from lossbench.diagnosis.diagnose import Diagnosis, diagnose, lines
from lossbench.errors import UsageError
from lossbench.metrics.length import METRICS
from lossbench.metrics.paired import PairedResult
from lossbench.report.data import ReportData
from lossbench.report.numbers import count, number_style, p_value
from lossbench.report.style import family, short_number
from lossbench.stats import Interval, seeds_needed

FEWEST_PAIRS = seeds_needed(ALPHA, "two-sided")
"""Pairs of runs that a two-sided test needs before it can tell anything."""

_POINTS = 2
"""Up to so many pairs, values are shown and nothing is computed from them."""

HEADLINES = ("late_length_incorrect", "late_length_mean", "late_reward")
"""The metrics that a comparison without claims is about, the first that both arms have."""

_SUBJECTS = {
    "late_length_incorrect": "incorrect completions end",
    "late_length_correct": "correct completions end",
    "late_length_mean": "completions end",
}


@dataclass(frozen=True)
class Finding:
    """The sentence, and the comparison of `arm` with `reference` on `metric` it is about (None without one)."""

    sentence: str
    metric: str | None = None
    arm: str | None = None
    reference: str | None = None


def find(data: ReportData) -> Finding:
    """The finding of a sweep; its comparison is that of its first claim on two modes, else of the first two modes."""
    if not data.compared:
        return Finding(_single(data))
    pair = next((found for verdict in data.verdicts if (found := sides(data, verdict.claim))), None)
    arm, reference = pair[:2] if pair else _foremost(data)
    metric = next((m for m in HEADLINES if data.values(arm, m).size and data.values(reference, m).size), None)
    first = next((verdict for verdict in data.verdicts if verdict.status != "not tested"), None)
    if first is not None:
        own = sides(data, first.claim)
        if own and first.claim.metric and first.claim.kind == "greater":
            return Finding(_compared(data, *own[:2], first.claim.metric, first), first.claim.metric, *own[:2])
        return Finding(_claimed(data, first), metric, arm, reference)
    if metric is None:
        return Finding(_nothing_yet(data, arm, reference), None, arm, reference)
    return Finding(_compared(data, arm, reference, metric), metric, arm, reference)


def sides(data: ReportData, claim: Claim) -> tuple[str, str, float] | None:
    """The arm and the reference that a claim sets against each other, and the sign that makes it arm minus reference.

    None where it does not compare one arm with its reference.
    """
    known = {arm.name: ref for arm, ref in data.compared}
    for arm, reference in permutations(claim.contrast, 2):
        if len(claim.contrast) == 2 and known.get(arm) == reference:
            return arm, reference, claim.contrast[arm]
    return None


def oriented(data: ReportData, verdict: Verdict) -> Verdict:
    """The verdict with its effects as mode minus reference, as everywhere in the report."""
    found = sides(data, verdict.claim)
    if found is None or found[2] > 0:
        return verdict
    policies = tuple(
        replace(part, effect=_turned(part.effect, verdict.policy_unit), ratio=_turned(part.ratio, "ratio"))
        for part in verdict.per_policy
    )
    effect, ratio = _turned(verdict.effect, verdict.unit), _turned(verdict.ratio, "ratio")
    return replace(verdict, effect=effect, ratio=ratio, per_policy=policies)


def _turned(interval: Interval, unit: str) -> Interval:
    ends = interval.estimate, interval.high, interval.low
    estimate, low, high = (1 / end for end in ends) if unit == "ratio" else (-end for end in ends)
    return Interval(estimate, low, high, interval.confidence)


def told(result: PairedResult) -> bool:
    """Whether the two-sided test rejects equality at the interval's level."""
    return result.reason is None and result.p_two_sided <= 1 - result.confidence


def in_words(metric: str, difference: float) -> str:
    """ "shorter", "longer", "lower" or "higher"."""
    words = ("shorter", "longer") if metric in _SUBJECTS else ("lower", "higher")
    return words[int(difference > 0)]


def difference_text(data: ReportData, arm: str, reference: str, metric: str) -> str:
    """ "dr_grpo's incorrect completions end 47.6 tokens shorter than grpo's", or that nothing can be told."""
    result = data.pair(arm, reference, metric)
    if not result.n:
        return ""
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    if told(result) and any(result.differences):
        size = style.with_unit(abs(result.difference))
        return f"{_subject(arm, metric)} {size} {in_words(metric, result.difference)} than {reference}'s"
    values = f"{style.plain(result.mean_a)} vs {style.with_unit(result.mean_b)}"
    return f"{_subject(arm, metric)} at {values} for {reference}: can't tell"


def _subject(arm: str, metric: str) -> str:
    return f"{arm}'s {_SUBJECTS.get(metric, f'{METRICS[metric].label} is')}"


def _foremost(data: ReportData) -> tuple[str, str]:
    """The first arm whose weights differ in family from its reference's, else the first compared."""
    of = {arm.name: family(arm.agg_mode) for arm in data.arms}
    apart = ((arm.name, ref) for arm, ref in data.compared if of[arm.name] != of[ref])
    return next(apart, (data.compared[0][0].name, data.compared[0][1]))


def _compared(data: ReportData, arm: str, reference: str, metric: str, verdict: Verdict | None = None) -> str:
    result = data.pair(arm, reference, metric)
    if not result.n:
        return f"{arm} and {reference} cannot be compared: the comparison {result.reason}."
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    values = f"{style.plain(result.mean_a)} vs {style.with_unit(result.mean_b)}"
    end = f" Claim {verdict.claim.id}: {verdict.status}." if verdict else ""
    if not any(result.differences):
        return f"{_subject(arm, metric)} at {values}, as {reference}'s: identical in {_pairs(result)}.{end}"
    clause = f"{_subject(arm, metric)} {in_words(metric, result.difference)} than {reference}'s"
    if result.n <= _POINTS:
        points = zip(result.values_a, result.values_b, strict=True)
        values = " and ".join(f"{style.plain(a)} vs {style.with_unit(b)}" for a, b in points)
        few = f"{FEWEST_PAIRS} are the fewest that can"
        return f"Can't tell whether {clause}: {values} in {_pairs(result)}; {few}.{end}"
    numbers = f"{style.signed(result.difference)} {style.interval(result.ci_low, result.ci_high)}"
    decided = verdict.status in ("supported", "contradicted") if verdict else told(result)
    p = p_value(_p(verdict) if verdict else result.p_two_sided)
    if decided:
        return f"{clause}: {values} ({numbers}, {p}, {_pairs(result)}).{end}"
    few = f"; {FEWEST_PAIRS} are the fewest that can" if result.n < FEWEST_PAIRS else ""
    return f"Can't tell whether {clause}: {values} ({numbers}, {p}, {_pairs(result)}{few}).{end}"


def _p(verdict: Verdict) -> float:
    """The p that decides a verdict."""
    return verdict.p_holm if verdict.p_holm == verdict.p_holm else verdict.p


def _pairs(result: PairedResult) -> str:
    policies = {key[0] for key in result.seeds if isinstance(key, tuple)} - {None}
    where = f" on {len(policies)} policies" if len(policies) > 1 else " on this one policy" if policies else ""
    return f"{count(result.n, 'pair')} of runs{where}"


def _claimed(data: ReportData, verdict: Verdict) -> str:
    """Any claim's verdict in a sentence."""
    p = f", {p_value(_p(verdict))}" if _p(verdict) == _p(verdict) else ""
    n = f"{count(verdict.n, 'pair')}{p}; " if verdict.n else ""
    return f"{verdict.status.capitalize()}: {verdict.claim.sentence.rstrip('.')} ({n}claim {verdict.claim.id})."


def _nothing_yet(data: ReportData, arm: str, reference: str) -> str:
    lacking = [name for name in (arm, reference) if not data.arm(name).completed]
    if lacking:
        return f"{arm} and {reference} cannot be compared yet because no run of {' and '.join(lacking)} is completed."
    return f"{arm} and {reference} cannot be compared because their runs have neither lengths nor rewards in common."


def diagnosis(data: ReportData) -> Diagnosis | None:
    """The diagnosis of the first run of a sweep with one mode; None where it has no step."""
    runs = sorted(data.sweep.run_ids, key=lambda run_id: not data.summary.by_run[run_id].row["complete"])
    with suppress(UsageError):
        return next(iter(diagnose(data.sweep, runs[:1])), None)
    return None


def _single(data: ReportData) -> str:
    found, runs = diagnosis(data), data.arms[0].planned
    if found is None:
        return f"No run of {data.arms[0].name} has made a step yet."
    which = "1 run" if runs == 1 else f"the first of {runs} runs"
    return f"{lines(found)[1].strip()} ({data.arms[0].name}, {which})"


def support(data: ReportData, finding: Finding) -> tuple[str, ...]:
    """A few further sentences: the setting, reward at what price, and how the stated claims fared."""
    said = [setting(data, [name for name in (finding.arm, finding.reference) if name] or [data.arms[0].name])]
    if finding.arm and finding.reference and finding.metric != "late_reward":
        result = data.pair(finding.arm, finding.reference, "late_reward")
        if result.n > _POINTS:
            style = number_style("reward")
            said.append(
                f"Late reward: {finding.arm} {style.plain(result.mean_a)} vs {finding.reference} "
                f"{style.plain(result.mean_b)} ({style.signed(result.difference)} "
                f"{style.interval(result.ci_low, result.ci_high)})."
            )
    tally = Counter(verdict.status for verdict in data.verdicts)
    if tally:
        words = ", ".join(f"{number} {status}" for status, number in tally.items())
        said.append(f"Of {count(sum(tally.values()), 'claim')} stated in the plan: {words}.")
    return tuple(line for line in said if line)


def setting(data: ReportData, arms: Sequence[str]) -> str:
    """Task, policy with its size, cap, and the share cut at it; what is not known is left out."""
    recipe, share = data.recipe, number_style("share")
    policy = recipe.get("model") or recipe.get("policy")
    size = f" ({short_number(float(f'{data.parameters:.3g}'))} parameters)" if data.parameters else ""
    parts = [f"task {recipe['task']}" if recipe.get("task") else "", f"policy {policy}{size}" if policy else ""]
    if cap := recipe.get("max_completion_length"):
        parts.append(f"at most {cap:,} tokens a completion")
    cut = [(arm, data.values(arm, "late_truncated_frac")) for arm in arms]
    shares = ", ".join(f"{arm} {share.with_unit(float(values.mean()))}" for arm, values in cut if values.size)
    parts.append(f"cut there late in training: {shares}" if shares else "")
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}." if text else ""
