"""Arms compared with each other: at equal step, at equal tokens, at equal reward."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lossbench.metrics.length import METRICS, Summary, records
from lossbench.metrics.paired import PairedResult, paired
from lossbench.metrics.step_sums import Columns, pooled
from lossbench.metrics.trajectory import common_reward

Basis = Literal["step", "tokens", "reward"]

COMPARED = ("late_length_incorrect", "late_length_mean", "late_length_correct", "late_gap_within_prompt",
            "token_efficiency", "late_reward")  # fmt: skip
"""The metrics that comparisons show by default."""

_WINDOW_METRICS = {
    "late_length_incorrect": "length_incorrect", "late_length_mean": "length_mean",
    "late_length_correct": "length_correct", "late_reward": "reward",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two arms on one metric."""

    arm_a: str
    arm_b: str
    metric: str
    result: PairedResult


@dataclass(frozen=True)
class MatchedComparison:
    """Two arms at an equal amount of something: `at` steps, tokens or reward; `reason` if no such point exists."""

    basis: Basis
    at: float
    unit: str
    comparisons: tuple[Comparison, ...]
    reason: str | None = None


def pair_key(run: dict) -> tuple:
    """Key of a pair of runs: (policy_seed, seed), None where a run has none."""
    return tuple(
        None if run[name] is None or run[name] != run[name] else int(run[name]) for name in ("policy_seed", "seed")
    )


def pair_label(key: Hashable) -> str:
    """A pair's key in words: "seed 3", or "seed 3 (policy 1)" where policies have numbers."""
    policy_seed, seed = key if isinstance(key, tuple) else (None, key)
    return f"seed {seed}" + ("" if policy_seed is None else f" (policy {policy_seed})")


def arms_of(metrics: pd.DataFrame) -> list[str]:
    """The arms in the order in which the runs name them."""
    return list(dict.fromkeys(metrics["arm"]))


def arm_values(metrics: pd.DataFrame, arm: str, metric: str, complete_only: bool = True) -> dict[Hashable, float]:
    """Pair key → value of `metric` for each run of `arm`; of runs with the same key the first counts."""
    rows = metrics.loc[metrics["arm"] == arm]
    if complete_only:
        rows = rows.loc[rows["complete"].astype(bool)]
    values: dict[Hashable, float] = {}
    for row in records(rows):
        values.setdefault(pair_key(row), float("nan") if row[metric] is None else float(row[metric]))
    return values


def compare_arms(
    metrics: pd.DataFrame, arm_a: str, arm_b: str, metric: str, metrics_b: pd.DataFrame | None = None
) -> Comparison:
    """`arm_a` minus `arm_b` on one metric over the seeds both completed; `metrics_b` holds b where it is elsewhere."""
    values_a = arm_values(metrics, arm_a, metric)
    values_b = arm_values(metrics if metrics_b is None else metrics_b, arm_b, metric)
    return Comparison(arm_a, arm_b, metric, paired(values_a, values_b))


@dataclass(frozen=True)
class Side:
    """One side of a matched comparison: an arm of a sweep, with a label where the arm's name is not enough."""

    summary: Summary
    arm: str
    label: str = ""

    @property
    def name(self) -> str:
        """Name of this side."""
        return self.label or self.arm

    def runs(self) -> dict[Hashable, str]:
        """Pair key → run_id of the completed runs, the first of runs with the same key."""
        rows = self.summary.metrics
        found: dict[Hashable, str] = {}
        for row in records(rows.loc[(rows["arm"] == self.arm) & rows["complete"].astype(bool)]):
            found.setdefault(pair_key(row), str(row["run_id"]))
        return found


