"""The probe's part of a report: what frozen rollouts say about the sweep's modes, where the sweep was probed."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.report.document import Block, Cell, Column, Table, Text
from lossbench.report.numbers import MISSING, NumberStyle, count, number_style, p_value
from lossbench.store.read import Sweep
from lossbench.store.write import part_files

if TYPE_CHECKING:
    import pandas as pd

    from lossbench.claims.probe_evidence import FrozenProbe, ProbeSection
    from lossbench.probe.drift import Drift


def read_probe(sweep: Sweep, metrics: "pd.DataFrame") -> "ProbeSection | None":
    """The probe's findings for the sweep, whose `run_metrics` are `metrics`; None where it was not probed.

    Damaged files join the sweep's problems.
    """
    along_runs = any(_was_probed(sweep.run_dir(run_id)) for run_id in sweep.run_ids)
    if not along_runs and not any((sweep.path / "probe").glob("*.parquet")):
        return None
    # Loads torch, which sweeps without a probe can do without.
    from lossbench.claims.probe_evidence import probe_section

    section = probe_section(sweep, metrics)
    if section is not None:
        sweep.problems += [problem for problem in section.problems if problem not in sweep.problems]
    return section


def _was_probed(run_dir: Path) -> bool:
    return (run_dir / "probe.parquet").exists() or "probe" in part_files(run_dir)


def probe_blocks(section: "ProbeSection") -> list[Block]:
    """The words and tables of the probe's section."""
    blocks: list[Block] = []
    if section.frozen is not None:
        blocks += _frozen_blocks(section.frozen)
    agreement = section.agreement
    if agreement is not None and math.isfinite(agreement.correlation.estimate):  # one run has no order
        rho = agreement.correlation
        style = number_style("ratio")
        blocks.append(Text(
            f"Along {count(agreement.units, 'run')}, predicted and realised changes of incorrect length order "
            f"together with a rank correlation of {style.plain(rho.estimate)} {style.interval(rho.low, rho.high)}."
        ))  # fmt: skip
    if section.left_out:
        blocks.append(Text(
            f"Not shown, since no run of this sweep starts from what was probed: {', '.join(section.left_out)}."
        ))  # fmt: skip
    return blocks


def _frozen_blocks(probe: "FrozenProbe") -> list[Block]:
    metric = probe.drifts[0].metric
    blocks: list[Block] = [
        Text(probe.sentence),
        Text(
            f"The gradients of each mode on frozen rollouts of {'; '.join(probe.policies)}: "
            f"{count(probe.pairs, 'pair')} of batches, {probe.completions:,} completions, no training. A drift says "
            "how the mean length would move along a mode's gradient beyond what seq-mean-token-sum does, at equal "
            f"mean weight. {_lengths(probe)}"
        ),
        _drift_table(probe),
        _parts_table(probe),
        _company_table(probe, metric),
    ]
    if probe.drifts_by_policy:
        blocks.append(_policy_table(probe, metric))
    if probe.orders:
        blocks.append(_order_table(probe))
    return blocks


def _lengths(probe: "FrozenProbe") -> str:
    """The lengths sampled: what spread a weight that looks at length has to work with."""
    tokens, gap = number_style("tokens", 10), number_style("1/tokens")
    told = [
        f"{row.direction} {row.completions:,} of mean {tokens.plain(row.length_mean)} tokens, variation "
        f"{number_style('ratio').plain(row.length_cv)}, E[1/L] − 1/E[L] = {gap.plain(row.jensen_gap)}"
        for row in probe.lengths
        if row.completions and row.direction != "all"
    ]
    return f"Sampled: {'; '.join(told)}."


def _drift_table(probe: "FrozenProbe") -> Table:
    shown = [row for row in probe.drifts if row.match == "row-weight" and row.direction in ("incorrect", "correct")]
    metrics = list(dict.fromkeys(row.metric for row in shown))
    names = [(direction, metric) for metric in metrics for direction in ("incorrect", "correct")]
    cells: dict[str, dict[tuple[str, str], Drift]] = {}
    for row in shown:
        cells.setdefault(row.mode, {})[row.direction, row.metric] = row
    columns = [Column("mode", numeric=False)]
    columns += [Column(f"{direction} length, {metric}", "tokens per unit of step") for direction, metric in names]
    rows = tuple(
        (Cell(mode, strong=True), *(_drift_cell(found.get(name)) for name in names)) for mode, found in cells.items()
    )
    foot = "95 % t intervals over pairs of batches; bold where zero lies outside. Units differ between metrics."
    return Table("Drift of length that each mode's weights add", tuple(columns), rows, foot)


