"""The one sentence at the top: what was found, how large, how certain, from how many pairs of runs."""

from dataclasses import dataclass

from lossbench.metrics.length import METRICS
from lossbench.metrics.paired import PairedResult
from lossbench.report.data import ReportData
from lossbench.report.numbers import count, number_style, p_value, times

HEADLINES = {
    "late_length_incorrect": ("incorrect completions", "long"),
    "late_length_mean": ("completions", "long"),
    "late_reward": ("late reward", "high"),
}
"""The metrics a finding can be about, the first that both arms have; with the words for them."""

_PREFERRED = ("dr_grpo", "grpo")


@dataclass(frozen=True)
class Finding:
    """The sentence, and the comparison it rests on (None where there is nothing to compare)."""

    sentence: str
    metric: str | None = None
    arm: str | None = None
    reference: str | None = None


def find(data: ReportData) -> Finding:
    """The finding of a sweep: the most telling arm (Dr. GRPO, else the first) against its reference."""
    arms = {arm.name: ref for arm, ref in data.compared}
    if not arms:
        name = data.arms[0].name
        return Finding(f"Nothing can be compared: {name} is the only mode of this sweep.")
    arm = next((name for name in _PREFERRED if name in arms), next(iter(arms)))
    reference = arms[arm]
    metric = next((m for m in HEADLINES if data.values(arm, m).size and data.values(reference, m).size), None)
    if metric is None:
        return Finding(_nothing_yet(data, arm, reference), None, arm, reference)
    return Finding(_sentence(arm, reference, metric, data.pair(arm, reference, metric)), metric, arm, reference)


def _nothing_yet(data: ReportData, arm: str, reference: str) -> str:
    lacking = [name for name in (arm, reference) if not data.arm(name).completed]
    if lacking:
        return f"{arm} and {reference} cannot be compared yet because no run of {' and '.join(lacking)} is completed."
    return f"{arm} and {reference} cannot be compared because their runs have neither lengths nor rewards in common."


def _sentence(arm: str, reference: str, metric: str, result: PairedResult) -> str:
    noun, _ = HEADLINES[metric]
    subject = noun if metric == "late_reward" else f"length of {noun} late in training"
    if result.reason is not None:
        return f"The {subject} of {arm} vs {reference} {result.reason}{_seen(metric, result, arm, reference)}."
    if all(value == 0 for value in result.differences):
        return f"{arm} and {reference} show no difference in {subject}: identical in all {count(result.n, 'pair')}."
    if result.p_two_sided <= 1 - result.confidence:
        return f"{_ordered(arm, reference, metric, result)} ({_numbers(metric, result, positive=True)})."
    if result.smallest_p_two_sided > 1 - result.confidence:
        return (
            f"In {count(result.n, 'pair')} of runs {_ordered(arm, reference, metric, result)} "
            f"({_numbers(metric, result, positive=True)}): too few to tell from chance, as the smallest attainable p "
            f"is {result.smallest_p_two_sided:.2g}."
        )
    seen = _seen(metric, result, arm, reference)
    return f"{arm} and {reference} are not distinguishable in {subject}{seen}."


def _ordered(arm: str, reference: str, metric: str, result: PairedResult) -> str:
    """ "grpo's incorrect completions end 2.1× as long as dr_grpo's: 44.3 against 21.2 tokens"."""
    noun, adjective = HEADLINES[metric]
    up = result.difference > 0
    (high, low), ratio = ((arm, reference), result.ratio) if up else ((reference, arm), 1 / result.ratio)
    larger, smaller = (result.mean_a, result.mean_b) if up else (result.mean_b, result.mean_a)
    style = number_style(METRICS[metric].unit, larger)
    if metric == "late_reward":
        relation = f"is {adjective}er than {low}'s"
    elif ratio > 1:  # pairs of very unlike size can have a mean of ratios that says the contrary
        # The mean of the pairs' ratios need not be the ratio of the two means that follow.
        which = "" if times(ratio) == times(larger / smaller) else " (geometric mean over pairs)"
        relation = f"end {times(ratio)} as {adjective} as {low}'s{which}"
    else:
        relation = f"end {adjective}er than {low}'s"
    return f"{high}'s {noun} {relation}: {style.plain(larger)} vs {style.with_unit(smaller)}"


def _seen(metric: str, result: PairedResult, arm: str, reference: str) -> str:
    """Observed values of an undecided comparison, in brackets."""
    if not result.n:
        return ""
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    means = f"{arm} {style.plain(result.mean_a)}, {reference} {style.with_unit(result.mean_b)}"
    return f" ({means}; {_numbers(metric, result)})"


def _numbers(metric: str, result: PairedResult, positive: bool = False) -> str:
    """ "difference +27.6, 95 % interval +24.1 to +31.1, n = 8 paired seeds, p = 0.0078"; `positive` turns it round."""
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    turn = -1 if positive and result.difference < 0 else 1
    low, high = sorted((turn * result.ci_low, turn * result.ci_high))
    parts = [f"difference {style.signed(turn * result.difference)}"]
    if low == low:
        parts.append(f"{100 * result.confidence:.0f} % interval {style.signed(low)} to {style.signed(high)}")
    policies = len({key[0] for key in result.seeds if isinstance(key, tuple)})
    start = f" from {policies} policies" if policies > 1 else ""
    parts.append(f"n = {result.n} paired {'seed' if result.n == 1 else 'seeds'}{start}")
    if result.n > 1:
        parts.append(p_value(result.p_two_sided))
    return ", ".join(parts)


def support(data: ReportData, finding: Finding) -> tuple[str, ...]:
    """A few further sentences: reward at what price, and how the stated claims fared."""
    lines = []
    if finding.arm and finding.reference and finding.metric and finding.metric != "late_reward":
        result = data.pair(finding.arm, finding.reference, "late_reward")
        if result.n:
            style = number_style("reward")
            lines.append(
                f"Late reward: {finding.arm} {style.plain(result.mean_a)}, {finding.reference} "
                f"{style.plain(result.mean_b)} ({_numbers('late_reward', result)})."
            )
    tally: dict[str, int] = {}
    for verdict in data.verdicts:
        tally[verdict.status] = tally.get(verdict.status, 0) + 1
    if tally:
        words = ", ".join(f"{number} {status}" for status, number in tally.items())
        lines.append(f"Of {count(sum(tally.values()), 'claim')} stated in the plan: {words}.")
    return tuple(lines)
