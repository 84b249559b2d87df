"""From the projections of a probe to the drift of length per mode.

On-policy the gradient of every clip-type surrogate is sum_i w_i A_i grad log pi(o_i), so a mode's predicted change of a
length, per unit of step, is sum_i w_i A_i s_i over the completions' projections s_i on that length's gradient. Part of it
is legitimate and shared by all modes: where reward and length go together, learning moves the length. What the row
weights add is the difference from `seq-mean-token-sum` under the same advantages, once the two are of one size: either
of equal mean row weight, so that the shared part cancels, or of equal gradient norm, which is what an optimizer that
normalises sees. The factor is one number per mode for the whole probe: per batch it would hide the bias of token-mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy import stats as scipy_stats

from lossbench.analysis.stats import Interval, t_interval
from lossbench.errors import UsageError
from lossbench.loss.advantages import advantages
from lossbench.loss.aggregations import window_weights
from lossbench.loss.modes import Mode, make_mode

Match = Literal["row-weight", "gradient-norm"]
MATCHES: tuple[Match, ...] = get_args(Match)
BASELINE = "seq-mean-token-sum"
LENGTHS = ("incorrect", "correct", "all")
_ZERO = 1e-9


@dataclass(frozen=True)
class Window:
    """The completions of one batch, as one optimizer step would see them; arrays (N,).

    `projections` maps (metric, direction) to (N,) numbers; a direction that the other batch did not have is absent.
    """

    pair: int
    half: int
    lengths_N: np.ndarray
    groups_N: np.ndarray
    rewards_N: np.ndarray
    correct_N: np.ndarray
    terminated_N: np.ndarray
    projections: dict[tuple[str, str], np.ndarray]


@dataclass
class Projections:
    """A probe of one frozen policy at one training step: windows in order of pair and half."""

    policy: str
    step: int
    windows: list[Window]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def horizon(self) -> float:
        """The constant H of the sum-norm modes, in tokens; it cancels from every matched figure."""
        return float(self.facts.get("horizon") or max(float(w.lengths_N.max(initial=1)) for w in self.windows))

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that the probe has."""
        return list(dict.fromkeys(metric for w in self.windows for metric, _ in w.projections))

    def pool(self, name: str) -> np.ndarray:
        """One column of all windows, end to end: "lengths_N", "correct_N", ..."""
        return np.concatenate([getattr(w, name) for w in self.windows])


def read_projections(path: Path) -> list[Projections]:
    """The probes in a file of table `probe`, by policy and step. Raises UsageError where the file is not one."""
    from lossbench.store.table_file import read_facts, read_table

    table = read_table(path, "probe")
    if not table.num_rows:
        raise UsageError(f"{path}: holds no completion")
    return projections_of(table.to_pandas(), read_facts(path))


def projections_of(frame: Any, facts: dict[str, Any] | None = None) -> list[Projections]:
    """The probes in a data frame with the columns of table `probe`."""
    # Plain arrays of our own: slices of a data frame are slow, and what arrow hands over cannot be written to.
    columns = {name: frame[name].to_numpy(copy=True) for name in ("pair", "half", *_COLUMNS)}
    blocks = list(zip(frame["metric"].astype(str), frame["direction"].astype(str), strict=True))
    names = list(dict.fromkeys(blocks))
    place = {name: i for i, name in enumerate(names)}
    columns["block"] = np.array([place[block] for block in blocks])
    probes = []
    for (policy, step), rows in frame.groupby(["policy", "step"], sort=False, observed=True).indices.items():
        part = {name: column[rows] for name, column in columns.items()}
        batch = part["pair"] * 2 + part["half"]
        windows = [_window({n: c[batch == number] for n, c in part.items()}, names) for number in np.unique(batch)]
        probes.append(Projections(str(policy), int(step), windows, facts or {}))
    return probes


_COLUMNS = ("length_tokens", "group", "reward", "correct", "terminated", "projection")


def _window(rows: dict[str, np.ndarray], names: list[tuple[str, str]]) -> Window:
    first = rows["block"] == rows["block"][0]
    projections = {names[i]: rows["projection"][rows["block"] == i].astype(float) for i in np.unique(rows["block"])}
    return Window(
        int(rows["pair"][0]),
        int(rows["half"][0]),
        rows["length_tokens"][first].astype(np.int64),
        rows["group"][first].astype(np.int64),
        rows["reward"][first].astype(float),
        rows["correct"][first].astype(bool),
        rows["terminated"][first],
        {name: values for name, values in projections.items() if not np.isnan(values).any()},
    )


@dataclass(frozen=True)
class ModeSums:
    """What a mode's gradient is in each window: arrays (W,).

    `sizes_W` mean row weight sum_i w_i / N; `along` maps (metric, direction) to sum_i w_i A_i s_i (NaN where there is no
    such direction), directions "random" excluded; `norms` maps a metric to the estimated squared gradient norm.
    """

    mode: Mode
    sizes_W: np.ndarray
    along: dict[tuple[str, str], np.ndarray]
    norms: dict[str, np.ndarray]


