"""Pictures of a probe: response curves, drift per mode, the dose-response curve, predicted beside realised change."""

from collections.abc import Sequence

import numpy as np

from lossbench.claims.policies import PolicyPoint, rank_correlation
from lossbench.loss.modes import parse_mode
from lossbench.probe.dose_response import DoseResponse
from lossbench.probe.drift import Drift
from lossbench.probe.realised import TrainedDrift, run_totals
from lossbench.probe.response import CurvePoint, Slopes
from lossbench.report.panels import Line, Panel, Picture, row_lines
from lossbench.report.style import mode_colors
from lossbench.stats import Interval

_UNIT = "tokens per unit of step"
_GRADIENT = {"plain": "plain gradient", "adam": "Adam's"}
_NONE = np.zeros(0)
_HUES = ("cool0", "cool2", "cool3", "warm0", "warm3", "warm1")


def _column(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def response_picture(curves: Sequence[CurvePoint], slopes: Slopes) -> Picture:
    """Pull on incorrect length by a completion's own length, of incorrect and of correct ones."""
    lines = []
    for branch, name, dash in (("wrong", "incorrect", "-"), ("right", "correct", "--")):
        points = [point for point in curves if point.branch == branch]
        low, high = _column([point.low for point in points]), _column([point.high for point in points])
        x, y = _column([point.length_mean for point in points]), _column([point.projection for point in points])
        lines.append(Line(x, y, "ink", name, dash, mark=4, low=low, high=high))
    panel = Panel(tuple(lines), "", "length of the completion (tokens)", "pull on incorrect length", True,
                  levels=((0.0, ""),))  # fmt: skip
    title = "Pull of completions on incorrect length, by their own length"
    if slopes.rho is not None:
        title += f": the slope of correct ones is {slopes.rho:.2g} of the incorrect ones'"
    return Picture(title, (panel,), 1, 9.0, 2.4)


def drift_picture(drifts: Sequence[Drift], metric: str = "plain", match: str = "row-weight") -> Picture:
    """A row per mode, incorrect and correct length side by side, bars are 95 % intervals."""
    rows = [row for row in drifts if row.metric == metric and row.match == match and row.drift is not None]
    modes = list(dict.fromkeys(row.mode for row in rows))
    colors = mode_colors((mode, mode, parse_mode(mode).agg_mode) for mode in modes)
    panels = []
    for direction in ("incorrect", "correct"):
        lines: list[Line] = []
        for row in (row for row in rows if row.direction == direction):
            bar = Interval(*_column([row.drift, row.low, row.high]))
            lines += row_lines(modes.index(row.mode), bar, _NONE, colors[row.mode], -1)
        x_label = f"shorter ← → longer ({_UNIT}, {_GRADIENT[metric]})"
        panels.append(Panel(tuple(lines), f"length of {direction} completions", x_label, uprights=(0.0,),
                            rows=tuple(modes)))  # fmt: skip
    longer = [row.mode for row in rows if row.direction == "incorrect" and (row.low or 0) > 0]
    title = f"Incorrect answers are predicted to grow, next to constant weights, under {', '.join(longer) or 'no mode'}"
    return Picture(title, tuple(panels), 2, 10.0, 0.3 + 0.3 * len(modes))


def dose_picture(doses: Sequence[DoseResponse]) -> Picture:
    """Drift against alpha with its 95 % band, the branch model's curve dashed, a panel per direction."""
    panels = []
    for dose in doses:
        points = [p for p in dose.points if p.drift.drift is not None and p.drift.low is not None]
        alphas = np.array([point.alpha for point in points])
        drift, low, high = (
            _column([getattr(p.drift, name) for p in points]) for name in ("drift", "low", "high")
        )  # fmt: skip
        lines = [Line(alphas, drift, "accent", "probe", mark=4, low=low, high=high)]
        if points and all(point.theory is not None for point in points):
            lines.append(Line(alphas, _column([p.theory for p in points]), "warn", "branch model", "--", 1.4))
        panels.append(Panel(tuple(lines), f"length of {dose.direction} completions", "α of the weight L^(α−1)",
                            f"drift ({_UNIT})", levels=((0.0, ""),)))  # fmt: skip
    title = "Drift vs the exponent of the weight: α = 0 is GRPO's, α = 1 Dr. GRPO's"
    return Picture(title, tuple(panels), 2, 10.0, 2.4)


def policies_picture(points: Sequence[PolicyPoint]) -> Picture:
    """A mark per policy: what training did to incorrect length, by the share of the push that its probe leaves."""
    kinds = list(dict.fromkeys(point.kind for point in points))
    lines = []
    for place, kind in enumerate(kinds):
        mine = [point for point in points if point.kind == kind]
        x, y = np.array([1 - point.cancelled for point in mine]), np.array([point.growth_tokens for point in mine])
        lines.append(Line(x, y, _HUES[place % len(_HUES)], kind.partition(" ")[2] or kind, width=0, mark=7))
    panel = Panel(tuple(lines), "", "share of the push that the probe finds not cancelled, 1 − ρ",
                  "growth under grpo beyond dr_grpo (tokens)", levels=((0.0, ""),), uprights=(0.0,))  # fmt: skip
    found, _ = rank_correlation(*np.array([(1 - point.cancelled, point.growth_tokens) for point in points]).T)
    title = f"Incorrect answers grow by what is not cancelled of the push: rank correlation {found.estimate:.2f} over "
    return Picture(f"{title}{len(points)} policies", (panel,), 1, 9.0, 3.6)


def trained_picture(points: Sequence[TrainedDrift]) -> Picture:
    """Predicted against realised change of incorrect length, a mark per run."""
    arm_of, totals = {point.run_id: point.arm for point in points}, run_totals(points)
    names = list(dict.fromkeys(arm_of.values()))
    modes = {name: name.partition("[")[0] for name in names}
    colors = mode_colors((name, modes[name], parse_mode(modes[name]).agg_mode) for name in names)
    lines = []
    for name in names:
        x, y = np.array([totals[run] for run in totals if arm_of[run] == name], dtype=float).T
        lines.append(Line(x, y, colors[name], name, width=0, mark=6))
    panel = Panel(tuple(lines), "", "predicted change of incorrect length (tokens)", "realised change (tokens)",
                  levels=((0.0, ""),), uprights=(0.0,))  # fmt: skip
    return Picture("Change of incorrect length that probes predicted, and that came", (panel,), 1, 7.0, 3.0)