def matched(side_a: Side, side_b: Side, basis: Basis) -> MatchedComparison:
    """Compare two arms at equal step, tokens or reward over the pairs of runs that both completed.

    - step: the last fifth before the last step that all these runs reached
    - tokens: the last fifth, in tokens, of the largest number of tokens that all these runs generated
    - reward: tokens generated until, and smoothed length at, these runs' `common_reward`
    """
    runs_a, runs_b = side_a.runs(), side_b.runs()
    keys = [key for key in runs_a if key in runs_b]
    if not keys:
        empty = float("nan")
        return MatchedComparison(basis, empty, _UNITS[basis], (), "the two modes have no completed runs in common")
    kept = [(side_a, {key: runs_a[key] for key in keys}), (side_b, {key: runs_b[key] for key in keys})]
    return _at_reward(kept) if basis == "reward" else _at_amount(kept, basis)


WINDOW_FROM = 0.8
"""Where the window compared at equal steps or tokens begins, as a share of its end."""

_UNITS: dict[Basis, str] = {"step": "steps", "tokens": "tokens", "reward": "reward"}
_Kept = list[tuple[Side, dict[Hashable, str]]]


def _at_amount(kept: _Kept, basis: Literal["step", "tokens"]) -> MatchedComparison:
    sums = [{key: side.summary.by_run[run].sums for key, run in runs.items()} for side, runs in kept]
    at = min(float(_amount(run, basis).max(initial=0.0)) for side in sums for run in side.values())
    if not at > 0:
        return MatchedComparison(basis, at, _UNITS[basis], (), f"the runs record no {_UNITS[basis]}")
    windows = [{key: pooled(run, _window(_amount(run, basis), at)) for key, run in side.items()} for side in sums]
    comparisons = []
    for metric, quantity in _WINDOW_METRICS.items():
        a, b = ({key: values[quantity] for key, values in side.items()} for side in windows)
        comparisons.append(Comparison(kept[0][0].arm, kept[1][0].arm, metric, paired(a, b)))
    return MatchedComparison(basis, at, _UNITS[basis], tuple(comparisons))


def _amount(sums: Columns, basis: Literal["step", "tokens"]) -> np.ndarray:
    return sums["step"] if basis == "step" else np.cumsum(sums["tokens"])


def _window(amount: np.ndarray, at: float) -> np.ndarray:
    return (amount > WINDOW_FROM * at) & (amount <= at)


def _at_reward(kept: _Kept) -> MatchedComparison:
    paths = [{key: side.summary.by_run[run].path for key, run in runs.items()} for side, runs in kept]
    at = common_reward([path for side in paths for path in side.values()])
    if not np.isfinite(at):
        reason = "no reward is reached by all these runs that none of them starts with"
        return MatchedComparison("reward", at, _UNITS["reward"], (), reason)
    points = [{key: path.at_reward(at) for key, path in side.items()} for side in paths]
    comparisons = []
    for index, metric in enumerate(("tokens_to_reward", "length_at_reward")):
        a, b = ({key: point[index] for key, point in side.items()} for side in points)
        comparisons.append(Comparison(kept[0][0].arm, kept[1][0].arm, metric, paired(a, b)))
    return MatchedComparison("reward", at, _UNITS["reward"], tuple(comparisons))


def comparison_rows(comparisons: Iterable[Comparison], at: str = "late window") -> list[dict]:
    """Comparisons as flat rows for tables and machines: numbers as floats, NaN if absent."""
    rows = []
    for item in comparisons:
        result = item.result
        rows.append({
            "metric": item.metric, "unit": METRICS[item.metric].unit, "at": at, "a": item.arm_a, "b": item.arm_b,
            "n": result.n, "mean_a": result.mean_a, "mean_b": result.mean_b, "difference": result.difference,
            "ci_low": result.ci_low, "ci_high": result.ci_high, "ratio": result.ratio,
            "ratio_low": result.ratio_low, "ratio_high": result.ratio_high, "p": result.p_two_sided,
            "smallest_p": result.smallest_p_two_sided, "power": result.power, "statement": result.statement,
            "left_out": "; ".join(left_out(result)),
        })  # fmt: skip
    return rows


def left_out(result: PairedResult) -> list[str]:
    """The seeds that a comparison does not use, with why."""
    reasons = (("only in a", result.only_a), ("only in b", result.only_b), ("without a value", result.undefined))
    return [f"{pair_label(key)}: {reason}" for reason, keys in reasons for key in keys]
