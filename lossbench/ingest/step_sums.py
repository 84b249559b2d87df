"""Sums over the completions of each step, added to block by block, and the `steps` rows that follow from them."""

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from lossbench.ingest.grouping import mixed
from lossbench.ingest.kept import Kept


class StepSums:
    """Counts and sums per step; a mean is a ratio of two sums, so it is pooled over the rows that have the value."""

    def __init__(self) -> None:
        """No step yet."""
        self._sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._reward_span = Kept(2)  # lowest and highest, by the pair of step and group

    def add(self, steps_N: np.ndarray, columns: dict[str, Any]) -> None:
        """Add a block: arrow columns `reward`, `length_tokens`, `correct`, `terminated`, `group`, each optional."""
        rows = len(steps_N)
        reward_N, length_N = (floats(columns.get(name), rows) for name in ("reward", "length_tokens"))
        correct_N, ended_N = (floats(columns.get(name), rows) for name in ("correct", "terminated"))
        measured_N = ~np.isnan(length_N)
        length_N = np.nan_to_num(length_N)
        sums = {
            "rows": np.ones(rows),
            "rewarded": ~np.isnan(reward_N),
            "reward": np.where(np.isnan(reward_N), 0.0, reward_N),
            "measured": measured_N,
            "length": length_N,
            "correct": (correct_N == 1) & measured_N,
            "length_correct": length_N * (correct_N == 1),
            "incorrect": (correct_N == 0) & measured_N,
            "length_incorrect": length_N * (correct_N == 0),
            "terminated": (ended_N == 1) & measured_N,
            "length_terminated": length_N * (ended_N == 1),
            "cut": ended_N == 0,
            "ended_or_cut": ~np.isnan(ended_N),
        }
        steps, codes_N = np.unique(steps_N, return_inverse=True)
        for name, values_N in sums.items():
            totals = np.bincount(codes_N, weights=values_N, minlength=len(steps))
            for step, total in zip(steps.tolist(), totals.tolist(), strict=True):
                self._sums[step][name] += total
        if "group" in columns:
            self._span_rewards(steps_N, columns["group"], reward_N)

    def _span_rewards(self, steps_N: np.ndarray, groups: pa.Array, reward_N: np.ndarray) -> None:
        """Keep, for each step, the number of groups and how many of them have rewards that are all equal."""
        known_N = ~np.isnan(reward_N) & np.asarray(groups.is_valid())
        groups_N = np.asarray(groups.fill_null(0))
        steps_N, reward_N, names_N = steps_N[known_N], reward_N[known_N], mixed(steps_N, groups_N)[known_N]
        names_G, first_G, codes_N = np.unique(names_N, return_index=True, return_inverse=True)
        low_G, high_G = np.full(len(names_G), np.inf), np.full(len(names_G), -np.inf)
        np.minimum.at(low_G, codes_N, reward_N)
        np.maximum.at(high_G, codes_N, reward_N)
        names = names_G.tolist()
        kept = self._reward_span.entries(names)
        spans = zip(names, steps_N[first_G].tolist(), low_G.tolist(), high_G.tolist(), strict=True)
        for name, step, low, high in spans:
            sums, before = self._sums[step], kept.get(name)
            if before is None:
                sums["groups"] += 1
            else:
                sums["flat_groups"] -= before[0] == before[1]
                low, high = min(low, before[0]), max(high, before[1])
            sums["flat_groups"] += low == high
            kept[name] = (low, high)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, in order, under the names of the `steps` table; None where there is no such thing."""
        return [self._row(step) for step in sorted(self._sums)]

    def _row(self, step: int) -> dict[str, Any]:
        sums = self._sums[step]

        def mean(total: str, count: str) -> float | None:
            return sums[total] / sums[count] if sums[count] else None

        return {
            "step": step,
            "reward_mean": mean("reward", "rewarded"),
            "length_mean": mean("length", "measured"),
            "length_correct": mean("length_correct", "correct"),
            "length_incorrect": mean("length_incorrect", "incorrect"),
            "length_terminated": mean("length_terminated", "terminated"),
            "truncated_frac": mean("cut", "ended_or_cut"),
            "zero_std_frac": mean("flat_groups", "groups"),
            "tokens": int(sums["length"]) if sums["measured"] and sums["measured"] == sums["rows"] else None,
        }


def floats(column: Any, rows: int) -> np.ndarray:
    """A nullable arrow column as float64 (rows,), NaN where null; all NaN where there is no column."""
    if column is None:
        return np.full(rows, np.nan)
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=float)
