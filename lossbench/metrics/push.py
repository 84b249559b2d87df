"""Stopping hazards, and the push of a loss mode on the decision to stop, from completions alone.

Raising the logit of "stop" by a constant at every free position of the wrong (right) completions has the score
e_i - p L_i in completion i: e_i is 1 where it ended by itself, L_i counts its free tokens, and p = sum e / sum L is the
branch's stopping hazard per free token. A mode with weights w_i and advantages A_i so pushes the branch's stop logit by

    U = sum_branch w_i A_i (e_i - p L_i) / sum_branch w_i |A_i|          per unit of the branch's own weight
    V = sum_branch w_i A_i (e_i - p L_i) / sum_all    w_i |A_i|          branches add up

Positive: stops sooner. Weights enter as ratios, so a window's common factor drops out of both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lossbench.loss.modes import Mode
    from lossbench.metrics.step_sums import Columns

BRANCHES = {"incorrect": 0.0, "correct": 1.0}
"""Branch → its value of `correct`."""

_ANY_HORIZON = 1.0  # a factor of all rows


def hazards(rows: "Columns", forced_tokens: int = 0) -> "Columns":
    """Stopping hazard per free token of each branch, by step: `step`, `hazard_incorrect`, `hazard_correct`.

    `rows`: `step`, `length_tokens`, `terminated`, `correct` of completions, NaN where unknown; rows that lack one of
    them count nowhere. `forced_tokens`: tokens that the task dictates. NaN where a branch has no free token.
    """
    step_S, at_R = np.unique(rows["step"], return_inverse=True)
    free_R = np.maximum(rows["length_tokens"] - forced_tokens, 0.0)
    found: Columns = {"step": step_S}
    for branch, value in BRANCHES.items():
        there_R = (rows["correct"] == value) & ~np.isnan(free_R) & ~np.isnan(rows["terminated"])
        ended_S = np.bincount(at_R[there_R], rows["terminated"][there_R], len(step_S))
        free_S = np.bincount(at_R[there_R], free_R[there_R], len(step_S))
        found[f"hazard_{branch}"] = _ratio(ended_S, free_S)
    return found


def pushes(rows: "Columns", modes: "Sequence[Mode]", forced_tokens: int = 0) -> "dict[str, Columns]":
    """The pushes of each mode, by step, as if it had trained on these rows.

    Returns, by mode name, `step`, `push_incorrect` and `push_correct` (U), `added_incorrect` and `added_correct` (V).
    `rows` has the columns of `hazards`, `group` (one number is one group within a step), `reward`, and `in_loss` where
    rows may be masked out of the loss. NaN where nothing has a weight; modes that depend on micro-batches, which no
    table records, are NaN throughout.
    """
    hazard = hazards(rows, forced_tokens)
    step_S, at_R = np.unique(rows["step"], return_inverse=True)
    free_R = np.maximum(rows["length_tokens"] - forced_tokens, 0.0)
    score_R = np.full(len(at_R), np.nan)
    for branch, value in BRANCHES.items():
        mine_R = rows["correct"] == value
        expected_R = hazard[f"hazard_{branch}"][at_R] * free_R
        score_R = np.where(mine_R, rows["terminated"] - expected_R, score_R)
    known_R = ~np.isnan(score_R) & ~np.isnan(rows["reward"]) & ~np.isnan(rows["group"])
    known_R &= rows["in_loss"].astype(bool) if "in_loss" in rows else True
    kept = {name: values[known_R] for name, values in rows.items()}
    at_R, score_R = at_R[known_R], score_R[known_R]
    return {
        mode.name: _of_mode(kept, at_R, score_R, weighted_R, step_S)
        for mode, weighted_R in zip(modes, _weighted_advantages(kept, at_R, modes), strict=True)
    }


def _of_mode(kept: "Columns", at_R: np.ndarray, score_R: np.ndarray, wA_R: np.ndarray, step_S: np.ndarray) -> "Columns":
    """U and V of one mode, whose weights times advantages are `wA_R`."""
    all_S = np.bincount(at_R, np.abs(wA_R), len(step_S))
    found: Columns = {"step": step_S}
    for branch, value in BRANCHES.items():
        inside_R = kept["correct"] == value
        push_S = np.bincount(at_R[inside_R], (wA_R * score_R)[inside_R], len(step_S))
        own_S = np.bincount(at_R[inside_R], np.abs(wA_R)[inside_R], len(step_S))
        found[f"push_{branch}"], found[f"added_{branch}"] = _ratio(push_S, own_S), _ratio(push_S, all_S)
    return found


def _weighted_advantages(kept: "Columns", at_R: np.ndarray, modes: "Sequence[Mode]") -> list[np.ndarray]:
    """w_i A_i (R) of each mode, up to a factor per step; axes that several modes share are computed once."""
    from lossbench.loss.advantages import advantages, parse_advantage

    # Groups are numbered within a step, so their numbers are made unique over the run.
    groups_R = at_R * (1 + int(kept["group"].max(initial=0))) + kept["group"].astype(np.int64)
    lengths_R, rewards_R = kept["length_tokens"], kept["reward"]
    order = np.argsort(at_R, kind="stable")
    steps = np.split(order, np.flatnonzero(np.diff(at_R[order])) + 1)
    weights: dict[tuple[str, str], np.ndarray] = {}
    centred: dict[str, np.ndarray] = {}
    found = []
    for mode in modes:
        if mode.aggregation.entry.depends_on_split:
            found.append(np.full(len(at_R), np.nan))
            continue
        if mode.advantage not in centred:
            centred[mode.advantage] = np.empty(len(at_R))
            wide = any(part.batch_wide for part in parse_advantage(mode.advantage).parts)
            for rows in steps if wide else [slice(None)]:
                found_r = advantages(rewards_R[rows], groups_R[rows], mode.advantage, lengths_R[rows])
                centred[mode.advantage][rows] = found_r
        key = (mode.agg_mode, mode.advantage if mode.aggregation.entry.needs_advantages else "")
        if key not in weights:
            weights[key] = window_weights_of(mode, lengths_R, groups_R, centred[mode.advantage])
        found.append(weights[key] * centred[mode.advantage])
    return found


def window_weights_of(
    mode: "Mode", lengths_R: np.ndarray, groups_R: np.ndarray, advantages_R: np.ndarray | None = None
) -> np.ndarray:
    """The mode's row weights (R), up to a factor: of many steps at once where no group number stands in two steps."""
    from lossbench.loss.window import window_weights

    return window_weights(mode.aggregation, lengths_R, groups_R, horizon=_ANY_HORIZON, advantages_N=advantages_R)


def separation(hazard: "Columns", pushed: "Columns") -> float:
    """Realised separation per unit of push: growth of log(odds right / odds wrong) over sum of (V_r - V_w).

    From the first to the last fifth of the steps; NaN where a hazard is unknown or the push is about 0.
    """
    log_odds_S = _log_odds(hazard["hazard_correct"]) - _log_odds(hazard["hazard_incorrect"])
    size = max(1, len(log_odds_S) // 5)
    first, last = log_odds_S[:size], log_odds_S[-size:]
    total = float(np.nansum(pushed["added_correct"] - pushed["added_incorrect"]))
    if np.isnan(first).all() or np.isnan(last).all() or abs(total) < 1e-2 * len(log_odds_S):
        return float("nan")
    return float(np.nanmean(last) - np.nanmean(first)) / total


def _log_odds(hazard_S: np.ndarray) -> np.ndarray:
    inside_S = np.where((hazard_S > 0) & (hazard_S < 1), hazard_S, np.nan)
    return np.log(inside_S / (1 - inside_S))


def _ratio(above_S: np.ndarray, below_S: np.ndarray) -> np.ndarray:
    return np.divide(above_S, below_S, out=np.full(len(above_S), np.nan), where=below_S > 0)
