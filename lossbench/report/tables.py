"""The report's tables, as data."""

import math
from collections.abc import Sequence

from lossbench.claims.judge import family_note
from lossbench.claims.verdict import Verdict
from lossbench.metrics.compare import WINDOW_FROM
from lossbench.metrics.length import METRICS
from lossbench.metrics.paired import PairedResult
from lossbench.report.data import Arm, ReportData
from lossbench.report.document import Cell, Column, Table
from lossbench.report.numbers import MISSING, NumberStyle, number_style, p_value, times
from lossbench.stats import Interval

ARM_METRICS = (
    "late_length_incorrect", "late_length_correct", "late_length_mean", "late_reward", "token_efficiency",
    "late_truncated_frac",
)  # fmt: skip
MATCHED_METRICS = {
    "step": ("late_length_incorrect", "late_length_correct", "late_reward"),
    "tokens": ("late_length_incorrect", "late_length_correct", "late_reward"),
    "reward": ("tokens_to_reward", "length_at_reward"),
}
_BASIS_WORDS = {"step": "equal step", "tokens": "equal tokens", "reward": "equal reward"}


def metric_style(data: ReportData, metric: str) -> NumberStyle:
    """Digits for a metric, from the size of its values in this sweep."""
    means = [abs(float(values.mean())) for arm in data.arms if (values := data.values(arm.name, metric)).size]
    return number_style(METRICS[metric].unit, max(means, default=math.nan))


def distinguishable(result: PairedResult) -> bool:
    """Whether the two-sided test rejects equality at the interval's level."""
    return result.reason is None and result.p_two_sided <= 1 - result.confidence


def difference_note(style: NumberStyle, result: PairedResult) -> str:
    """ "+27.6 [+24.1, +31.1]", or the reason why none exists."""
    if result.n == 0:
        return "no pairs"
    interval = style.interval(result.ci_low, result.ci_high)
    return f"{style.signed(result.difference)}\n{interval if interval != MISSING else '(1 pair)'}"


def arm_table(data: ReportData) -> Table:
    """Last-fifth means per arm, the difference to its reference with interval, and seeds counted."""
    metrics = [metric for metric in ARM_METRICS if data.has(metric)]
    columns = [Column("arm", numeric=False), Column("seeds")]
    columns += [_metric_column(metric) for metric in metrics]
    rows = [(_arm_cell(arm), _seeds_cell(arm), *(_metric_cell(data, arm, m) for m in metrics)) for arm in data.arms]
    foot = (
        "Means over completed runs of the last fifth of the planned steps (token efficiency: the whole run), pooled "
        "over completions within a run. Below: the paired difference to the reference mode with its 95 % t interval; "
        "bold where the exact sign-flip test rejects equality at 0.05. Seeds: completed of planned."
    )
    return Table("Late means of each mode", tuple(columns), tuple(rows), foot)


def _metric_column(metric: str) -> Column:
    unit = METRICS[metric].unit
    return Column(METRICS[metric].label, {"share": "%", "reward": ""}.get(unit, unit))


def definition_table(data: ReportData) -> Table:
    """Definition of each arm: its surrogate, aggregation with formula, advantage scale and policy."""
    from lossbench.loss.aggregations import parse_aggregation

    def formula(arm: Arm) -> str:
        try:
            return parse_aggregation(arm.agg_mode).entry.formula if arm.agg_mode else ""
        except ValueError:
            return ""

    titles = ("arm", "loss_type", "agg_mode", "scale_rewards", "policy")
    rows = tuple(
        (Cell(arm.name, strong=True), Cell(arm.loss_type or MISSING),
         Cell(arm.agg_mode or MISSING, f"w = {formula(arm)}" if formula(arm) else ""),
         Cell(arm.scale_rewards or MISSING), Cell(arm.policy or MISSING))
        for arm in data.arms
    )  # fmt: skip
    foot = (
        "w: weight of each token loss of completion i, over a window of N completions with T tokens in all; L_i its "
        "length, H the constant, P prompts, T_g tokens of its prompt's group, T_m of its micro-batch, M micro-batches."
    )
    return Table("Modes", tuple(Column(title, numeric=False) for title in titles), rows, foot)


