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

_ANY_HORIZON = 1.0  # a factor of all rows

PUSH_COLUMNS = ["step", "generation", "group", "length_tokens", "terminated", "reward", "correct", "token_weight"]
"""The columns of `rollouts` that stopping hazards and pushes are made of."""

BRANCHES = {"incorrect": 0.0, "correct": 1.0}
"""Branch → its value of `correct`."""


def stops(rows: "Columns", forced_tokens: int = 0) -> "tuple[Columns, np.ndarray, np.ndarray]":
    """Endings and free tokens of each branch, by step: `step`, `ended_<branch>`, `free_<branch>`.

    Beside them, for each row (R), its place among the steps and its free tokens.

    `rows`: `step`, `length_tokens`, `terminated`, `correct` of completions, NaN where unknown; rows that lack one of
    them count nowhere. `forced_tokens`: tokens that the task dictates. Rows masked out of the loss tell of the policy
    as the others do, and count.
    """
    step_S, at_R = np.unique(rows["step"], return_inverse=True)
    free_R = np.maximum(rows["length_tokens"] - forced_tokens, 0.0)
    found: Columns = {"step": step_S}
    for branch, value in BRANCHES.items():
        there_R = (rows["correct"] == value) & ~np.isnan(free_R) & ~np.isnan(rows["terminated"])
        found[f"ended_{branch}"] = np.bincount(at_R[there_R], rows["terminated"][there_R], len(step_S))
        found[f"free_{branch}"] = np.bincount(at_R[there_R], free_R[there_R], len(step_S))
    return found, at_R, free_R


def hazards(rows: "Columns", forced_tokens: int = 0) -> "Columns":
    """Stopping hazard per free token of each branch, by step: `step`, `hazard_incorrect`, `hazard_correct`.

    `rows` as for `stops`. NaN where a branch has no free token.
    """
    return _hazards(stops(rows, forced_tokens)[0])


def _hazards(found: "Columns") -> "Columns":
    rates = {f"hazard_{branch}": _ratio(found[f"ended_{branch}"], found[f"free_{branch}"]) for branch in BRANCHES}
    return {"step": found["step"], **rates}


def pushes(rows: "Columns", modes: "Sequence[Mode]", forced_tokens: int = 0) -> "dict[str, Columns]":
    """The pushes of each mode, by step, as if it had trained on these rows.

    Returns, by mode name, `step` and, for each branch, `push_<branch>` (U), `added_<branch>` (V) and `share_<branch>`,
    its part of the sum of w |A| (V = share U). `rows` has the columns of `hazards`, `group` (one number is one group
    within a step), `reward`, and where there are such, `generation`, whose groups advantages are relative to, and
    `in_loss`, 0 for rows that are masked out of the loss. NaN where nothing has a weight, and throughout for modes that
    depend on micro-batches, which no table records.
    """
    return _pushes(rows, modes, *stops(rows, forced_tokens))


def _pushes(
    rows: "Columns", modes: "Sequence[Mode]", stopped: "Columns", at_R: np.ndarray, free_R: np.ndarray
) -> "dict[str, Columns]":
    hazard = _hazards(stopped)
    score_R = np.full(len(at_R), np.nan)
    for branch, value in BRANCHES.items():
        expected_R = hazard[f"hazard_{branch}"][at_R] * free_R
        score_R = np.where(rows["correct"] == value, rows["terminated"] - expected_R, score_R)
    known_R = ~np.isnan(score_R) & ~np.isnan(rows["reward"]) & ~np.isnan(rows["group"])
    kept = {name: values[known_R] for name, values in rows.items()}
    at_R, score_R = at_R[known_R], score_R[known_R]
    weighted = _weighted_advantages(kept, at_R, modes)
    by_array = {id(wA_R): _of_mode(kept, at_R, score_R, wA_R, hazard["step"]) for wA_R in weighted}
    return {mode.name: by_array[id(wA_R)] for mode, wA_R in zip(modes, weighted, strict=True)}


def _of_mode(kept: "Columns", at_R: np.ndarray, score_R: np.ndarray, wA_R: np.ndarray, step_S: np.ndarray) -> "Columns":
    """U, V and shares of one mode, whose weights times advantages are `wA_R`."""
    size_R = np.abs(wA_R)
    all_S = np.bincount(at_R, size_R, len(step_S))
    found: Columns = {"step": step_S}
    for branch, value in BRANCHES.items():
        inside_R = kept["correct"] == value
        push_S = np.bincount(at_R, np.where(inside_R, wA_R * score_R, 0.0), len(step_S))
        own_S = np.bincount(at_R, np.where(inside_R, size_R, 0.0), len(step_S))
        found[f"push_{branch}"], found[f"added_{branch}"] = _ratio(push_S, own_S), _ratio(push_S, all_S)
        found[f"share_{branch}"] = _ratio(own_S, all_S)
    return found


