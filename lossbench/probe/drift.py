"""Drift of length per mode, from the projections of a probe.

On-policy the gradient of every clip-type surrogate is sum_i w_i A_i grad log pi(o_i), so a mode's predicted change of
a length, per unit of step, is sum_i w_i A_i s_i over the completions' projections s_i on that length's gradient. Part
of it is legitimate and shared by all modes: where reward and length go together, learning moves the length. What the
row weights add is the difference from `seq-mean-token-sum` under the same advantages, once the two are of one size:
either of equal mean weight over the rows that have an advantage, so that the shared part cancels, or of equal gradient
norm, which is what an optimizer that normalises sees. The factor is one number per mode for the whole probe: per batch
it would hide token-mean's bias.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import stats as scipy_stats

from lossbench.loss.advantages import advantages
from lossbench.loss.modes import BASELINE, Mode, baseline_of
from lossbench.loss.window import window_weights
from lossbench.probe.projections import Projections, Window
from lossbench.stats import t_interval

Match = Literal["row-weight", "gradient-norm"]
MATCHES: tuple[Match, ...] = get_args(Match)
LENGTHS = ("incorrect", "correct", "all")
_ZERO = 1e-9


@dataclass(frozen=True)
class ModeSums:
    """A mode's gradient in each of W windows.

    `sizes_W` is the sum of the weights of rows with an advantage; `along` maps (metric, direction of length) to
    sum_i w_i A_i s_i over the incorrect and over the correct completions, (2, W), NaN where a window has no such
    direction; `norms` maps a metric to the squared gradient norm (W,), estimated by random directions.
    """

    mode: Mode
    sizes_W: np.ndarray
    along: dict[tuple[str, str], np.ndarray]
    norms: dict[str, np.ndarray]


def mode_sums(probe: Projections, mode: Mode, micro_batch_rows: int | None = None) -> ModeSums:
    """The weighted sums of one mode over every window; `micro_batch_rows` cuts windows for micro-token-mean."""
    weights = [row_weights(window, mode, probe.horizon, micro_batch_rows) for window in probe.windows]
    advantages_of = [row_advantages(window, mode) for window in probe.windows]
    pulls = [w * a for w, a in zip(weights, advantages_of, strict=True)]
    pulled = list(zip(probe.windows, pulls, strict=True))
    keys = [(metric, name) for metric in probe.metrics for name in LENGTHS]
    return ModeSums(
        mode,
        np.array([weights_N[np.abs(a) > _ZERO].sum() for weights_N, a in zip(weights, advantages_of, strict=True)]),
        {key: np.array([_by_branch(window, pull_N, key) for window, pull_N in pulled]).T for key in keys},
        {metric: np.array([_squared_norm(window, pull_N, metric) for window, pull_N in pulled])
         for metric in probe.metrics},
    )  # fmt: skip


def row_weights(window: Window, mode: Mode, horizon: float, micro_batch_rows: int | None = None) -> np.ndarray:
    """The weights (N,) that a mode gives the completions of a window."""
    micro_N = None if micro_batch_rows is None else np.arange(len(window.lengths_N)) // micro_batch_rows
    return window_weights(
        mode.aggregation, window.lengths_N, window.groups_N, horizon=horizon, micro_ids_N=micro_N,
        advantages_N=row_advantages(window, mode),
    )  # fmt: skip


def row_advantages(window: Window, mode: Mode) -> np.ndarray:
    """The advantages (N,) that a mode gives the completions of a window."""
    return advantages(window.rewards_N, window.groups_N, mode.advantage, window.lengths_N)


def _by_branch(window: Window, pull_N: np.ndarray, key: tuple[str, str]) -> tuple[float, float]:
    along_N = window.projections.get(key)
    if along_N is None:
        return float("nan"), float("nan")
    terms_N = pull_N * along_N
    return float(terms_N[~window.correct_N].sum()), float(terms_N[window.correct_N].sum())


def _squared_norm(window: Window, pull_N: np.ndarray, metric: str) -> float:
    found = [s for (m, name), s in window.projections.items() if m == metric and name.startswith("random")]
    return float(np.mean([(pull_N @ s) ** 2 for s in found])) if found else float("nan")


def matched_difference(
    mode: np.ndarray, baseline: np.ndarray, mode_size: np.ndarray, baseline_size: np.ndarray, power: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(scale, values): values (..., P) whose mean is scale x mean(mode) - mean(baseline), with
    scale = (mean(baseline_size) / mean(mode_size)) ** power over the last axis.

    The values are each pair's difference plus its influence on the scale (delta method), so that a t interval of them
    counts the scale's own error.
    """  # fmt: skip
    of_mode, of_baseline = mode_size.mean(-1, keepdims=True), baseline_size.mean(-1, keepdims=True)
    scale = (of_baseline / of_mode) ** power
    influence = power * (baseline_size / of_baseline - mode_size / of_mode)
    return scale[..., 0], scale * mode - baseline + scale * mode.mean(-1, keepdims=True) * influence


