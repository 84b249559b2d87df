"""Figures of what happens during training: curves by step and by tokens, trajectories, distributions of length."""

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lossbench.metrics.curves import UNITS, Axis, LengthCounts, curves, length_distributions
from lossbench.report.data import ReportData
from lossbench.report.panels import (
    COLUMNS,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    Line,
    Quantity,
    draw_line,
    draw_quantities,
    legend,
    wrapped,
)
from lossbench.report.style import INK, SOFT

PATH_POINTS = 12
"""Blocks of steps along a trajectory: noise goes both ways on both of its axes, so they are wide."""

X_LABELS: dict[Axis, str] = {"step": "optimizer step", "tokens": "tokens generated"}

TITLES = {
    "reward": "Reward", "length_mean": "Length of all completions",
    "length_incorrect": "Length of incorrect completions",
    "length_correct": "Length of correct completions", "truncated_frac": "Completions cut at the cap",
    "zero_std_frac": "Groups without spread in reward", "entropy": "Entropy of the policy",
    "clip_frac": "Tokens with an active clip", "grad_norm": "Gradient norm before clipping",
    "gap_within_prompt": "Incorrect minus correct length within a prompt",
    "hazard_incorrect": "Stopping hazard of incorrect completions",
    "hazard_correct": "Stopping hazard of correct completions",
    "added_incorrect": "Push on the stop logit of incorrect completions",
    "added_correct": "Push on the stop logit of correct completions",
}  # fmt: skip

_FEWEST_FOR_BAND = 3


def quantity(data: ReportData, name: str, axis: Axis = "step") -> Quantity:
    """A quantity of the step sums as lines: mean over seeds, pointwise band, a line per seed."""
    lines = {}
    for arm, curve in curves(data.summary, name, axis).items():
        if np.isfinite(curve.mean).any():
            seeds = tuple((curve.x, line.y) for line in curve.lines) if len(curve.lines) > 1 else ()
            # Past the end of the first run the mean would be that of other runs than before.
            shared = np.arange(len(curve.x)) <= np.flatnonzero(curve.n == curve.n.max())[-1]
            mean, low, high = (np.where(shared, y, np.nan) for y in (curve.mean, curve.low, curve.high))
            # The interval of two runs is so wide that it would hide them.
            banded = curve.n.max() >= _FEWEST_FOR_BAND
            lines[arm] = Line(curve.x, mean, low if banded else None, high if banded else None, seeds)
    percent = UNITS[name] == "share"
    label = "share of completions" if name == "truncated_frac" else UNITS[name] if not percent else "share"
    unit = {"reward": "mean reward", "tokens": "length (tokens)"}.get(label, label)
    from_zero = percent or UNITS[name] == "tokens"
    return Quantity(TITLES[name], X_LABELS[axis], unit, lines, percent, from_zero)


def reward_length(data: ReportData) -> Figure | None:
    """Reward and mean length against step."""
    return draw_quantities(data.arms, [quantity(data, "reward"), quantity(data, "length_mean")])


def length_by_correctness(data: ReportData) -> Figure | None:
    """Length of incorrect and of correct completions against step."""
    return draw_quantities(data.arms, [quantity(data, "length_incorrect"), quantity(data, "length_correct")])


def stopping(data: ReportData) -> Figure | None:
    """Stopping hazard per free token, incorrect and correct, and below them the push of each arm's mode on it."""
    names = ("hazard_incorrect", "hazard_correct", "added_incorrect", "added_correct")
    return draw_quantities(data.arms, [without_runs(quantity(data, name)) for name in names])


def by_tokens(data: ReportData) -> Figure | None:
    """Reward and incorrect length against tokens generated."""
    return draw_quantities(data.arms, [quantity(data, name, "tokens") for name in ("reward", "length_incorrect")])


def guards(data: ReportData) -> Figure | None:
    """Truncation and the other quantities that tell whether lengths mean anything."""
    names = ("truncated_frac", "zero_std_frac", "entropy", "grad_norm")
    means = [without_runs(quantity(data, name)) for name in names]
    return draw_quantities(data.arms, means, overlaid=len(data.arms))


