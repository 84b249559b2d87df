"""The figures of a report: what each is called, what it shows, and the picture it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lossbench.report import pictures
from lossbench.report.data import ReportData
from lossbench.report.panels import Picture
from lossbench.report.probe_figures import (
    dose_picture,
    drift_picture,
    policies_picture,
    response_picture,
    trained_picture,
)

if TYPE_CHECKING:
    from lossbench.claims.probe_evidence import FrozenProbe


@dataclass(frozen=True)
class Entry:
    """One figure of the report; `picture` returns None where the sweep has nothing to draw."""

    name: str
    subject: str
    caption: str
    picture: Callable[[ReportData], Picture | None]


def _of_probe(make: Callable[["FrozenProbe"], Picture]) -> Callable[[ReportData], Picture | None]:
    """`make` where the sweep has a probe of its starting policies."""
    return lambda data: make(data.frozen) if data.frozen is not None else None


_RUNS = (
    "Thin lines are single runs, the thick line is their mean; the band (from three runs on) is a pointwise 95 % t "
    "interval of the mean: it covers the mean at one place, not the whole curve. Where runs are of unequal length, the "
    "mean ends with the first."
)

FIGURES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("lengths", "Length of incorrect and correct completions by step", _RUNS, pictures.lengths),
        Entry(
            "stopping", "When completions stop, and the push on it",
            "Above, the chance that a completion ends at a token that the task leaves free. Below, the push V of the "
            "mode's weights on the stop logit, per unit of all weight: below 0 it makes completions go on. What comes "
            "of a push depends on how much of it the other kind's cancels, which only a probe tells.",
            pictures.stopping,
        ),
        Entry(
            "response", "How incorrect length responds to completions of each length",
            "Probe, before training: the pull of a completion on incorrect length, by its own length, with 95 % "
            "intervals over pairs of batches. A weight that falls with length lets the long ones pull less.",
            _of_probe(lambda probe: response_picture(probe.curves, probe.slopes)),
        ),
        Entry(
            "policies", "Growth and what is not cancelled",
            "One mark a policy: what training did, by what the probe of the same policy found before it. At 0 the push "
            "of correct answers cancels all of that of incorrect ones, at 1 nothing.",
            lambda data: policies_picture(data.probe.points) if data.probe and len(data.probe.points) > 2 else None,
        ),
        Entry(
            "forest", "Differences to the reference mode",
            "Each small mark is one pair of runs with equal seed, the large mark their mean, the bar its 95 % t "
            "interval. Whether a difference can be told is for the tests in the tables to say. A dashed line is the "
            "margin stated beforehand, below which a mode counts as worse; a bar that reaches a panel's edge goes on.",
            pictures.forest,
        ),
        Entry(
            "length_by_correctness", "Lengths of every mode",
            "Length bias shows here: under a biased mode incorrect completions grow while correct ones do not.",
            pictures.length_by_correctness,
        ),
        Entry(
            "reward_length", "Reward and length by step and by tokens",
            "Modes that make completions longer have seen more tokens at the same step, so the panels on the right "
            "have tokens on their axis. Lines are means over runs; dotted ones are of modes under another condition.",
            pictures.reward_length,
        ),
        Entry("length_distribution", "Lengths early and late", "Over all runs.", pictures.length_distribution),
        Entry(
            "weights", "Effective weight vs length",
            "Exact, from the formulas, for a window with one completion at each of the lengths shown, at ratio 1. "
            "Where the line falls, tokens of long completions count less, and a long wrong answer is punished less per "
            "token.",
            pictures.weights,
        ),
        Entry(
            "drift", "Drift predicted by the gradient probe",
            "How the mean length would change along each mode's gradient on frozen rollouts, relative to "
            "seq-mean-token-sum. Bars are 95 % intervals over pairs of batches.",
            _of_probe(lambda probe: drift_picture(probe.drifts, probe.drifts[0].metric)),
        ),
        Entry(
            "dose_response", "Drift vs the exponent of the weight",
            "Weights L^(α−1): the drift falls as long completions get their weight back, and is zero at α = 1 by "
            "construction. The dashed line is the branch model, scaled to agree at α = 0.",
            _of_probe(lambda probe: dose_picture(probe.dose)),
        ),
        Entry(
            "trained_drift", "Predicted and realised change",
            "One mark a run: what its probes predicted for the incorrect length vs what training did.",
            lambda data: trained_picture(data.probe.trained) if data.probe and data.probe.trained else None,
        ),
        Entry(
            "guards", "Truncation and other guards",
            "Where many completions are cut at the cap, their true lengths are unknown; where all rewards of a group "
            "are equal, the group gives no gradient. Lines are means over runs.",
            pictures.guards,
        ),
    )
}  # fmt: skip
"""Every figure by name, in the order of the report."""
