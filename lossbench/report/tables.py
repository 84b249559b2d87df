"""The report's tables, as data."""

import math
from collections.abc import Iterator, Sequence

from lossbench.claims.judge import family_note
from lossbench.loss.aggregations import parse_aggregation
from lossbench.metrics.compare import WINDOW_FROM
from lossbench.metrics.length import METRICS
from lossbench.metrics.paired import PairedResult
from lossbench.report.data import Arm, ReportData
from lossbench.report.document import Cell, Column, Details, Table, table
from lossbench.report.finding import oriented, sides, told
from lossbench.report.numbers import MISSING, NumberStyle, bare_p, number_style, times
from lossbench.stats import Interval

ARM_METRICS = (
    "late_length_incorrect", "late_length_correct", "late_length_mean", "late_reward", "token_efficiency",
    "late_truncated_frac",
)  # fmt: skip
_MATCHED = ("late_length_incorrect", "late_length_correct", "late_reward")
_MATCHED_AT_REWARD = ("tokens_to_reward", "length_at_reward")


def metric_style(data: ReportData, metric: str) -> NumberStyle:
    """Digits for a metric, from the size of its values in this sweep."""
    means = [abs(float(values.mean())) for arm in data.arms if (values := data.values(arm.name, metric)).size]
    return number_style(METRICS[metric].unit, max(means, default=math.nan))


def difference_cell(style: NumberStyle, result: PairedResult, text: str = "") -> Cell:
    """`text` with the difference and its interval below it; the difference alone without text."""
    if result.n == 0:
        return Cell(text or MISSING, "no pairs" if text else "")
    interval = style.interval(result.ci_low, result.ci_high)
    difference = style.signed(result.difference)
    note = interval if interval != MISSING else "(1 pair)"
    return Cell(text or difference, f"{difference}\n{note}" if text else note, strong=told(result))


def _metric_columns(metrics: Sequence[str]) -> list[Column]:
    units = {metric: METRICS[metric].unit for metric in metrics}
    return [Column(METRICS[m].label, {"share": "%", "reward": ""}.get(unit, unit)) for m, unit in units.items()]


def arm_table(data: ReportData) -> Table | None:
    """Last-fifth means per arm, the difference to its reference with interval, and seeds counted."""
    metrics = [metric for metric in ARM_METRICS if data.has(metric)]

    def cell(arm: Arm, metric: str) -> Cell:
        style, values = metric_style(data, metric), data.values(arm.name, metric)
        text = style.plain(float(values.mean())) if values.size else MISSING
        if arm.reference is None or not values.size:
            return Cell(text)
        return difference_cell(style, data.pair(arm.name, arm.reference, metric), text)

    rows = []
    for arm in data.arms:
        other = ", ".join(f"{number} {status}" for status, number in arm.statuses.items() if status != "completed")
        vs = f"vs {arm.reference}" if arm.reference else "reference" if data.compared else ""
        seeds = Cell(f"{arm.completed} of {arm.planned}", other)
        rows.append((Cell(arm.name, vs, strong=True), seeds, *(cell(arm, metric) for metric in metrics)))
    foot = (
        "Means over completed runs of the last fifth of the planned steps (token efficiency: the whole run), pooled "
        "over completions within a run."
    )
    if data.compared:
        foot += (
            " Below: mode minus reference, paired, with its 95 % t interval; bold where the exact sign-flip test "
            "rejects equality at 0.05. Seeds: completed of planned."
        )
    return table("Late means of each mode", ["mode", Column("seeds"), *_metric_columns(metrics)], rows, foot)


def definition_table(data: ReportData) -> Table | None:
    """Definition of each arm: its surrogate, aggregation with formula, advantage scale and policy."""

    def formula(arm: Arm) -> str:
        try:
            return f"w = {parse_aggregation(arm.agg_mode).entry.formula}" if arm.agg_mode else ""
        except ValueError:
            return ""

    rows = [
        (Cell(arm.name, strong=True), arm.loss_type or MISSING, Cell(arm.agg_mode or MISSING, formula(arm)),
         arm.scale_rewards or MISSING, arm.policy or MISSING)
        for arm in data.arms
    ]  # fmt: skip
    foot = (
        "w: weight of each token loss of completion i, over a window of N completions with T tokens in all; L_i its "
        "length, H the constant, P prompts, T_g tokens of its prompt's group, T_m of its micro-batch, M micro-batches."
    )
    return table("Modes", ["mode", "loss_type", "agg_mode", "scale_rewards", "policy"], rows, foot)


def verdict_table(data: ReportData) -> Table | None:
    """Claim, its effect as mode minus reference with interval, verdict, pairs and the p that decides."""
    rows = []
    for verdict in (oriented(data, verdict) for verdict in data.verdicts):
        claim, pair = verdict.claim, sides(data, verdict.claim)
        effect = _effect(verdict.effect, verdict.unit)
        of = f"{pair[0]} {'/' if verdict.unit == 'ratio' else '−'} {pair[1]}" if pair and effect != MISSING else ""
        # A reason that only says the p again stands in its own column.
        reason = "" if verdict.reason.startswith("p ") else verdict.reason
        why = "; ".join(filter(None, [reason, verdict.remedy and f"what would settle it: {verdict.remedy}"]))
        holm = math.isfinite(verdict.p_holm)
        rows.append((
            Cell(f"{claim.id}: {claim.sentence}"), Cell(effect, of),
            Cell(verdict.status, why, strong=True, mark=verdict.status.replace(" ", "-")),
            str(verdict.n) if verdict.n else MISSING,
            Cell(bare_p(verdict.p_holm if holm else verdict.p), "after Holm" if holm else claim.rank),
        ))  # fmt: skip
    columns = ["claim", "effect", "verdict", Column("n"), Column("p")]
    return table("Claims stated before the runs", columns, rows, family_note(data.verdicts))