@dataclass(frozen=True)
class Drift:
    """Predicted change of one length, in tokens per unit of step, that a mode's weights add. None: see `note`.

    `drift` is the difference from the baseline, `low` and `high` its 95 % t interval over `pairs`, `median` and
    `sign_p` (two-sided sign test) its robust company. `raw` is the mode's whole drift at the matched size, the shared
    term of reward and length included, with `raw_low` and `raw_high`. `scale` is the factor that matches the sizes.
    The unit of step is the learning rate at the baseline's own size (`plain`), or Adam's learning rate (`adam`).
    """

    mode: str
    direction: str
    metric: str
    match: Match
    drift: float | None
    low: float | None
    high: float | None
    t: float | None
    median: float | None
    sign_p: float | None
    pairs: int
    raw: float | None
    raw_low: float | None
    raw_high: float | None
    scale: float | None
    note: str = ""


@dataclass(frozen=True)
class PairDrift:
    """The numbers behind one `Drift`: per pair the matched difference, from the incorrect and from the correct
    completions (2, P), and the whole drift at the matched size (P,)."""

    branches_2P: np.ndarray
    raw_P: np.ndarray
    scale: float
    is_baseline: bool

    @property
    def values_P(self) -> np.ndarray:
        """The matched difference of each pair."""
        return self.branches_2P.sum(0)


