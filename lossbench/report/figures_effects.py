"""Figures of what was found: paired differences, tokens to a reward, weights against length, the probe's drifts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lossbench.metrics.length import METRICS
from lossbench.metrics.weights import elasticity, weight_curve
from lossbench.report.data import Arm, ReportData
from lossbench.report.panels import legend, wrapped
from lossbench.report.style import INK, SOFT, short_number, times_tick
from lossbench.stats import t_interval

FOREST = ("late_length_incorrect", "late_length_correct", "late_length_mean", "late_reward", "token_efficiency",
          "late_truncated_frac")  # fmt: skip
COSTS = ("tokens_to_reward", "length_at_reward", "token_efficiency")
_WEIGHT_ROWS = 60
_NAME_WIDTH = 30


def forest(data: ReportData) -> Figure | None:
    """Paired differences to the reference, a row an arm, a panel a metric; every pair is drawn."""
    metrics = [metric for metric in FOREST if data.has(metric)]
    if not data.compared or not metrics:
        return None
    rows = len(data.compared)
    lines = -(-len(metrics) // 3)
    figure = Figure(figsize=(10.2, lines * (1.15 + 0.42 * rows)))
    figure.set_layout_engine("constrained", rect=(0.012, 0, 0.988, 1))  # long names else begin beyond the edge
    grid = figure.subplots(lines, 3, sharey=True, squeeze=False)
    margin = next((v.claim.margin for v in data.verdicts if v.claim.metric == "late_reward"), None)
    for axes, metric in zip(grid.flat, metrics, strict=False):
        _forest_panel(axes, data, metric, margin if metric == "late_reward" else None)
    for axes in grid.flat[len(metrics) :]:
        axes.set_axis_off()
    return figure


def _forest_panel(axes: Axes, data: ReportData, metric: str, margin: float | None) -> None:
    spec = METRICS[metric]
    scale = 100 if spec.unit == "share" else 1
    axes.axvline(0, color=INK, linewidth=0.9, zorder=1)
    if margin is not None:
        axes.axvline(-margin, color=SOFT, linewidth=1.1, linestyle="--", zorder=0)
    for row, (arm, reference) in enumerate(data.compared):
        result = data.pair(arm.name, reference, metric)
        y = len(data.compared) - 1 - row
        look: dict[str, Any] = {"color": arm.style.color, "marker": arm.style.marker}
        pairs = scale * np.array(result.differences)
        axes.plot(
            pairs, np.full(len(pairs), y - 0.24), linestyle="", markersize=3.2, alpha=0.55, markeredgewidth=0, **look
        )
        if result.n == 0:
            axes.text(0, y, " no pair with a value", va="center", fontsize=7.5, color=SOFT)
            continue
        axes.plot([scale * result.ci_low, scale * result.ci_high], [y, y], color=arm.style.color, linewidth=1.8)
        axes.plot(scale * result.difference, y, markersize=7, markeredgecolor="white", **look)
    names = [f"{arm.name}\nminus {reference}" for arm, reference in reversed(data.compared)]
    axes.set_yticks(range(len(names)), [_two_lines(name) for name in names], fontsize=7.5)
    axes.set_ylim(-0.6, len(names) - 0.45)
    axes.grid(axis="y", visible=False)
    axes.set_title(spec.label)
    unit = "percentage points" if spec.unit == "share" else spec.unit
    axes.set_xlabel(f"difference ({unit})", fontsize=8)
    axes.locator_params(axis="x", nbins=5)
    _limit_to_points(axes, data, metric, scale, 0.0 if margin is None else -margin)


def _limit_to_points(axes: Axes, data: ReportData, metric: str, scale: float, line: float) -> None:
    """Limits around the pairs, the intervals and a `line`; an interval of two seeds is cut rather than squash the
    rest."""
    results = [data.pair(arm.name, ref, metric) for arm, ref in data.compared]
    pairs = np.array([0.0, line / scale, *(value for result in results for value in result.differences)]) * scale
    ends = [end for result in results for end in (result.ci_low, result.ci_high) if np.isfinite(end)]
    reach = np.ptp(pairs)
    low = max(min([pairs.min(), *(scale * end for end in ends)]), pairs.min() - 1.5 * reach)
    high = min(max([pairs.max(), *(scale * end for end in ends)]), pairs.max() + 1.5 * reach)
    pad = 0.08 * (high - low) if high - low > 1e-6 else 1.0
    axes.set_xlim(low - pad, high + pad)


def _two_lines(name: str) -> str:
    return "\n".join(wrapped(line, _NAME_WIDTH) for line in name.split("\n"))


def cost_of_reward(data: ReportData) -> Figure | None:
    """Tokens to the common reward, length there, and reward per token: every run, the mean and its interval."""
    metrics = COSTS
    if not any(data.has(metric) for metric in metrics):
        return None
    shown = [arm for arm in data.arms if any(data.values(arm.name, metric).size for metric in metrics)]
    figure = Figure(figsize=(10.2, 1.2 + 0.36 * len(shown)), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0], metrics, strict=True):
        _dots(axes, data, shown, metric)
    return figure


def _dots(axes: Axes, data: ReportData, shown: Sequence[Arm], metric: str) -> None:
    spec = METRICS[metric]
    axes.set_title(spec.label)
    axes.set_yticks(range(len(shown)), [wrapped(arm.name, _NAME_WIDTH) for arm in reversed(shown)], fontsize=8)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(axis="y", visible=False)
    if not data.has(metric):
        axes.set_xticks([])
        counted = any(np.isfinite(run.sums["tokens"]).any() for run in data.summary.by_run.values())
        why = "no reward that every run reaches\nand none begins with" if counted else "the logs do not count tokens"
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=SOFT, fontsize=8)
        return
    for place, arm in enumerate(reversed(shown)):
        _dot_row(axes, arm, data.values(arm.name, metric), place)
    axes.set_xlabel(spec.unit, fontsize=8)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(short_number)


def _dot_row(axes: Axes, arm: Arm, values: np.ndarray, place: int) -> None:
    """One arm's runs, their mean and its interval."""
    look: dict[str, Any] = {"color": arm.style.color, "marker": arm.style.marker}
    axes.plot(values, np.full(len(values), place), linestyle="", markersize=4, alpha=0.45, markeredgewidth=0, **look)
    if values.size:
        interval = t_interval(values)
        axes.plot([interval.low, interval.high], [place, place], color=arm.style.color, linewidth=1.8)
        axes.plot(interval.estimate, place, markersize=7.5, markeredgecolor="white", **look)
    else:
        across = axes.get_yaxis_transform()
        axes.text(0.02, place, "not reached", transform=across, va="center", color=SOFT, fontsize=8)