def _arm_cell(arm: Arm) -> Cell:
    return Cell(arm.name, f"vs {arm.reference}" if arm.reference else "reference", strong=True)


def _seeds_cell(arm: Arm) -> Cell:
    other = ", ".join(f"{number} {status}" for status, number in arm.statuses.items() if status != "completed")
    return Cell(f"{arm.completed} of {arm.planned}", other)


def _metric_cell(data: ReportData, arm: Arm, metric: str) -> Cell:
    style, values = metric_style(data, metric), data.values(arm.name, metric)
    if not values.size:
        return Cell(MISSING)
    text = style.plain(float(values.mean()))
    if arm.reference is None:
        return Cell(text)
    result = data.pair(arm.name, arm.reference, metric)
    return Cell(text, difference_note(style, result), strong=distinguishable(result))


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Claim, the paper's figure, ours with interval, verdict, and the effect per policy."""
    titles = ("claim", "source's figure", "here", "verdict")
    columns = (*(Column(title, numeric=False) for title in titles), Column("n"), Column("p"))
    rows = tuple(_verdict_row(verdict) for verdict in verdicts)
    return Table("Claims stated before the runs", columns, rows, family_note(verdicts))


def _verdict_row(verdict: Verdict) -> tuple[Cell, ...]:
    claim = verdict.claim
    reasons = [verdict.reason, verdict.remedy and f"what would settle it: {verdict.remedy}", *verdict.notes]
    reasons += [f"left out: {text}" for text in verdict.left_out]
    why = "; ".join(text for text in reasons if text)
    effect = _effect(verdict.effect, verdict.unit)
    ratio = _ratio(verdict.ratio) if verdict.unit != "ratio" else ""
    if claim.kind == "ratio-equivalent" and effect != MISSING:
        effect += " (90 %)"
    policies = [
        f"policy {part.policy_seed}: {_effect(part.effect, verdict.policy_unit, named=verdict.unit == 'ratio')}"
        for part in verdict.per_policy
        if len(verdict.per_policy) > 1
    ]
    p = p_value(verdict.p_holm if math.isfinite(verdict.p_holm) else verdict.p).removeprefix("p = ").removeprefix("p ")
    return (
        Cell(f"{claim.id} ({claim.rank}): {claim.sentence}", claim.note),
        Cell(claim.source_figure, claim.source),
        Cell(effect, "\n".join([ratio, *policies] if ratio else policies)),
        Cell(verdict.status, why, strong=True, mark=verdict.status.replace(" ", "-")),
        Cell(str(verdict.n) if verdict.n else MISSING),
        Cell(p, "after Holm" if math.isfinite(verdict.p_holm) else ""),
    )


def _effect(interval: Interval, unit: str, named: bool = True) -> str:
    """Estimate with interval, and the unit where it is to be `named`."""
    if not math.isfinite(interval.estimate):
        return MISSING
    if unit == "ratio":
        style = number_style("ratio")
        return f"{style.plain(interval.estimate)}× {style.interval(interval.low, interval.high, sign='')}"
    style = number_style(unit if unit in METRIC_UNITS else "", max(abs(interval.estimate), 1e-12))
    name = style.unit_name if unit in METRIC_UNITS else unit
    text = f"{style.signed(interval.estimate)} {style.interval(interval.low, interval.high)}"
    return f"{text} {name}" if name and named else text


METRIC_UNITS = {metric.unit for metric in METRICS.values()}


def _ratio(ratio: Interval) -> str:
    if not math.isfinite(ratio.estimate):
        return ""
    return f"ratio {times(ratio.estimate)} {number_style('ratio').interval(ratio.low, ratio.high, sign='')}"


