"""Figures of a probe: drift per mode, the dose-response curve, and predicted beside realised change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lossbench.probe.dose_response import DoseResponse
from lossbench.probe.drift import Drift
from lossbench.probe.realised import TrainedDrift, run_totals
from lossbench.report.style import FAINT, PALETTE, SOFT, arm_styles, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNIT = {
    "plain": "tokens per unit of step (plain gradient)",
    "adam": "tokens per unit of step (Adam's)",
}
_COLOR = {"incorrect": PALETTE[0], "correct": PALETTE[1], "all": PALETTE[4]}


def drift_figure(drifts: Sequence[Drift], metric: str = "plain", match: str = "row-weight") -> "Figure":
    """A forest plot: a line per mode, incorrect and correct length side by side, bars are 95 % intervals."""
    from matplotlib.figure import Figure

    rows = [row for row in drifts if row.metric == metric and row.match == match and row.drift is not None]
    modes = list(dict.fromkeys(row.mode for row in rows))
    with look():
        figure = Figure(figsize=(9.2, 1.3 + 0.36 * len(modes)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, direction in zip(axes, ("incorrect", "correct"), strict=True):
            axis.axvline(0, color=SOFT, linewidth=0.9)
            for row in (row for row in rows if row.direction == direction):
                place = modes.index(row.mode)
                if row.low is not None and row.high is not None:
                    axis.plot([row.low, row.high], [place, place], color=_COLOR[direction], linewidth=2.2)
                axis.plot([row.drift], [place], "o", color=_COLOR[direction])
            axis.set_title(f"length of {direction} completions")
            axis.set_xlabel(_UNIT[metric])
        axes[0].set_yticks(range(len(modes)), modes)
        axes[0].invert_yaxis()
        figure.suptitle(f"Predicted drift, less seq-mean-token-sum's, at equal {match.replace('-', ' ')}", fontsize=9.5)
        return figure


def dose_figure(doses: Sequence[DoseResponse]) -> "Figure":
    """Drift against alpha with its 95 % band, the branch model's curve dashed, a panel per direction."""
    from matplotlib.figure import Figure

    with look():
        figure = Figure(figsize=(4.6 * len(doses), 3.4), layout="constrained")
        panels = figure.subplots(1, len(doses), squeeze=False)[0]
        for axis, dose in zip(panels, doses, strict=True):
            _dose_panel(axis, dose)
        return figure


def _dose_panel(axis, dose: DoseResponse) -> None:
    points = [p for p in dose.points if p.drift.drift is not None and p.drift.low is not None]
    alphas = [point.alpha for point in points]
    color = _COLOR[dose.direction]
    axis.axhline(0, color=SOFT, linewidth=0.9)
    axis.axvline(1, color=FAINT, linewidth=0.9)
    axis.fill_between(
        alphas, [p.drift.low for p in points], [p.drift.high for p in points], color=color, alpha=0.18, lw=0
    )
    axis.plot(alphas, [p.drift.drift for p in points], marker="o", color=color, label="probe, 95 % interval")
    if points and all(point.theory is not None for point in points):
        axis.plot(alphas, [p.theory for p in points], "--", color=PALETTE[2], label="branch model, scaled at α = 0")
    axis.set_title(f"length of {dose.direction} completions")
    axis.set_xlabel("α of the weight L^(α−1): 0 is GRPO's, 1 Dr. GRPO's")
    axis.set_ylabel(_UNIT[dose.metric].split(" (")[0])
    axis.legend()


def trained_figure(points: Sequence[TrainedDrift]) -> "Figure":
    """Predicted against realised change of incorrect length, a point per run."""
    from matplotlib.figure import Figure

    arm_of = {point.run_id: point.arm for point in points}
    totals = run_totals(points)
    styles = arm_styles(list(dict.fromkeys(arm_of.values())))
    with look():
        figure = Figure(figsize=(4.8, 3.8), layout="constrained")
        axis = figure.subplots()
        for arm, style in styles.items():
            mine = [totals[run] for run in totals if arm_of[run] == arm]
            axis.plot(
                [p for p, _ in mine],
                [r for _, r in mine],
                linestyle="",
                marker=style.marker,
                color=style.color,
                label=arm,
            )
        axis.axhline(0, color=FAINT, linewidth=0.9)
        axis.axvline(0, color=FAINT, linewidth=0.9)
        axis.set_xlabel("predicted change of incorrect length, tokens")
        axis.set_ylabel("realised change, tokens")
        axis.legend()
        return figure