def claims_in_detail(data: ReportData) -> Details | None:
    """Each claim's source and its figure, notes, the ratio of the two modes, and the effect per policy."""
    rows = []
    for verdict in (oriented(data, verdict) for verdict in data.verdicts):
        claim, ratio = verdict.claim, verdict.ratio
        parts = [] if verdict.unit == "ratio" or not math.isfinite(ratio.estimate) else [
            f"ratio {_effect(ratio, 'ratio')}"
        ]  # fmt: skip
        parts += [
            f"policy {part.policy_seed}: {_effect(part.effect, verdict.policy_unit)}" for part in verdict.per_policy
            if len(verdict.per_policy) > 1
        ]  # fmt: skip
        notes = [claim.note, *verdict.notes, *(f"left out: {text}" for text in verdict.left_out)]
        rows.append((f"{claim.id} ({claim.rank})", Cell(claim.source_figure, claim.source),
                     Cell("", "\n".join(parts)), Cell("", "\n".join(filter(None, notes)))))  # fmt: skip
    found = table("Claims in detail", ["claim", "source's figure", "here", "notes"], rows)
    return Details("Sources, effects per policy, and notes", (found,)) if found else None


_METRIC_UNITS = {metric.unit for metric in METRICS.values()}


def _effect(interval: Interval, unit: str) -> str:
    """Estimate with interval and unit; an interval of another level says so."""
    if not math.isfinite(interval.estimate):
        return MISSING
    level = "" if interval.confidence == 0.95 else f" ({100 * interval.confidence:.0f} %)"
    if unit == "ratio":
        bounds = number_style("ratio").interval(interval.low, interval.high, sign="")
        return f"{times(interval.estimate)} {bounds}{level}"
    style = number_style(unit if unit in _METRIC_UNITS else "", max(abs(interval.estimate), 1e-12))
    name = style.unit_name if unit in _METRIC_UNITS else unit
    text = f"{style.signed(interval.estimate)} {style.interval(interval.low, interval.high)}{level}"
    return f"{text} {name}" if name else text


def matched_tables(data: ReportData) -> Iterator[Table | None]:
    """Each arm against its reference at equal step, tokens or reward."""
    for basis in dict.fromkeys(found.basis for _, _, found in data.matched):
        metrics = _MATCHED_AT_REWARD if basis == "reward" else _MATCHED
        rows = []
        for arm, reference, found in data.matched:
            if found.basis != basis:
                continue
            at = number_style(found.unit, found.at).with_unit(found.at) if found.at > 0 else MISSING
            if basis == "step" and found.at > 0:
                at = f"steps {math.floor(WINDOW_FROM * found.at) + 1} to {found.at:.0f}"
            results = {item.metric: item.result for item in found.comparisons}
            name = Cell(arm.name, f"vs {reference}" + (f": {found.reason}" if found.reason else ""))
            rows.append((name, at, *(_matched_cell(metric, results.get(metric)) for metric in metrics)))
        columns = [Column(c.title.removeprefix("late "), c.unit) for c in _metric_columns(metrics)]
        yield table(f"At equal {basis}", ["mode", Column("at"), *columns], rows)


def _matched_cell(metric: str, result: PairedResult | None) -> Cell:
    if result is None or result.n == 0:
        return Cell(MISSING)
    style = number_style(METRICS[metric].unit, max(abs(result.mean_a), abs(result.mean_b)))
    return difference_cell(style, result, f"{style.plain(result.mean_a)} vs {style.plain(result.mean_b)}")


def pairwise_table(data: ReportData, metric: str) -> Table | None:
    """Row minus column for every pair, later arms as rows; None with fewer than three arms: one comparison tells."""
    arms = [arm for arm in data.arms if data.values(arm.name, metric).size]
    if len(arms) < 3:
        return None
    style, rows = metric_style(data, metric), []
    for place, row in enumerate(arms[1:], 1):
        # Pairs start from one policy.
        pairs = [
            difference_cell(style, data.pair(row.name, other.name, metric)) if other.policy == row.policy else MISSING
            for other in arms[:place]
        ]
        mean = style.with_unit(float(data.values(row.name, metric).mean()))
        rows.append((Cell(row.name, mean, strong=True), *pairs, *[""] * (len(arms) - place - 1)))
    unit = "percentage points" if style.share else METRICS[metric].unit
    columns = ["row minus column", *(Column(arm.name) for arm in arms[:-1])]
    foot = "Bold: the exact sign-flip test rejects equality at 0.05 (two-sided, not adjusted for the number of pairs)."
    return table(f"Every pair: {METRICS[metric].label} ({unit})", columns, rows, foot)


def missing_table(data: ReportData) -> Table | None:
    """The planned runs that are not completed."""

    def seed(value: float | None) -> str:
        return MISSING if value is None or math.isnan(value) else str(int(value))

    rows = [
        (str(run["run_id"]), str(run["arm"]), seed(run["seed"]), Cell(str(run["status"]), strong=True),
         run["reason"] if isinstance(run["reason"], str) else MISSING,
         MISSING if run["status"] == "pending" else f"runs/{run['run_id']}/log.txt")
        for run in data.missing
    ]  # fmt: skip
    caption = f"Runs that are missing: {len(rows)} of {len(data.summary.runs)}"
    return table(caption, ["run", "mode", "seed", "status", "why", "log"], rows)