def weights(data: ReportData) -> Figure | None:
    """The weight of one token against the length of its completion, exactly, from each arm's aggregation."""
    horizon = horizon_of(data)
    curves: dict[tuple[float, ...], list[Arm]] = {}
    lengths = np.unique(np.geomspace(1, max(horizon, 2), _WEIGHT_ROWS).round().astype(int))
    for arm in data.arms:
        found = _relative_weights(arm, lengths, horizon)
        if found is not None:
            curves.setdefault(tuple(np.round(found, 9)), []).append(arm)
    if not curves:
        return None
    figure = Figure(figsize=(8.4, 4.3), layout="constrained")
    axes = figure.subplots()
    for values, arms in curves.items():
        _weight_lines(axes, lengths, np.array(values), arms)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(short_number)
    axes.yaxis.set_major_formatter(times_tick)
    axes.set_xlabel("length of the completion (tokens)")
    axes.set_ylabel("weight of each of its tokens\n(relative to the window's mean token)")
    legend(figure, [arm for arms in curves.values() for arm in arms])
    return figure


def _weight_lines(axes: Axes, lengths: np.ndarray, values: np.ndarray, arms: Sequence[Arm]) -> None:
    """Arms of equal weights share one neutral line, on which their marks alternate."""
    alone = len(arms) == 1
    axes.plot(lengths, values, color=arms[0].style.color if alone else SOFT, linewidth=1.9 if alone else 1.4, zorder=2)
    for place, arm in enumerate(arms):
        axes.plot(
            lengths, values, color=arm.style.color, linestyle="", marker=arm.style.marker, markersize=7,
            markevery=(1 + 2 * place, 2 * len(arms) + 1), markeredgecolor="white", zorder=3,
        )  # fmt: skip
    slope = elasticity(lengths, values)
    axes.annotate(
        f"slope {slope:+.2g}".replace("-", "−").replace("+0", "0"), (lengths[-1], values[-1]), xytext=(6, 0),
        textcoords="offset points", va="center", fontsize=8, color=INK, annotation_clip=False,
    )  # fmt: skip


def _relative_weights(arm: Arm, lengths: np.ndarray, horizon: float) -> np.ndarray | None:
    """Aggregation of the arm; None if lossbench does not know it: logs of other trainers may name any."""
    if arm.agg_mode is None:
        return None
    try:
        return weight_curve(arm.agg_mode, [int(length) for length in lengths], horizon).relative
    except ValueError:
        return None


def horizon_of(data: ReportData) -> float:
    """The constant H of the sum-norm modes, or else the longest completion, in tokens."""
    stated = data.recipe.get("loss_scale_factor") or data.recipe.get("max_completion_length")
    if stated:
        return float(stated)
    longest = [run.lengths["length_tokens"].max(initial=0.0) for run in data.summary.by_run.values()]
    return float(max(longest, default=0.0)) or 128.0


def drift(data: ReportData) -> Figure | None:
    """The probe's drift of length under each mode."""
    if data.probe is None or data.probe.frozen is None:
        return None
    from lossbench.report.probe_figures import drift_figure

    drifts = data.probe.frozen.drifts
    return drift_figure(drifts, drifts[0].metric)


def dose_response(data: ReportData) -> Figure | None:
    """The probe's drift against the exponent of the weight."""
    if data.probe is None or data.probe.frozen is None:
        return None
    from lossbench.report.probe_figures import dose_figure

    return dose_figure(data.probe.frozen.dose)


def trained_drift(data: ReportData) -> Figure | None:
    """Predictions of probes along the runs vs the realised change."""
    if data.probe is None or not data.probe.trained:
        return None
    from lossbench.report.probe_figures import trained_figure

    return trained_figure(data.probe.trained)
