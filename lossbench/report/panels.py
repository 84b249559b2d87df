"""Panels that arms share: all arms over each other while they are few, else one panel an arm with the others faint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from lossbench.report.data import Arm
from lossbench.report.style import FAINT, INK, ArmStyle, percent_tick, short_number
from lossbench.text import clean

OVERLAID = 4
"""Up to this many arms share one panel."""

COLUMNS = 4
PANEL_WIDTH, PANEL_HEIGHT = 2.55, 1.95
WIDE, TALL = 9.6, 3.7


@dataclass(frozen=True)
class Line:
    """Content of one arm in a panel: (K,) arrays; `seeds` are the lines of its runs, NaN where there is nothing."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


@dataclass(frozen=True)
class Quantity:
    """One quantity to draw: its title, axis labels, and a line for every arm that has values."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, Line]
    percent: bool = False
    from_zero: bool = False


def draw_quantities(arms: Sequence[Arm], quantities: Sequence[Quantity], overlaid: int = OVERLAID) -> Figure | None:
    """A figure of `quantities` for `arms`, over each other up to `overlaid` arms; None where none has a line."""
    quantities = [quantity for quantity in quantities if quantity.lines]
    if not quantities:
        return None
    shown = [arm for arm in arms if any(arm.name in quantity.lines for quantity in quantities)]
    return _overlaid(shown, quantities) if len(shown) <= overlaid else _one_panel_each(shown, quantities)


def _overlaid(arms: Sequence[Arm], quantities: Sequence[Quantity]) -> Figure:
    rows, columns = -(-len(quantities) // 2), min(2, len(quantities))
    figure = Figure(figsize=(WIDE, TALL * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, quantity in zip(grid.flat, quantities, strict=False):
        axes.set_title(quantity.title)
        for arm in arms:
            if arm.name in quantity.lines:
                draw_line(axes, quantity.lines[arm.name], arm.style)
        label_axes(axes, quantity)
    for axes in grid.flat[len(quantities) :]:
        axes.set_axis_off()
    legend(figure, arms)
    return figure


def _one_panel_each(arms: Sequence[Arm], quantities: Sequence[Quantity]) -> Figure:
    """Blocks of rows, one block a quantity; within a block all panels have the same limits."""
    per_block = -(-len(arms) // COLUMNS)
    rows = per_block * len(quantities)
    figure = Figure(figsize=(PANEL_WIDTH * COLUMNS, PANEL_HEIGHT * rows + 0.35 * len(quantities)), layout="constrained")
    blocks = figure.subfigures(len(quantities), 1, squeeze=False)[:, 0]
    for block, quantity in zip(blocks, quantities, strict=True):
        block.suptitle(quantity.title, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
        # Equal limits instead of shared axes, of which each would be told of every change to any.
        grid = block.subplots(per_block, COLUMNS, squeeze=False)
        limits = _x_limits(quantity)
        for axes, arm in zip(grid.flat, arms, strict=False):
            _panel(axes, arm, quantity)
        for axes in grid.flat[len(arms) :]:
            axes.set_axis_off()
        for axes in grid.flat[: len(arms)]:
            label_axes(axes, quantity, small=True)
            axes.set_xlim(*limits)
        _outer_labels(grid, len(arms), quantity)
    return figure


def _panel(axes: Axes, arm: Arm, quantity: Quantity) -> None:
    others = [np.column_stack((line.x, line.y)) for name, line in quantity.lines.items() if name != arm.name]
    axes.add_collection(LineCollection(others, colors=FAINT, linewidths=1.1, zorder=1.5))
    if arm.name in quantity.lines:
        draw_line(axes, quantity.lines[arm.name], arm.style)
    axes.set_title(wrapped(arm.name, 30), fontsize=8, fontweight="normal")


def _outer_labels(grid: np.ndarray, used: int, quantity: Quantity) -> None:
    """Labels on the outer panels only; a panel above an empty place keeps its numbers."""
    columns = grid.shape[1]
    for place, axes in enumerate(grid.flat[:used]):
        first, last = place % columns == 0, place + columns >= used
        axes.set_ylabel(quantity.y_label if first else "")
        axes.set_xlabel(quantity.x_label if last else "")
        axes.tick_params(labelleft=first, labelbottom=last)


def draw_line(axes: Axes, line: Line, style: ArmStyle) -> None:
    """One arm: every seed thin, the band light, the mean strong with a few markers."""
    if line.seeds:
        # One artist for all runs: a sweep may have hundreds, and each artist costs more than its line.
        paths = [np.column_stack(seed) for seed in line.seeds]
        axes.add_collection(LineCollection(paths, colors=style.color, linewidths=0.7, alpha=0.4, zorder=2))
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.13, linewidth=0, zorder=1)
    every = max(1, len(line.x) // 7)
    axes.plot(
        line.x, line.y, color=style.color, linestyle=style.dash, marker=style.marker, markevery=(every // 2, every),
        markeredgecolor="white", markeredgewidth=0.6, zorder=3,
    )  # fmt: skip


def label_axes(axes: Axes, quantity: Quantity, small: bool = False) -> None:
    """Axis labels with units, ticks as people write them, and limits that follow the lines rather than the bands."""
    axes.set_xlabel(quantity.x_label)
    axes.set_ylabel(quantity.y_label)
    axes.set_ylim(*_limits(quantity))
    axes.locator_params(axis="x", nbins=4 if small else 7)
    axes.locator_params(axis="y", nbins=4 if small else 6)
    if quantity.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(percent_tick))
    if quantity.x_label.startswith("tokens"):
        axes.xaxis.set_major_formatter(FuncFormatter(short_number))


def _limits(quantity: Quantity) -> tuple[float, float]:
    """Around all means and seeds: the band of two seeds would flatten everything."""
    parts = [line.y for line in quantity.lines.values()]
    parts += [y for line in quantity.lines.values() for _, y in line.seeds]
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if quantity.from_zero:
        low = min(low, 0.0)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 0.05
    return (low if quantity.from_zero and low == 0 else low - pad), high + pad


def _x_limits(quantity: Quantity) -> tuple[float, float]:
    """Around all lines, with the room that matplotlib leaves by itself."""
    x = np.concatenate([line.x for line in quantity.lines.values()])
    pad = 0.05 * (x.max() - x.min()) or 0.5
    return x.min() - pad, x.max() + pad


def legend(figure: Figure, arms: Iterable[Arm]) -> None:
    """One legend below all panels."""
    arms = list(arms)
    handles = [handle(arm) for arm in arms]
    widest = max(len(arm.name) for arm in arms)
    columns = min(len(handles), max(1, 100 // (widest + 9)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def handle(arm: Arm) -> Line2D:
    """The legend's entry of an arm."""
    style = arm.style
    return Line2D(
        [], [], color=style.color, linestyle=style.dash, marker=style.marker, label=clean(arm.name),
        markeredgecolor="white", markeredgewidth=0.6,
    )  # fmt: skip


def wrapped(name: str, width: int) -> str:
    """An arm's name on several lines, broken at @ and / where it is long."""
    name = clean(name)
    if len(name) <= width:
        return name
    spaced = name.replace("@", "@ ").replace("/", "/ ").replace("[", " [")
    return fill(spaced, width, break_on_hyphens=False).replace("@ ", "@").replace("/ ", "/")
