"""Pictures as data, and the one way to draw them: panels of lines and marks, labelled at their ends."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from lossbench.report.style import LIGHT, look, short_number
from lossbench.stats import Interval
from lossbench.store.write import replacing, write_text
from lossbench.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 9
PNG_DPI = 144
_LONGEST = 40
"""Letters of a name in a figure; the tables have it whole."""
_MOST_LABELS = 6
"""Lines of one panel that are labelled at their ends; beyond it a legend stands below."""

_LETTER = 0.063  # inches of a letter at 8 pt
_ROOM = {"left": 0.66, "right": 0.18, "top": 0.14, "bottom": 0.48}  # inches around a panel


@dataclass(frozen=True)
class Line:
    """A line, or with `width` 0 marks alone: (K,) arrays; `runs` are (K, 2) paths of its single runs.

    `arm` numbers the mode it belongs to (-1: none), so that the page can hide it; `label` stands at its end, and `name`
    (default: the label) beside its values on the page.
    """

    x: np.ndarray
    y: np.ndarray
    color: str = "ink"
    label: str = ""
    dash: str = "-"
    width: float = 1.9
    mark: float = 0.0
    alpha: float = 1.0
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    runs: tuple[np.ndarray, ...] = ()
    arm: int = -1
    name: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `levels` are dashed lines across at a height, with their names; `uprights` lines from below.

    With `rows` the y axis counts these names from the top, at heights 0, -1, -2 and on.
    """

    lines: tuple[Line, ...]
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False
    percent: bool = False
    levels: tuple[tuple[float, str], ...] = ()
    uprights: tuple[float, ...] = ()
    rows: tuple[str, ...] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None

    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Limits of both axes: as stated, else around all lines and runs, not bands: those of two runs are huge."""
        x = self.x_range or _around([line.x for line in self.lines] + [np.array(self.uprights)], self.x_log, 0.02)
        if self.rows:
            return x, (0.6 - len(self.rows), 0.6)
        runs = [run[:, 1] for line in self.lines for run in line.runs]
        levels = np.array([level for level, _ in self.levels])
        return x, self.y_range or _around([*(line.y for line in self.lines), *runs, levels], self.y_log, 0.06)


@dataclass(frozen=True)
class Picture:
    """A figure to be: its title says what it shows. `height` is a panel's, in inches; `note` explains line styles."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 2
    width: float = 10.0
    height: float = 2.3
    note: str = ""


def _around(parts: Sequence[np.ndarray], log: bool, share: float) -> tuple[float, float]:
    values = np.concatenate([np.zeros(0), *(np.ravel(part) for part in parts)])
    values = values[np.isfinite(values) & ((values > 0) if log else True)]
    if not values.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = (np.log(values.min()), np.log(values.max())) if log else (float(values.min()), float(values.max()))
    pad = share * (high - low) or 0.1 * abs(high) or 0.1
    ends = low - pad, high + pad
    return (float(np.exp(ends[0])), float(np.exp(ends[1]))) if log else ends


def alike(panels: Sequence[Panel], from_zero: bool = False) -> tuple[Panel, ...]:
    """The panels with the limits that hold all of them, so that they compare at a glance."""
    if not panels:
        return ()
    found = [panel.ranges() for panel in panels]
    x, y = ((min(a[k][0] for a in found), max(a[k][1] for a in found)) for k in (0, 1))
    y = (0.0, y[1]) if from_zero else y
    return tuple(replace(panel, x_range=x, y_range=y) for panel in panels)


@dataclass(frozen=True)
class _Plan:
    """Places of panels in a figure of `size` inches: (left, bottom, width, height) as shares of it."""

    size: tuple[float, float]
    boxes: tuple[tuple[float, float, float, float], ...]
    title: tuple[str, ...]
    labelled: bool
    legend: tuple[Line, ...]
    legend_columns: int


