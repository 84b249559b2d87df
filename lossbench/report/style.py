"""The look of all figures: one palette, one line style and marker per arm, the same bytes every time."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.store.write import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#0B3C78", "#E69F00", "#B0417F", "#56B4E9", "#222222", "#CDBB62", "#8C510A", "#9A9A9A")
"""Apart under normal and colour-deficient sight; colours that share a dash differ in lightness, for print in grey."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (8, 1.5, 1.2, 1.5, 1.2, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")

INK, SOFT, FAINT = "#1C2733", "#66727F", "#D5DADF"
PNG_DPI = 144
_PATH = re.compile(r' d="[^"]*"')
_LONG_DECIMAL = re.compile(r"(\d\.\d\d)\d+")


@dataclass(frozen=True)
class ArmStyle:
    """Look of one arm in every figure."""

    color: str
    dash: Any
    marker: str


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """A style per arm, by its place in the plan; colour and dash together repeat only after 32 arms."""
    colors, dashes = len(PALETTE), len(DASHES)
    return {
        arm: ArmStyle(PALETTE[i % colors], DASHES[(i + i // colors) % dashes], MARKERS[i % len(MARKERS)])
        for i, arm in enumerate(arms)
    }


# Ticks are functions with names, in a module that loads at once: a figure on its way to the process that writes it
# carries their names.
def percent_tick(value: float, position: float | None = None) -> str:
    """Axis ticks of shares: 25 %."""
    return f"{100 * value:.4g} %"


def times_tick(value: float, position: float | None = None) -> str:
    """Axis ticks of factors: 2×."""
    return f"{value:g}×"


def short_number(value: float, position: float | None = None) -> str:
    """Axis ticks of large numbers: 250k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def look() -> AbstractContextManager:
    """The settings under which figures are drawn and saved, whatever the user's own matplotlib settings are."""
    import matplotlib as mpl

    settings: Any = {**mpl.rcParamsDefault, **_SETTINGS, "backend": "agg"}
    return mpl.rc_context(settings)


_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#E8EBEE",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.9,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "lossbench",
    "svg.fonttype": "path",
}


def save(figure: "Figure", folder: Path, name: str) -> None:
    """Write `<name>.png` and `<name>.svg`; nothing in them depends on the time or the machine's fonts."""
    engine: Any = figure.get_layout_engine()
    if engine is not None:
        # Laying out costs more than drawing: once serves both files. Long names need a little more room than it leaves.
        engine.set(w_pad=0.1)
        engine.execute(figure)
        figure.set_layout_engine("none")
        _round_positions(figure)
    with replacing(folder / f"{name}.png") as png:
        figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    svg = StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    write_text(folder / f"{name}.svg", _rounded_paths(svg.getvalue()))


def _round_positions(figure: "Figure") -> None:
    """Round where panels lie: the layout solver's last bits differ between processes, and clip ids hash them."""
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(5))
    for axes in figure.axes:
        position = axes.get_position()
        position.set_points(position.get_points().round(5))
        axes.set_position(position)


def _rounded_paths(svg: str) -> str:
    """Coordinates to a hundredth of a point: no eye sees more, and long curves shrink by a third."""
    return _PATH.sub(lambda path: _LONG_DECIMAL.sub(r"\1", path.group()), svg)