class DriftTable:
    """Drifts of modes from one probe; sums per mode are computed once."""

    def __init__(self, probe: Projections, micro_batch_rows: int | None = None) -> None:
        self.probe, self.micro_batch_rows = probe, micro_batch_rows
        self._sums: dict[str, ModeSums] = {}
        self._windows_of_pair = probe.windows_of_pair()

    def sums(self, mode: Mode) -> ModeSums:
        """The mode's sums; all surrogates share them on-policy."""
        key = f"{mode.agg_mode}/{mode.advantage}"
        if key not in self._sums:
            self._sums[key] = mode_sums(self.probe, mode, self.micro_batch_rows)
        return self._sums[key]

    def per_pair(self, mode: Mode, direction: str, metric: str, match: Match) -> PairDrift:
        """The matched difference of each pair that has the direction. Raises KeyError for a metric not probed."""
        own, base = self.sums(mode), self.sums(baseline_of(mode.advantage, mode.loss_type))
        sizes = (own.sizes_W, base.sizes_W) if match == "row-weight" else (own.norms[metric], base.norms[metric])
        columns_6W = np.stack([*own.along[metric, direction], *base.along[metric, direction], *sizes])
        told_W = ~np.isnan(columns_6W[0])
        pairs = [windows[told_W[windows]] for windows in self._windows_of_pair]
        columns_6P = np.array([columns_6W[:, windows].mean(1) for windows in pairs if len(windows)]).reshape(-1, 6).T
        mode_2P, base_2P, (mode_size_P, base_size_P) = columns_6P[:2], columns_6P[2:4], columns_6P[4:]
        if not mode_2P.size or not mode_size_P.mean() > 0:
            # No pair, or weights or gradients that all vanish: then there is no scale, and no drift either.
            return PairDrift(np.zeros_like(mode_2P), np.zeros_like(mode_2P[0]), float("nan"), True)
        power = 1.0 if match == "row-weight" else 0.5
        scale, values_2P = matched_difference(mode_2P, base_2P, mode_size_P, base_size_P, power)
        same = float(np.abs(values_2P).max()) <= _ZERO * float(np.abs(base_2P).max())
        raw_P = float(scale) * mode_2P.sum(0)
        return PairDrift(np.zeros_like(values_2P) if same else values_2P, raw_P, float(scale), same)

    def unit(self, advantage: str, metric: str = "adam") -> float:
        """Size of the baseline's gradient without std over its size under `advantage`, in the metric.

        An optimizer that normalises by its own gradients takes a step of one size whatever advantages are divided by;
        the second moments of the metric are those without std, so this brings drifts of all scales to one unit.
        """
        norms = [self.sums(baseline_of(name)).norms[metric].mean() for name in ("none", advantage)]
        return float((norms[0] / norms[1]) ** 0.5) if norms[1] > 0 else 1.0

    def adam_step(self, advantage: str, rows_per_step: int) -> float:
        """Length of a step of Adam over `rows_per_step` rows, in steps of the probe's adam metric.

        Its second moments are mostly noise and so fall with the batch: a step is sqrt(rows_per_step / rows of the
        probe) of the probe's, in the unit that all scales share.
        """
        own_rows = np.mean([len(window.lengths_N) for window in self.probe.windows])
        return self.unit(advantage) * float((rows_per_step / own_rows) ** 0.5)

    def drift(self, mode: Mode, direction: str, metric: str, match: Match) -> Drift:
        """One row of the table."""
        found = self.per_pair(mode, direction, metric, match)
        mean, low, high, t, median, sign_p = summarise(found.values_P)
        raw = t_interval(found.raw_P)
        return Drift(
            mode=mode.name, direction=direction, metric=metric, match=match, drift=mean, low=low, high=high, t=t,
            median=median, sign_p=sign_p, pairs=len(found.values_P), raw=known(raw.estimate), raw_low=known(raw.low),
            raw_high=known(raw.high), scale=known(found.scale), note=self._note(found, direction),
        )  # fmt: skip

    def rows(
        self, modes: Iterable[Mode], metrics: Sequence[str] | None = None, matches: Sequence[Match] = MATCHES,
        directions: Sequence[str] = LENGTHS,
    ) -> list[Drift]:  # fmt: skip
        """A row per mode, direction, metric and match."""
        return [
            self.drift(mode, direction, metric, match)
            for mode in modes
            for direction in directions
            for metric in (metrics or self.probe.metrics)
            for match in matches
        ]

    def _note(self, found: PairDrift, direction: str) -> str:
        if not len(found.values_P):
            correct_N = self.probe.pool("correct_N")
            members = int((correct_N if direction == "correct" else ~correct_N).sum())
            if direction != "all" and not members:
                return f"no {direction} completions"
            if direction != "all" and members < len(self.probe.windows):
                return f"too few {direction} completions: a batch needs 2"
            return "no batch has this direction"
        if not np.any(found.raw_P):
            return "no group has rewards that differ: the gradient is 0"
        if found.is_baseline:
            return f"weights proportional to {BASELINE}'s: no difference by construction"
        if len(found.values_P) < 2:
            return "one pair: no interval"
        missing = len(self._windows_of_pair) - len(found.values_P)
        return f"pairs without two {direction} completions in a batch: {missing}" if missing else ""


def summarise(values_P: np.ndarray) -> tuple[float | None, ...]:
    """(mean, low and high of its 95 % t interval, t, median, two-sided sign-test p) of one value per pair (P,).

    None where one is not defined.
    """
    if not len(values_P):
        return (None,) * 6
    interval = t_interval(values_P)
    spread = float(values_P.std(ddof=1)) if len(values_P) > 1 else 0.0
    t = interval.estimate / (spread / len(values_P) ** 0.5) if spread > 0 else None
    above, below = int((values_P > 0).sum()), int((values_P < 0).sum())
    sign_p = float(scipy_stats.binomtest(above, above + below).pvalue) if above + below else None
    median = float(np.median(values_P))
    return known(interval.estimate), known(interval.low), known(interval.high), t, median, sign_p


def known(value: float) -> float | None:
    """The value; None for NaN."""
    return None if np.isnan(value) else float(value)