def _short(text: str, longest: int = _LONGEST) -> str:
    """A name that fits beside a panel, safe to show."""
    text = clean(" ".join(text.split()))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _plan(picture: Picture) -> _Plan:
    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    named = [[line for line in panel.lines if line.label and not panel.rows] for panel in picture.panels]
    labelled = all(len(lines) <= _MOST_LABELS and all(line.width for line in lines) for lines in named)
    legend = () if labelled else tuple({line.label: line for lines in named for line in lines}.values())
    longest = max((len(_short(line.label)) for lines in named for line in lines), default=0) if labelled else 0
    left = max([_ROOM["left"], *(0.2 + _LETTER * len(_short(part)) for panel in picture.panels
                                 for row in panel.rows for part in row.split("\n"))])  # fmt: skip
    right = _ROOM["right"] + _LETTER * longest
    title = tuple(wrap(clean(picture.title), int(picture.width / 0.1))) if picture.title else ()
    top = 0.12 + 0.2 * len(title) + (0.2 if picture.note else 0)
    above = _ROOM["top"] + (0.18 if any(panel.title for panel in picture.panels) else 0)
    widest = max((len(_short(line.label)) for line in legend), default=0)
    per_row = max(1, int(picture.width / (0.6 + _LETTER * widest)))
    bottom = 0.1 + 0.19 * math.ceil(len(legend) / per_row)
    cell = picture.height + above + _ROOM["bottom"]
    shared = bool(picture.panels[0].rows)  # names of rows stand beside the first column alone
    lefts = [left, *[_ROOM["right"] + 0.1 if shared else left] * (columns - 1)]
    width = (picture.width - sum(lefts) - columns * right) / columns
    height = top + rows * cell + bottom
    boxes = []
    for place in range(len(picture.panels)):
        row, column = divmod(place, columns)
        x = sum(lefts[: column + 1]) + column * (width + right)
        y = height - top - (row + 1) * cell + _ROOM["bottom"]
        boxes.append((x / picture.width, y / height, width / picture.width, picture.height / height))
    return _Plan((picture.width, height), tuple(boxes), title, labelled, legend, per_row)


def draw(picture: Picture) -> "Figure":
    """The picture as a matplotlib figure; call it under `look`."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    plan = _plan(picture)
    figure = Figure(figsize=plan.size)
    height = plan.size[1]
    for i, text in enumerate(plan.title):
        figure.text(0.1 / plan.size[0], 1 - (0.22 + 0.2 * i) / height, text, fontsize=11, fontweight="bold")
    if picture.note:
        place = 1 - (0.2 + 0.2 * len(plan.title)) / height
        figure.text(0.1 / plan.size[0], place, picture.note, fontsize=8.5, color=LIGHT["soft"])
    for panel, box in zip(picture.panels, plan.boxes, strict=True):
        axes = figure.add_axes(box)
        _draw_panel(axes, panel, plan.labelled, plan.size[1] * box[3], box[0] < plan.boxes[0][0] + 1e-6)
    if plan.legend:
        handles = [
            Line2D([], [], color=LIGHT[line.color], linestyle=_DASHES[line.dash] if line.width else "",
                   marker="o" if line.mark else "", linewidth=1.9, label=_short(line.label)) for line in plan.legend
        ]  # fmt: skip
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=plan.legend_columns)
    return figure


_DASHES: dict[str, Any] = {"-": "-", "--": (0, (4.5, 1.8)), ":": (0, (1.2, 1.4))}


def _draw_panel(axes: "Axes", panel: Panel, labelled: bool, height: float, first: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    x_range, y_range = panel.ranges()
    axes.set(xscale="log" if panel.x_log else "linear", yscale="log" if panel.y_log else "linear")
    axes.set(xlim=x_range, ylim=y_range, xlabel=clean(panel.x_label))
    axes.set_title(_short(panel.title, 2 * _LONGEST))
    for level, name in panel.levels:
        axes.axhline(level, color=LIGHT["soft"], linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(name, (0, level), (4, 3), ("axes fraction", "data"), "offset points", fontsize=7.5,
                      color=LIGHT["soft"])  # fmt: skip
    for place, value in enumerate(panel.uprights):
        axes.axvline(value, color=LIGHT["soft"], linewidth=0.9, linestyle="--" if place else "-", zorder=1)
    for line in panel.lines:
        _draw_line(axes, line)
    if not panel.x_log:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(short_number))
    else:
        _log_ticks(axes.xaxis, x_range)
    if panel.rows:
        names = ["\n".join(map(_short, row.split("\n"))) for row in panel.rows] if first else []
        axes.set_yticks(-np.arange(len(panel.rows)), names or [""] * len(panel.rows), fontsize=7.5)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        return
    axes.set_ylabel(clean(panel.y_label))
    if panel.y_log:
        _log_ticks(axes.yaxis, y_range)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        percent = PercentFormatter(1.0, decimals=None if y_range[1] - y_range[0] > 0.05 else 1, symbol=" %")
        axes.yaxis.set_major_formatter(percent if panel.percent else FuncFormatter(short_number))
    if labelled:
        for line, place in _spread(panel, y_range, height):
            axes.annotate(_short(line.label), (1, place), (5, 0), "axes fraction", "offset points", va="center",
                          fontsize=8, color=LIGHT[line.color], annotation_clip=False)  # fmt: skip


def _log_ticks(axis: Any, ends: tuple[float, float]) -> None:
    """Decades, with 2 and 5 between them where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ends[1] / ends[0] < 200 else (1,), numticks=9))
    axis.set_major_formatter(FuncFormatter(short_number))
    axis.set_minor_locator(NullLocator())


