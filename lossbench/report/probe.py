"""Words and tables of the report's section on the gradient probe, where the sweep was probed."""

import math
from typing import TYPE_CHECKING

from lossbench.report.document import Block, Cell, Column, Table, Text, table
from lossbench.report.numbers import MISSING, NumberStyle, bare_p, count, number_style

if TYPE_CHECKING:
    from lossbench.claims.probe_evidence import FrozenProbe, ProbeSection
    from lossbench.probe.drift import Drift

_UNIT = "tokens per unit of step"


def probe_blocks(section: "ProbeSection") -> list[Block | None]:
    """The words and tables of the probe's section."""
    blocks: list[Block | None] = _frozen_blocks(section.frozen) if section.frozen is not None else []
    agreement = section.agreement
    if agreement is not None and math.isfinite(agreement.correlation.estimate):  # one run has no order
        rho, style = agreement.correlation, number_style("ratio")
        blocks.append(_text(
            f"Along {count(agreement.units, 'run')}, predicted and realised changes of incorrect length order "
            f"together with a rank correlation of {style.plain(rho.estimate)} {style.interval(rho.low, rho.high)}."
        ))  # fmt: skip
    if section.left_out:
        left_out = ", ".join(section.left_out)
        blocks.append(_text(f"Not shown, since no run of this sweep starts from what was probed: {left_out}."))
    return blocks


def _text(text: str) -> Text:
    return Text((text,))


def _frozen_blocks(probe: "FrozenProbe") -> list[Block | None]:
    metric = probe.drifts[0].metric
    tokens, gap, ratio = number_style("tokens", 10), number_style("1/tokens"), number_style("ratio")
    sampled = "; ".join(
        f"{row.direction} {row.completions:,} of mean {tokens.plain(row.length_mean)} tokens, variation "
        f"{ratio.plain(row.length_cv)}, E[1/L] − 1/E[L] = {gap.plain(row.jensen_gap)}"
        for row in probe.lengths
        if row.completions and row.direction != "all"
    )
    return [
        _text(
            f"The gradients of each mode on frozen rollouts of {'; '.join(probe.policies)}: "
            f"{count(probe.pairs, 'pair')} of batches, {probe.completions:,} completions, no training. A drift says "
            "how the mean length would move along a mode's gradient beyond what seq-mean-token-sum does, at equal "
            f"mean weight. Sampled: {sampled}."
        ),
        _drift_table(probe),
        _parts_table(probe),
        _company_table(probe, metric),
        table(
            f"Drift of incorrect length by policy, {metric} metric",
            ["mode", *(Column(policy, _UNIT) for policy in probe.policies)],
            [
                (Cell(drifts[0].mode, strong=True), *map(_drift_cell, drifts))
                for drifts in zip(*probe.drifts_by_policy, strict=True)
            ],
        ),
        _order_table(probe),
    ]


def _drift_table(probe: "FrozenProbe") -> Table | None:
    shown = {
        (row.mode, row.direction, row.metric): row for row in probe.drifts
        if row.match == "row-weight" and row.direction in ("incorrect", "correct")
    }  # fmt: skip
    names = [(direction, metric) for metric in dict.fromkeys(key[2] for key in shown)
             for direction in ("incorrect", "correct")]  # fmt: skip
    rows = [
        (Cell(mode, strong=True), *(_drift_cell(shown.get((mode, *name))) for name in names))
        for mode in dict.fromkeys(key[0] for key in shown)
    ]
    foot = "95 % t intervals over pairs of batches; bold where zero lies outside. Units differ between metrics."
    columns = ["mode", *(Column(f"{direction} length, {metric}", _UNIT) for direction, metric in names)]
    return table("Drift of length that each mode's weights add", columns, rows, foot)


def _drift_cell(row: "Drift | None") -> Cell:
    if row is None or row.drift is None:
        return Cell(MISSING, row.note if row else "")
    style = number_style("tokens", row.drift)
    if row.drift == 0 and row.note:
        return Cell("0", "by construction" if "by construction" in row.note else row.note)
    certain = row.low is not None and row.high is not None and (row.low > 0 or row.high < 0)
    return Cell(style.signed(row.drift), row.note or _interval(style, row.low, row.high), strong=certain)


