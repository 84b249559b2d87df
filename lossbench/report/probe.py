"""The probe's part of a report: what frozen rollouts say about the sweep's modes, where the sweep was probed."""

from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.report.document import Block, Cell, Column, Table, Text
from lossbench.report.wording import MISSING, count, number_style, p_value
from lossbench.store.read import Sweep
from lossbench.store.write import part_files

if TYPE_CHECKING:
    import pandas as pd

    from lossbench.analysis.drift import Drift
    from lossbench.analysis.drift_training import ProbeSection


def read_probe(sweep: Sweep, metrics: "pd.DataFrame") -> "ProbeSection | None":
    """The probe's findings for the sweep, whose `run_metrics` are `metrics`; None where it was not probed.

    Damaged files join the sweep's problems.
    """
    along_runs = any(_was_probed(sweep.run_dir(run_id)) for run_id in sweep.run_ids)
    if not along_runs and not any((sweep.path / "probe").glob("*.parquet")):
        return None
    # Loads torch, which sweeps without a probe can do without.
    from lossbench.analysis.drift_training import probe_section

    section = probe_section(sweep, metrics)
    if section is not None:
        sweep.problems += [problem for problem in section.problems if problem not in sweep.problems]
    return section


def _was_probed(run_dir: Path) -> bool:
    return (run_dir / "probe.parquet").exists() or "probe" in part_files(run_dir)


def probe_blocks(section: "ProbeSection") -> list[Block]:
    """The words and tables of the probe's section."""
    blocks: list[Block] = []
    if section.name is not None:
        blocks.append(Text(
            f"The gradients of each mode on frozen rollouts of {section.policy}: {count(section.pairs, 'pair')} of "
            f"batches, {section.completions:,} completions, no training. A drift says how the mean length would move "
            "along a mode's gradient beyond what seq-mean-token-sum does, at equal mean weight."
        ))  # fmt: skip
        blocks.append(_drift_table(section))
    if section.orders:
        blocks.append(_order_table(section))
    if section.agreement is not None:
        rho = section.agreement.correlation
        style = number_style("ratio")
        blocks.append(Text(
            f"Along {count(section.agreement.units, 'run')}, predicted and realised changes of incorrect length order "
            f"together with a rank correlation of {style.plain(rho.estimate)} {style.interval(rho.low, rho.high)}."
        ))  # fmt: skip
    return blocks


def _drift_table(section: "ProbeSection") -> Table:
    shown = [row for row in section.drifts if row.match == "row-weight" and row.direction in ("incorrect", "correct")]
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
        return Cell("0", "by construction")
    if row.low is None or row.high is None:
        return Cell(style.signed(row.drift), row.note)
    certain = row.low > 0 or row.high < 0
    return Cell(style.signed(row.drift), row.note or style.interval(row.low, row.high), strong=certain)


def _order_table(section: "ProbeSection") -> Table:
    columns = (Column("modes", numeric=False), Column("drift, a minus b", "tokens per unit of step"),
               Column("trained length, a minus b", "tokens"), Column("p"), Column("they", numeric=False))  # fmt: skip
    rows = []
    for check in section.orders:
        style, length = number_style("tokens", check.drift.estimate), number_style("tokens", 10)
        rows.append((
            Cell(f"{check.mode_a} and {check.mode_b}"),
            Cell(style.signed(check.drift.estimate), style.interval(check.drift.low, check.drift.high)),
            Cell(length.signed(check.realised_tokens)), Cell(p_value(check.p).removeprefix("p = ")),
            Cell(check.verdict, strong=True),
        ))  # fmt: skip
    return Table("Does the probe order modes as training does?", columns, tuple(rows))
