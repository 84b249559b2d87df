"""Predicted drift beside what training did: along runs that were probed, and over the arms of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats as scipy_stats

from lossbench.loss.modes import Mode, parse_mode
from lossbench.metrics.length import records
from lossbench.probe.drift import DriftTable
from lossbench.probe.projections import Projections, projections_of
from lossbench.stats import Interval, sign_flip_p, t_interval
from lossbench.store.read import Sweep

if TYPE_CHECKING:
    import pandas as pd

_FEWEST_FOR_INTERVAL = 4


@dataclass(frozen=True)
class TrainedDrift:
    """One probed stretch of one run: from `step` to `step_end` the length was predicted to change by
    `predicted_tokens`; `realised_tokens` is the trend of the incorrect completions' mean length over the stretch."""

    run_id: str
    arm: str
    step: int
    step_end: int
    predicted_tokens: float
    realised_tokens: float


@dataclass(frozen=True)
class Agreement:
    """Rank agreement of predicted and realised changes: Spearman's correlation over `units` (runs), with a 95 %
    interval (Fisher's z, error of Bonett and Wright 2000); NaN bounds under four units."""

    units: int
    correlation: Interval


@dataclass(frozen=True)
class OrderCheck:
    """Two modes of equal advantage: does the order of their drifts agree with that of their late lengths?

    Differences are a minus b: `drift` in tokens per unit of step with its 95 % interval, `realised_tokens` with the
    exact paired p. The verdict compares orders only where both differ.
    """

    mode_a: str
    mode_b: str
    drift: Interval
    realised_tokens: float
    p: float
    verdict: Literal["agree", "disagree", "only the drift differs", "only the lengths differ", "neither differs"]


def rank_agreement(predicted: Sequence[float], realised: Sequence[float]) -> Agreement:
    """Spearman's correlation with its interval; NaN where either does not vary."""
    count = len(predicted)
    if count < 2 or np.ptp(predicted) == 0 or np.ptp(realised) == 0:
        return Agreement(count, Interval(np.nan, np.nan, np.nan))
    rho = float(np.corrcoef(scipy_stats.rankdata(predicted), scipy_stats.rankdata(realised))[0, 1])
    if count < _FEWEST_FOR_INTERVAL or abs(rho) >= 1 - 1e-12:
        return Agreement(count, Interval(rho, np.nan, np.nan))
    half = scipy_stats.norm.ppf(0.975) * ((1 + rho**2 / 2) / (count - 3)) ** 0.5
    low, high = np.tanh(np.arctanh(rho) + np.array([-half, half]))
    return Agreement(count, Interval(rho, float(low), float(high)))


def trained_drifts(
    sweep: Sweep, of_checkpoints: Sequence[Projections] = (), direction: str = "incorrect"
) -> list[TrainedDrift]:
    """A row per probed step of every run that was probed while it trained (`sweep --probe-every`), or whose checkpoints
    were afterwards: of those the probes' policy is the run's id.

    Predicted: learning rate x steps x the mode's whole drift in the adam metric, at the gradient norm of the reference
    of the second moments, times `DriftTable.adam_step`, as in `lossbench.probe.forecast.forecast`.
    """
    shared = sweep.spec.get("shared", {})
    found: list[TrainedDrift] = []
    for run in records(sweep.runs):
        table = sweep.run_table(run["run_id"], "probe")
        probes = projections_of(table.to_pandas()) if table.num_rows else []
        own_steps = {probe.step for probe in probes}
        probes += [p for p in of_checkpoints if p.policy == run["run_id"] and p.step not in own_steps]
        if not probes:
            continue
        steps = sweep.run_table(run["run_id"], "steps", ["step", f"length_{direction}"]).to_pandas()
        probes.sort(key=lambda probe: probe.step)
        ends = [probe.step for probe in probes[1:]] + [int(steps["step"].max()) if len(steps) else 0]
        for probe, end in zip(probes, ends, strict=True):
            realised = _trend(steps, f"length_{direction}", probe.step, end)
            predicted = _predicted(probe, mode_of(run), direction, shared, end - probe.step)
            if realised is not None and predicted is not None:
                found.append(TrainedDrift(run["run_id"], run["arm"], probe.step, end, predicted, realised))
    return found