def _drift_cell(row: "Drift | None") -> Cell:
    if row is None or row.drift is None:
        return Cell(MISSING, row.note if row else "")
    style = number_style("tokens", row.drift)
    if row.drift == 0 and row.note:
        return Cell("0", "by construction" if "by construction" in row.note else row.note)
    if row.low is None or row.high is None:
        return Cell(style.signed(row.drift), row.note)
    certain = row.low > 0 or row.high < 0
    return Cell(style.signed(row.drift), row.note or style.interval(row.low, row.high), strong=certain)


def _parts_table(probe: "FrozenProbe") -> Table:
    """The two parts of each mode's drift of incorrect length, and the share of the one that the other cancels."""
    ratio, unit = number_style("ratio"), "tokens per unit of step"
    columns = (Column("mode", numeric=False), Column("D_w, from wrong answers", unit),
               Column("D_r, from right answers", unit), Column("ρ = −D_r / D_w"))  # fmt: skip
    rows = []
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
    return Table("Drift of incorrect length in two parts", columns, tuple(rows), foot)


def _interval(style: NumberStyle, low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else style.interval(low, high)


def _company_table(probe: "FrozenProbe", metric: str) -> Table:
    """Figures that belong beside a mean: robust figures, the whole drift, the other way of matching, the mechanism."""
    incorrect = {
        (row.mode, row.match): row for row in probe.drifts if (row.direction, row.metric) == ("incorrect", metric)
    }
    unit = "tokens per unit of step"
    columns = (
        Column("mode", numeric=False), Column("t"), Column("median", unit), Column("sign test, p"),
        Column("with what reward says", unit), Column("at equal gradient norm", unit),
        Column("weight elasticity, incorrect"), Column("sign–length imbalance"),
    )  # fmt: skip
    rows = []
    for found in probe.mechanism:
        by_weight, by_norm = incorrect[found.mode, "row-weight"], incorrect[found.mode, "gradient-norm"]
        style, ratio = number_style("tokens", by_weight.raw or float("nan")), number_style("ratio")
        rows.append((
            Cell(found.mode, strong=True), Cell(ratio.signed(by_weight.t)),
            Cell(number_style("tokens", by_weight.median or float("nan")).signed(by_weight.median)),
            Cell(MISSING if by_weight.sign_p is None else _bare_p(by_weight.sign_p)),
            Cell(style.signed(by_weight.raw), _interval(style, by_weight.raw_low, by_weight.raw_high)),
            _drift_cell(by_norm), Cell(ratio.signed(found.elasticity_incorrect)),
            Cell(number_style("norm").signed(found.sign_length_imbalance)),
        ))  # fmt: skip
    foot = (
        f"Incorrect length, {metric} metric. With what reward says: the whole drift, what reward and length share "
        "included. Elasticity: of a token's weight in its completion's length, −1 for 1/L. "
        "Imbalance: Σ w L A / Σ w L |A|."
    )
    return Table("Beside the mean", columns, tuple(rows), foot)


def _policy_table(probe: "FrozenProbe", metric: str) -> Table:
    columns = (Column("mode", numeric=False),
               *(Column(policy, "tokens per unit of step") for policy in probe.policies))  # fmt: skip
    rows = tuple(
        (Cell(drifts[0].mode, strong=True), *(_drift_cell(row) for row in drifts))
        for drifts in zip(*probe.drifts_by_policy, strict=True)
    )
    return Table(f"Drift of incorrect length by policy, {metric} metric", columns, rows)


def _bare_p(p: float) -> str:
    """A p-value for a column that is called p."""
    return p_value(p).removeprefix("p ").removeprefix("= ")


def _order_table(probe: "FrozenProbe") -> Table:
    columns = (Column("modes", numeric=False), Column("drift, a minus b", "tokens per unit of step"),
               Column("trained length, a minus b", "tokens"), Column("p"), Column("they", numeric=False))  # fmt: skip
    rows = []
    for check in probe.orders:
        style, length = number_style("tokens", check.drift.estimate), number_style("tokens", 10)
        rows.append((
            Cell(f"{check.mode_a} and {check.mode_b}"),
            Cell(style.signed(check.drift.estimate), style.interval(check.drift.low, check.drift.high)),
            Cell(length.signed(check.realised_tokens)), Cell(_bare_p(check.p)),
            Cell(check.verdict, strong=True),
        ))  # fmt: skip
    foot = "Modes of equal advantage scale: where the scale differs, so does the unit of step."
    return Table("Does the probe order modes as training does?", columns, tuple(rows), foot)