def matched_table(data: ReportData, basis: str) -> Table | None:
    """Each arm against its reference at equal step, tokens or reward; None where no arm has such a point."""
    metrics = MATCHED_METRICS[basis]
    rows = []
    for arm, reference, found in data.matched_of:
        if found.basis != basis:
            continue
        at = number_style(found.unit, found.at).with_unit(found.at) if found.at > 0 else MISSING
        if basis == "step" and found.at > 0:
            at = f"steps {math.floor(WINDOW_FROM * found.at) + 1} to {found.at:.0f}"
        results = {item.metric: item.result for item in found.comparisons}
        cells = [_matched_cell(metric, results.get(metric)) for metric in metrics]
        name = Cell(arm.name, f"vs {reference}" + (f": {found.reason}" if found.reason else ""))
        rows.append((name, Cell(at), *cells))
    if not rows:
        return None
    columns = [Column("arm", numeric=False), Column("at")]
    shown = [_metric_column(metric) for metric in metrics]
    columns += [Column(column.title.removeprefix("late "), column.unit) for column in shown]
    return Table(f"At {_BASIS_WORDS[basis]}", tuple(columns), tuple(rows))


def _matched_cell(metric: str, result: PairedResult | None) -> Cell:
    if result is None or result.n == 0:
        return Cell(MISSING)
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    means = f"{style.plain(result.mean_a)} vs {style.plain(result.mean_b)}"
    return Cell(means, difference_note(style, result), strong=distinguishable(result))


def pairwise_table(data: ReportData, metric: str) -> Table | None:
    """Row arm minus column arm for every pair; None with fewer than three arms, which one comparison tells."""
    arms = [arm for arm in data.arms if data.values(arm.name, metric).size]
    if len(arms) < 3:
        return None
    style = metric_style(data, metric)
    columns = [Column("row minus column", numeric=False), *(Column(arm.name) for arm in arms)]
    rows = []
    for row in arms:
        cells = [Cell(row.name, style.with_unit(float(data.values(row.name, metric).mean())), strong=True)]
        for other in arms:
            if other is row or other.policy != row.policy:  # pairs start from one policy
                cells.append(Cell("·" if other is row else MISSING))
            else:
                cells.append(_pair_cell(style, data.pair(row.name, other.name, metric)))
        rows.append(tuple(cells))
    unit = "percentage points" if style.share else METRICS[metric].unit
    return Table(f"Every pair: {METRICS[metric].label} ({unit})", tuple(columns), tuple(rows), _PAIR_FOOT)


_PAIR_FOOT = (
    "Bold: the exact sign-flip test rejects equality at 0.05 (two-sided, not adjusted for the number of pairs)."
)


def _pair_cell(style: NumberStyle, result: PairedResult) -> Cell:
    if result.n == 0:
        return Cell(MISSING)
    interval = style.interval(result.ci_low, result.ci_high)
    return Cell(style.signed(result.difference), interval if interval != MISSING else "", distinguishable(result))


def missing_table(data: ReportData) -> Table | None:
    """The planned runs that are not completed."""
    if not data.missing:
        return None
    columns = tuple(Column(title, numeric=False) for title in ("run", "arm", "seed", "status", "why", "log"))
    rows = tuple(
        (
            Cell(str(run["run_id"])), Cell(str(run["arm"])), Cell(_seed(run)), Cell(str(run["status"]), strong=True),
            Cell(run["reason"] if isinstance(run["reason"], str) else MISSING),
            Cell(MISSING if run["status"] == "pending" else f"runs/{run['run_id']}/log.txt"),
        )
        for run in data.missing
    )  # fmt: skip
    return Table(f"Runs that are missing: {len(rows)} of {len(data.summary.runs)}", columns, rows)


def _seed(run: dict) -> str:
    return MISSING if run["seed"] is None or run["seed"] != run["seed"] else str(int(run["seed"]))