def _interval(style: NumberStyle, low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else style.interval(low, high)


def _parts_table(probe: "FrozenProbe") -> Table | None:
    """The two parts of each mode's drift of incorrect length, and the share of the one that the other cancels."""
    ratio, rows = number_style("ratio"), []
    for part in (part for part in probe.parts if part.from_wrong is not None):
        style = number_style("tokens", part.from_wrong or math.nan)
        share = _interval(ratio, part.cancelled_low, part.cancelled_high)
        rows.append((
            Cell(part.mode, strong=True),
            Cell(style.signed(part.from_wrong), _interval(style, part.from_wrong_low, part.from_wrong_high)),
            Cell(style.signed(part.from_right), _interval(style, part.from_right_low, part.from_right_high)),
            Cell(ratio.plain(part.cancelled), share or "not determined"),
        ))  # fmt: skip
    foot = "What wrong answers do to themselves, and right ones to them: at ρ = 1 all of the push is cancelled."
    if bounds := _interval(ratio, probe.slopes.rho_low, probe.slopes.rho_high):
        foot += f" Slopes of the response curves, right over wrong: {ratio.plain(probe.slopes.rho)} {bounds}."
    columns = ["mode", Column("D_w, from wrong answers", _UNIT), Column("D_r, from right answers", _UNIT),
               Column("ρ = −D_r / D_w")]  # fmt: skip
    return table("Drift of incorrect length in two parts", columns, rows, foot)


def _company_table(probe: "FrozenProbe", metric: str) -> Table | None:
    """Figures that belong beside a mean: robust figures, the whole drift, the other way of matching, the mechanism."""
    incorrect = {
        (row.mode, row.match): row for row in probe.drifts if (row.direction, row.metric) == ("incorrect", metric)
    }
    columns = [
        "mode", Column("t"), Column("median", _UNIT), Column("sign test, p"), Column("with what reward says", _UNIT),
        Column("at equal gradient norm", _UNIT), Column("weight elasticity, incorrect"),
        Column("sign–length imbalance"),
    ]  # fmt: skip
    rows, ratio = [], number_style("ratio")
    for found in probe.mechanism:
        row = incorrect[found.mode, "row-weight"]
        whole, median = (number_style("tokens", value or math.nan) for value in (row.raw, row.median))
        rows.append((
            Cell(found.mode, strong=True), ratio.signed(row.t), median.signed(row.median),
            MISSING if row.sign_p is None else bare_p(row.sign_p),
            Cell(whole.signed(row.raw), _interval(whole, row.raw_low, row.raw_high)),
            _drift_cell(incorrect[found.mode, "gradient-norm"]), ratio.signed(found.elasticity_incorrect),
            number_style("norm").signed(found.sign_length_imbalance),
        ))  # fmt: skip
    foot = (
        f"Incorrect length, {metric} metric. With what reward says: the whole drift, what reward and length share "
        "included. Elasticity: of a token's weight in its completion's length, −1 for 1/L. "
        "Imbalance: Σ w L A / Σ w L |A|."
    )
    return table("Beside the mean", columns, rows, foot)


def _order_table(probe: "FrozenProbe") -> Table | None:
    columns = ["modes", Column("drift, a minus b", _UNIT), Column("trained length, a minus b", "tokens"), Column("p"),
               "they"]  # fmt: skip
    length, rows = number_style("tokens", 10), []
    for check in probe.orders:
        style = number_style("tokens", check.drift.estimate)
        drift = Cell(style.signed(check.drift.estimate), style.interval(check.drift.low, check.drift.high))
        rows.append((f"{check.mode_a} and {check.mode_b}", drift, length.signed(check.realised_tokens),
                     bare_p(check.p), Cell(check.verdict, strong=True)))  # fmt: skip
    foot = "Modes of equal advantage scale: where the scale differs, so does the unit of step."
    return table("Does the probe order modes as training does?", columns, rows, foot)