def _weighted_advantages(kept: "Columns", at_R: np.ndarray, modes: "Sequence[Mode]") -> list[np.ndarray]:
    """w_i A_i (R) of each mode, up to a factor per step; modes that differ by such a factor alone share one array."""
    # Groups are numbered within a step or generation, so their numbers are made unique over the run.
    count = 1 + int(kept["group"].max(initial=0))
    groups_R = at_R * count + kept["group"].astype(np.int64)
    generation_R = kept.get("generation", np.full(len(at_R), np.nan))
    round_R = at_R if np.isnan(generation_R).any() else generation_R.astype(np.int64)
    in_loss_R = np.nan_to_num(kept["in_loss"], nan=1.0) != 0 if "in_loss" in kept else True
    weights: dict[tuple, np.ndarray] = {}
    centred: dict[str, np.ndarray] = {}
    products: dict[tuple, np.ndarray] = {}
    found = []
    for mode in modes:
        entry, name = mode.aggregation.entry, mode.advantage
        key = (entry.row_term, mode.aggregation.alpha, entry.depends_on_split)
        if (key, name) not in products:
            if name not in centred:
                centred[name] = _advantages_of(name, kept, round_R, round_R * count + kept["group"].astype(np.int64))
            looked_at = (key, name if entry.needs_advantages else "")
            if looked_at not in weights:
                weights[looked_at] = window_weights_of(mode, kept["length_tokens"], groups_R, centred[name])
            products[key, name] = np.where(in_loss_R, weights[looked_at] * centred[name], 0.0)
        found.append(products[key, name])
    return found


def _advantages_of(name: str, kept: "Columns", round_R: np.ndarray, groups_R: np.ndarray) -> np.ndarray:
    """A_i (R); parts that look beyond the group are computed round by round."""
    from lossbench.loss.advantages import advantages, parse_advantage

    rounds: list = [slice(None)]
    if any(part.batch_wide for part in parse_advantage(name).parts):
        order = np.argsort(round_R, kind="stable")
        rounds = np.split(order, np.flatnonzero(np.diff(round_R[order])) + 1)
    found_R = np.empty(len(round_R))
    for rows in rounds:
        found_R[rows] = advantages(kept["reward"][rows], groups_R[rows], name, kept["length_tokens"][rows])
    return found_R


def window_weights_of(
    mode: "Mode", lengths_R: np.ndarray, groups_R: np.ndarray, advantages_R: np.ndarray | None = None
) -> np.ndarray:
    """The mode's row weights (R), up to a factor: of many steps at once where no group number stands in two steps.

    NaN where they depend on micro-batches, which no table records, or leave the range of floats.
    """
    from lossbench.loss.window import window_weights

    nothing_R = np.full(len(lengths_R), np.nan)
    if mode.aggregation.entry.depends_on_split:
        return nothing_R
    try:
        return window_weights(mode.aggregation, lengths_R, groups_R, horizon=_ANY_HORIZON, advantages_N=advantages_R)
    except ValueError:
        return nothing_R


def measured_sql(source: str) -> str:
    """SQL for the rows of `source` that `completions_sql` sums, without its masks of the loss: `in_loss` is 0 there."""
    return f"""SELECT * EXCLUDE (token_weight), token_weight <> 0 AS in_loss FROM {source}
        WHERE length_tokens IS NOT NULL AND step IS NOT NULL"""


def pushed_sums(rows: "Columns", modes: "Sequence[Mode]", forced_tokens: int) -> "tuple[Columns, dict[str, Columns]]":
    """Endings and free tokens per step, and by mode the columns that pushes over a window are ratios of.

    Each step counts once in a window, whatever the size of its update: V is a mean over steps, U is V over the share.
    """
    by_mode, (stopped, *by_row) = {}, stops(rows, forced_tokens)
    for name, pushed in _pushes(rows, modes, stopped, *by_row).items():
        sums = {key: np.nan_to_num(values) for key, values in pushed.items() if key.startswith(("added_", "share_"))}
        by_mode[name] = {**sums, "pushed_steps": np.isfinite(pushed["added_incorrect"]).astype(float)}
    return stopped, by_mode


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
