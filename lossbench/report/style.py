"""The look of all figures: colours by family of mode on white and on dark, and matplotlib's settings."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from lossbench.loss.advantages import PARTS
from lossbench.loss.aggregations import AGGREGATIONS, parse_aggregation
from lossbench.loss.modes import parse_mode

LIGHT = {
    "ink": "#1c2733", "soft": "#566370", "faint": "#dfe4e8", "card": "#ffffff", "paper": "#fbfbf9", "code": "#f3f4f2",
    "accent": "#0b3c78", "warn": "#8c510a", "none": "#5a5f66",
    "warm0": "#d06058", "warm1": "#581138", "warm2": "#7c0608", "warm3": "#e8330a",
    "cool0": "#1e5cfa", "cool1": "#281c7d", "cool2": "#019a95", "cool3": "#9076ca",
}  # fmt: skip
"""Colours on white by name: of the page, of files, and of modes. No two names share one."""

DARK = {
    "ink": "#e4e8ec", "soft": "#a3aeb9", "faint": "#36404a", "card": "#1b2229", "paper": "#14191f", "code": "#20272f",
    "accent": "#8ec5ee", "warn": "#f0b45b", "none": "#b4bac1",
    "warm0": "#bf4e5d", "warm1": "#fccf6b", "warm2": "#e0150f", "warm3": "#fd998b",
    "cool0": "#5363fa", "cool1": "#3ff0fd", "cool2": "#02a8ae", "cool3": "#ad8ff4",
}  # fmt: skip
"""The same names on a dark ground."""

SHADES = 4
"""Colours of each family of modes; apart under every kind of sight."""


def family(agg_mode: str | None) -> str:
    """ "warm" where a token's weight falls with its completion's length, "cool" where not, "none" where unknown."""
    try:
        return "warm" if parse_aggregation(agg_mode or "").exponent < 1 else "cool"
    except ValueError:  # logs of other trainers may name any
        return "none"


def mode_colors(arms: Iterable[tuple[str, str, str | None]]) -> dict[str, str]:
    """Colour by arm from (arm, mode, agg_mode): a mode has the same colour in every report.

    Only where two modes of one sweep would share one does the later take the next free shade of its family.
    """
    of_mode: dict[str, str] = {}
    found = {}
    for arm, mode, agg_mode in arms:
        kin = family(agg_mode)
        shades = ["none"] if kin == "none" else [f"{kin}{(_shade(mode) + i) % SHADES}" for i in range(SHADES)]
        free = (shade for shade in shades if shade not in of_mode.values())
        found[arm] = of_mode.setdefault(mode, next(free, shades[0]))
    return found


def _shade(name: str) -> int:
    try:
        mode = parse_mode(name)
    except ValueError:
        return 0
    advantage = mode.advantage.partition("+")[0]
    return list(AGGREGATIONS).index(mode.aggregation.entry.name) + list(PARTS).index(advantage)


def short_number(value: float, position: float | None = None) -> str:
    """Axis ticks: 0.25, 250k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}".replace("-", "−")


def look() -> AbstractContextManager:
    """The settings under which figures are drawn and saved, whatever the user's own matplotlib settings are."""
    import matplotlib as mpl

    settings: Any = {**mpl.rcParamsDefault, **_SETTINGS, "backend": "agg"}
    return mpl.rc_context(settings)


_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 8.5,
    "axes.labelcolor": LIGHT["ink"], "axes.edgecolor": LIGHT["soft"], "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": LIGHT["faint"], "grid.linewidth": 0.6, "text.color": LIGHT["ink"], "text.parse_math": False,
    "xtick.color": LIGHT["soft"], "ytick.color": LIGHT["soft"],
    "xtick.labelcolor": LIGHT["ink"], "ytick.labelcolor": LIGHT["ink"], "xtick.labelsize": 8, "ytick.labelsize": 8,
    "xtick.minor.visible": False, "ytick.minor.visible": False,
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 3.0,
    "figure.facecolor": LIGHT["card"], "savefig.facecolor": LIGHT["card"],
    "svg.hashsalt": "lossbench", "svg.fonttype": "none",
}  # fmt: skip