def mode_of(run: Mapping[str, Any]) -> Mode:
    """The mode of a run's row."""
    return parse_mode(run["mode"])


def _trend(steps: Any, column: str, begin: int, end: int) -> float | None:
    """Least-squares slope of `column` over steps begin + 1 to end, times their number; None without three values."""
    part = steps[(steps["step"] > begin) & (steps["step"] <= end)].dropna()
    if len(part) < 3:
        return None
    return float(np.polyfit(part["step"], part[column], 1)[0]) * (end - begin)


def _predicted(probe: Projections, mode: Mode, direction: str, shared: Mapping[str, Any], steps: int) -> float | None:
    if "adam" not in probe.metrics:
        return None
    table = drift_table(probe, shared)
    raw = table.drift(mode, direction, "adam", "gradient-norm").raw
    if raw is None:
        return None
    rows = shared.get("per_device_train_batch_size", 64) * shared.get("gradient_accumulation_steps", 1)
    return float(shared.get("learning_rate", 1e-4) * steps * table.adam_step(mode.advantage, rows) * raw)


def drift_table(probe: Projections, shared: Mapping[str, Any]) -> DriftTable:
    """Drifts with the sweep's own micro-batches, which micro-token-mean looks at."""
    return DriftTable(probe, shared.get("per_device_train_batch_size"))


def run_totals(points: Sequence[TrainedDrift]) -> dict[str, tuple[float, float]]:
    """run_id to (predicted, realised) change over all its stretches, in tokens."""
    totals: dict[str, tuple[float, float]] = {}
    for point in points:
        predicted, realised = totals.get(point.run_id, (0.0, 0.0))
        totals[point.run_id] = (predicted + point.predicted_tokens, realised + point.realised_tokens)
    return totals


def late_lengths(metrics: "pd.DataFrame") -> dict[str, dict[int, float]]:
    """mode to seed to `late_length_incorrect` of its completed runs; arms with a policy of their own are left out.

    `metrics` is what `lossbench.metrics.length.run_metrics` gives.
    """
    found: dict[str, dict[int, float]] = {}
    for run in records(metrics):
        length = float(run["late_length_incorrect"])
        if run["status"] == "completed" and run["arm"] == run["mode"] and not np.isnan(length):
            found.setdefault(str(run["mode"]), {})[int(run["seed"])] = length
    return found


def order_checks(
    table: DriftTable, lengths: Mapping[str, Mapping[int, float]], metric: str = "plain", alpha: float = 0.05
) -> list[OrderCheck]:
    """Every pair of modes of equal advantage, on the seeds that both have."""
    modes = [parse_mode(name) for name in lengths]
    checks = []
    for a, b in combinations(modes, 2):
        seeds = sorted(set(lengths[a.name]) & set(lengths[b.name]))
        if a.advantage != b.advantage or not seeds:
            continue
        values_P = _between(table, a, b, metric)
        differences = np.array([lengths[a.name][seed] - lengths[b.name][seed] for seed in seeds])
        drift = t_interval(values_P)
        p = float(sign_flip_p(differences))
        realised = float(differences.mean())
        checks.append(OrderCheck(a.name, b.name, drift, realised, p, _verdict(drift, realised, p < alpha)))
    return checks


def _between(table: DriftTable, a: Mode, b: Mode, metric: str) -> np.ndarray:
    found = [table.per_pair(mode, "incorrect", metric, "row-weight").values_P for mode in (a, b)]
    return found[0] - found[1] if len(found[0]) == len(found[1]) else np.zeros(0)


def _verdict(drift: Interval, realised: float, lengths_differ: bool) -> Any:
    drifts_differ = drift.outside(0.0, 0.0)
    if drifts_differ and lengths_differ:
        return "agree" if drift.estimate * realised > 0 else "disagree"
    if drifts_differ:
        return "only the drift differs"
    return "only the lengths differ" if lengths_differ else "neither differs"
