"""The registry of figures: what each is called, what it shows, and how it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.report import figures_curves, figures_effects
from lossbench.report.data import ReportData
from lossbench.report.document import FigureBlock
from lossbench.report.figure_files import WriteFigure
from lossbench.report.panels import OVERLAID
from lossbench.report.style import look, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEEDS = (
    "Thin lines are single runs, the thick line is their mean; the band (from three runs on) is a pointwise 95 % t "
    "interval of the mean: it covers the mean at one place, not the whole curve. Where runs are of "
    "unequal length, the mean ends with the first. "
)
_PANELS = "One panel per mode; the means of the other modes are faint behind it. "


@dataclass(frozen=True)
class Entry:
    """One figure of the report; `draw` returns None where the sweep has nothing to draw."""

    name: str
    title: str
    caption: str
    draw: "Callable[[ReportData], Figure | None]"
    per_seed: bool = False


FIGURES: dict[str, Entry] = {
    figure.name: figure
    for figure in (
        Entry(
            "forest", "Differences to the reference mode",
            "Each small mark is one pair of runs with equal seed, the large mark their mean, the bar its 95 % t "
            "interval. Whether a difference is distinguishable is for the test in the tables to say; a bar "
            "that crosses zero hints that it is not. A dashed line is the margin stated "
            "beforehand, below which a mode counts as worse; a bar that reaches a panel's edge goes on.",
            figures_effects.forest,
        ),
        Entry(
            "length_by_correctness", "Length of incorrect and correct completions",
            "Length bias shows here: under a biased mode incorrect completions grow while correct ones do not.",
            figures_curves.length_by_correctness, per_seed=True,
        ),
        Entry(
            "stopping", "When completions stop, and the push on it",
            "Above, the chance that a completion ends at a token that the task leaves free. Below, the push V of the "
            "mode's weights on the stop logit, per unit of all weight: below 0 it makes completions go on. What comes "
            "of a push depends on how much of it the other branch's cancels, which only a probe tells.",
            figures_curves.stopping,
        ),
        Entry(
            "reward_length", "Reward and length during training", "", figures_curves.reward_length, per_seed=True,
        ),
        Entry(
            "trajectory", "Reward vs length",
            "Training runs along each line, from the open circle to the large mark. A line that goes straight up gains "
            "reward without length; one that leans to the right pays for it in tokens. Small marks are where single "
            "runs end.",
            figures_curves.trajectory,
        ),
        Entry(
            "length_distribution", "Lengths early and late",
            "The share of completions that are at least so long, over all runs of a mode. The further right a line "
            "lies, the longer the completions; dashed is the first fifth of the run, solid the last.",
            figures_curves.length_distribution,
        ),
        Entry(
            "cost_of_reward", "Tokens to reach a reward",
            "Small marks are runs, large marks their mean, bars its 95 % t interval (of the mode by itself; the paired "
            "differences are in the tables).",
            figures_effects.cost_of_reward,
        ),
        Entry(
            "by_tokens", "The same tokens",
            "Modes that make completions longer have seen more tokens at the same step. Here the axis is tokens.",
            figures_curves.by_tokens, per_seed=True,
        ),
        Entry(
            "weights", "Effective weight vs length",
            "Exact, from the formulas, for a window with one completion at each of the lengths shown, at ratio 1. "
            "Where the line falls, tokens of long completions count less, and a long wrong answer is punished less per "
            "token. Modes of equal weights share a line, on which their marks alternate.",
            figures_effects.weights,
        ),
        Entry(
            "guards", "Truncation and other guards",
            "Where many completions are cut at the cap, their true lengths are unknown; where all rewards of a group "
            "are equal, the group gives no gradient. Lines are means over runs.",
            figures_curves.guards,
        ),
        Entry(
            "drift", "Drift predicted by the gradient probe",
            "How the mean length would change along each mode's gradient on frozen rollouts, relative to "
            "seq-mean-token-sum. Bars are 95 % intervals over pairs of batches.",
            figures_effects.drift,
        ),
        Entry(
            "dose_response", "Drift vs the exponent of the weight",
            "Weights L^(α−1): the drift falls as long completions get their weight back, and is zero at α = 1 by "
            "construction. The dashed line is the branch model, scaled to agree at α = 0.",
            figures_effects.dose_response,
        ),
        Entry(
            "trained_drift", "Predicted and realised change",
            "One mark a run: what its probes predicted for the incorrect length vs what training did.",
            figures_effects.trained_drift,
        ),
    )
}  # fmt: skip
"""Every figure by name, in the order of the report."""


def draw_all(data: ReportData, folder: Path, write: WriteFigure = save) -> dict[str, FigureBlock]:
    """Draw every figure that the sweep has data for into `folder` as PNG and SVG; figures of an earlier report go."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        for suffix in (".png", ".svg"):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    blocks = {}
    with look():
        for entry in FIGURES.values():
            figure = entry.draw(data)
            if figure is not None:
                write(figure, folder, entry.name)
                blocks[entry.name] = FigureBlock(entry.name, entry.title, _caption(entry, data), _alt(entry, data))
    return blocks


def _caption(entry: Entry, data: ReportData) -> str:
    panels = _PANELS if len(data.arms) > OVERLAID else ""
    return f"{entry.caption} {panels}{_SEEDS}".strip() if entry.per_seed else entry.caption


def _alt(entry: Entry, data: ReportData) -> str:
    arms = ", ".join(arm.name for arm in data.arms)
    return f"{entry.title}, for {arms}. The tables of this report hold the numbers."