def _draw_line(axes: "Axes", line: Line) -> None:
    from matplotlib.collections import LineCollection

    color, name = LIGHT[line.color], f"mode{line.arm}" if line.arm >= 0 else None
    if line.runs:
        # One artist for all runs: a sweep may have hundreds, and each artist costs more than its line.
        thin = LineCollection(line.runs, colors=color, linewidths=0.6, alpha=0.35, zorder=2)
        thin.set_gid(f"runs-{name}")
        axes.add_collection(thin, autolim=False)
    if line.low is not None and line.high is not None:
        band = axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.13, linewidth=0, zorder=1)
        band.set_gid(name)
    drawn = axes.plot(
        line.x, line.y, color=color, linestyle=_DASHES[line.dash] if line.width else "", linewidth=line.width,
        marker="o" if line.mark else "", markersize=line.mark, alpha=line.alpha, markeredgecolor=LIGHT["card"],
        markeredgewidth=0.6 if line.mark > 4 else 0, zorder=3,
    )[0]  # fmt: skip
    drawn.set_gid(name)


def _spread(panel: Panel, ends: tuple[float, float], height: float) -> Iterator[tuple[Line, float]]:
    """Labelled lines with the heights of their labels, as shares of the panel, far enough apart to be read."""
    found = []
    for line in panel.lines:
        known = np.flatnonzero(np.isfinite(line.y))
        if line.label and known.size:
            scale = [math.log(max(v, 1e-12)) if panel.y_log else v for v in (*ends, float(line.y[known[-1]]))]
            found.append((line, min(max((scale[2] - scale[0]) / (scale[1] - scale[0]), 0.0), 1.0)))
    found.sort(key=lambda pair: pair[1])
    gap = 0.145 / height
    places = np.array([place for _, place in found])
    for _ in range(200):
        short = gap - np.diff(places)
        if not (short > 1e-9).any():
            break
        for i in np.flatnonzero(short > 1e-9):
            places[i] -= short[i] / 2
            places[i + 1] += short[i] / 2
    return zip((line for line, _ in found), places, strict=True)


def readings(picture: Picture) -> list[dict[str, Any]]:
    """Values that the page shows at the pointer: per panel its box and limits, and its lines."""
    found = []
    for panel, box in zip(picture.panels, _plan(picture).boxes, strict=True):
        lines = [
            {
                "n": clean(line.name or line.label),
                "c": line.color,
                "a": line.arm,
                "x": _rounded(line.x),
                "y": _rounded(line.y),
            }
            for line in panel.lines
            if (line.name or line.label) and line.width and not panel.rows
        ]  # fmt: skip
        x_range, _ = panel.ranges()
        found.append({"box": [round(part, 4) for part in box], "x": [*x_range, panel.x_log], "lines": lines})
    return found


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def row_lines(place: int, interval: Interval, values: np.ndarray, color: str, arm: int) -> tuple[Line, ...]:
    """A row's marks in a panel with `rows`: each value small, the estimate large, the interval a bar."""
    height = np.array([-float(place)])
    marks = Line(values, np.full(len(values), -place - 0.24), color, width=0, mark=3.2, alpha=0.6, arm=arm)
    bar = Line(np.array([interval.low, interval.high]), height.repeat(2), color, arm=arm)
    return marks, bar, Line(np.array([interval.estimate]), height, color, width=0, mark=7, arm=arm)


def save(picture: Picture, folder: Path, name: str) -> None:
    """Write `<name>.png` and `<name>.svg`; nothing in them depends on the time or the machine's fonts."""
    with look():
        figure = draw(picture)
        with replacing(folder / f"{name}.png") as png:
            figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
        svg = StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        write_text(folder / f"{name}.svg", svg.getvalue())