def without_runs(quantity: Quantity) -> Quantity:
    """The quantity's means alone."""
    return replace(quantity, lines={arm: Line(line.x, line.y) for arm, line in quantity.lines.items()})


def trajectory(data: ReportData) -> Figure | None:
    """Reward against mean length, along training."""
    rewards, lengths = (curves(data.summary, name, points=PATH_POINTS) for name in ("reward", "length_mean"))
    figure = Figure(figsize=(7.2, 4.9), layout="constrained")
    axes = figure.subplots()
    shown = []
    for arm in data.arms:
        path = lengths[arm.name].mean, rewards[arm.name].mean
        known = np.isfinite(path[0]) & np.isfinite(path[1])
        if not known.any():
            continue
        shown.append(arm)
        x, y = path[0][known], path[1][known]
        draw_line(axes, Line(x, y), arm.style)
        ends = [(_last(length.y), _last(reward.y)) for length, reward in
                zip(lengths[arm.name].lines, rewards[arm.name].lines, strict=True)]  # fmt: skip
        axes.plot(*zip(*ends, strict=True), linestyle="", marker=arm.style.marker, markersize=4.5, alpha=0.5,
                  color=arm.style.color, markeredgewidth=0, zorder=2.5)  # fmt: skip
        axes.plot(x[0], y[0], marker="o", markersize=5, color="white", markeredgecolor=arm.style.color, zorder=4)
        axes.plot(x[-1], y[-1], marker=arm.style.marker, markersize=10, color=arm.style.color,
                  markeredgecolor="white", zorder=5)  # fmt: skip
    if not shown:
        return None
    axes.set_xlabel("mean length (tokens)")
    axes.set_ylabel("mean reward")
    legend(figure, shown)
    return figure


def _last(values: np.ndarray) -> float:
    """The last known value, NaN if absent."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")


def length_distribution(data: ReportData) -> Figure | None:
    """Share of completions that are at least so long, early and late, incorrect above correct."""
    counts = {(item.arm, item.late, item.correct): item for item in length_distributions(data.summary)}
    shown = [arm for arm in data.arms if any(counts[arm.name, True, kind].rows.size for kind in (False, True))]
    if not shown:
        return None
    columns = min(COLUMNS, len(shown))
    blocks = -(-len(shown) // columns)
    figure = Figure(figsize=(PANEL_WIDTH * COLUMNS, PANEL_HEIGHT * 2 * blocks + 0.5), layout="constrained")
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    longest = max(float(item.length_tokens.max(initial=0.0)) for item in counts.values())
    for axes in grid.flat:
        axes.set_axis_off()
    for place, arm in enumerate(shown):
        block, column = divmod(place, columns)
        for kind, name in ((False, "incorrect"), (True, "correct")):
            axes = grid[2 * block + kind, column]
            axes.set_axis_on()
            _survival(axes, counts[arm.name, False, kind], color=SOFT, linestyle=(0, (4, 1.5)), linewidth=1.3)
            _survival(axes, counts[arm.name, True, kind], color=arm.style.color, linewidth=2.0)
            axes.set_title(f"{wrapped(arm.name, 31)}\n{name}", fontsize=8, fontweight="normal")
            axes.locator_params(axis="x", nbins=4)
            axes.set_ylabel("share at least so long" if column == 0 else "")
            axes.set_xlabel("length (tokens)" if kind else "")
            axes.tick_params(labelbottom=kind, labelleft=column == 0)
            axes.set(xlim=(-0.05 * longest, 1.05 * longest), ylim=(0, 1.03))
    handles = [
        figure.axes[0].plot([], [], color=SOFT, linestyle=(0, (4, 1.5)), label="first fifth of the run")[0],
        figure.axes[0].plot([], [], color=INK, linewidth=2.0, label="last fifth (in the mode's colour)")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _survival(axes: Axes, counts: LengthCounts, **look: Any) -> None:
    if counts.rows.size:
        at_least = np.cumsum(counts.rows[::-1])[::-1] / counts.rows.sum()
        axes.step(np.append(0, counts.length_tokens), np.append(1, at_least), where="pre", **look)