def mode_sums(probe: Projections, mode: Mode, micro_batch_rows: int | None = None) -> ModeSums:
    """The weighted sums of one mode over every window; `micro_batch_rows` cuts windows for micro-token-mean."""
    sizes, pulls = [], []
    for window in probe.windows:
        weights_N = _weights(window, mode, probe.horizon, micro_batch_rows)
        advantages_N = advantages(
            torch.from_numpy(window.rewards_N), torch.from_numpy(window.groups_N), mode.scale_rewards  # type: ignore[arg-type]
        ).numpy()
        sizes.append(weights_N.mean())
        pulls.append(weights_N * advantages_N)
    along = {
        (metric, name): np.array([_dot(window, pull, metric, name) for window, pull in zip(probe.windows, pulls, strict=True)])
        for metric in probe.metrics
        for name in LENGTHS
    }
    norms = {
        metric: np.array([_squared_norm(w, pull, metric) for w, pull in zip(probe.windows, pulls, strict=True)])
        for metric in probe.metrics
    }
    return ModeSums(mode, np.array(sizes), along, norms)


def _weights(window: Window, mode: Mode, horizon: float, micro_batch_rows: int | None) -> np.ndarray:
    lengths_N = torch.from_numpy(window.lengths_N)
    micro_N = None if micro_batch_rows is None else torch.arange(len(lengths_N)) // micro_batch_rows
    groups_N = torch.from_numpy(window.groups_N)
    return window_weights(mode.aggregation, lengths_N, groups_N, horizon=horizon, micro_ids_N=micro_N).numpy()


def _dot(window: Window, pull_N: np.ndarray, metric: str, direction: str) -> float:
    projection_N = window.projections.get((metric, direction))
    return float("nan") if projection_N is None else float(pull_N @ projection_N)


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
    """The numbers behind one `Drift`: per pair (P,) the matched difference and the matched raw drift."""

    values_P: np.ndarray
    raw_P: np.ndarray
    scale: float
    is_baseline: bool


class DriftTable:
    """Drifts of modes from one probe; sums per mode are computed once."""

    def __init__(self, probe: Projections, micro_batch_rows: int | None = None) -> None:
        self.probe, self._micro_batch_rows = probe, micro_batch_rows
        self._sums: dict[str, ModeSums] = {}
        pairs = np.array([window.pair for window in probe.windows])
        self._windows_of_pair = [np.flatnonzero(pairs == pair) for pair in np.unique(pairs)]

    def sums(self, mode: Mode) -> ModeSums:
        """The mode's sums; all surrogates share them on-policy."""
        key = f"{mode.agg_mode}/{mode.scale_rewards}"
        if key not in self._sums:
            self._sums[key] = mode_sums(self.probe, mode, self._micro_batch_rows)
        return self._sums[key]

    def per_pair(self, mode: Mode, direction: str, metric: str, match: Match) -> PairDrift:
        """The matched difference of each pair that has the direction. Raises KeyError for a metric that was not probed."""
        own, base = self.sums(mode), self.sums(make_mode(mode.loss_type, BASELINE, mode.scale_rewards))
        sizes = (own.sizes_W, base.sizes_W) if match == "row-weight" else (own.norms[metric], base.norms[metric])
        columns = [own.along[metric, direction], base.along[metric, direction], *sizes]
        told = ~np.isnan(columns[0])
        per_pair = [
            [float(column[windows][told[windows]].mean()) for column in columns]
            for windows in self._windows_of_pair
            if told[windows].any()
        ]
        mode_P, base_P, mode_size_P, base_size_P = np.array(per_pair).reshape(-1, 4).T
        if not len(mode_P) or not mode_size_P.mean() > 0:
            return PairDrift(np.zeros(0), np.zeros(0), float("nan"), False)
        scale, values_P = matched_difference(
            mode_P, base_P, mode_size_P, base_size_P, 1.0 if match == "row-weight" else 0.5
        )
        same = float(np.abs(values_P).max()) <= _ZERO * float(np.abs(base_P).max(initial=0))
        return PairDrift(np.zeros_like(values_P) if same else values_P, scale * mode_P, float(scale), same)

    def drift(self, mode: Mode, direction: str, metric: str, match: Match) -> Drift:
        """One row of the table."""
        found = self.per_pair(mode, direction, metric, match)
        summary = summarise(found.values_P)
        raw = t_interval(found.raw_P)
        note = self._note(found, direction)
        return Drift(
            mode.name, direction, metric, match, *summary, len(found.values_P), *map(_known, (raw.estimate, raw.low, raw.high)),
            _known(found.scale), note,
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
            if direction != "all" and not _members(self.probe, direction):
                return f"no {direction} completions"
            if direction != "all" and _members(self.probe, direction) < len(self.probe.windows):
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


def _members(probe: Projections, direction: str) -> int:
    correct = probe.pool("correct_N")
    return int((correct if direction == "correct" else ~correct).sum())


def summarise(values_P: np.ndarray) -> tuple[float | None, ...]:
    """(mean, low, high, t, median, sign-test p) of values (P,); None where it is not defined."""
    interval: Interval = t_interval(values_P)
    if not len(values_P):
        return (None,) * 6
    spread = float(values_P.std(ddof=1)) if len(values_P) > 1 else 0.0
    t = interval.estimate / (spread / len(values_P) ** 0.5) if spread > 0 else None
    above, below = int((values_P > 0).sum()), int((values_P < 0).sum())
    sign_p = float(scipy_stats.binomtest(above, above + below).pvalue) if above + below else None
    return _known(interval.estimate), _known(interval.low), _known(interval.high), t, float(np.median(values_P)), sign_p


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def as_records(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Dataclass rows as plain records."""
    return [asdict(row) for row in rows]


