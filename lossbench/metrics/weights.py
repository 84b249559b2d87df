"""A completion's weight as its length changes, by aggregation: curves, elasticity, exact checks.

K1, K2 and K3 are mechanism figures that need no training: the elasticity of a token's weight in its row's length, the
Jensen gap of a length distribution, and the sign-length imbalance of a weighted batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lossbench.loss.aggregations import AGGREGATIONS, BoundAggregation, parse_aggregation
from lossbench.loss.window import window_weights

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class WeightCurve:
    """Weight per token of the rows of one window against their length; arrays of shape (N,), sorted by length.

    `relative` is the weight over the mean weight of the window's tokens, so that modes of different size compare.
    """

    agg_mode: str
    length_tokens: np.ndarray
    weight: np.ndarray
    relative: np.ndarray


def weight_curve(agg_mode: str, lengths: Sequence[int], horizon: float, group_size: int | None = None) -> WeightCurve:
    """The weight w_i of each row in a window made of `lengths`; groups are consecutive runs of `group_size` rows.

    `horizon` is the constant of the sum-norm modes, in tokens. The default is one group and one micro-batch for all.
    Weights that look at advantages are those of completions with positive ones.
    """
    lengths_N = np.asarray(lengths, dtype=np.int64)
    groups_N = np.arange(len(lengths_N)) // (group_size or max(1, len(lengths_N)))
    apart_N = np.arange(1, len(lengths_N) + 1)
    weights_N = window_weights(agg_mode, lengths_N, groups_N, horizon=horizon, advantages_N=apart_N)
    order = np.argsort(lengths_N, kind="stable")
    mean = float((weights_N * lengths_N).sum() / lengths_N.sum()) if lengths_N.sum() else float("nan")
    return WeightCurve(agg_mode, lengths_N[order], weights_N[order], weights_N[order] / mean)


def elasticity(lengths: Sequence[float] | np.ndarray, weights: Sequence[float] | np.ndarray) -> float:
    """K1: least-squares slope of log |weight| on log length; NaN with fewer than two different lengths.

    -1 for seq-mean-token-mean, 0 for modes whose weight does not look at the row's own length.
    """
    lengths, weights = np.asarray(lengths, dtype=float), np.abs(np.asarray(weights, dtype=float))
    live = (lengths > 0) & (weights > 0)
    if np.unique(lengths[live]).size < 2:
        return float("nan")
    return float(np.polyfit(np.log(lengths[live]), np.log(weights[live]), 1)[0])


def jensen_gap(lengths: Sequence[float] | np.ndarray) -> float:
    """K2: mean(1/L) - 1/mean(L) in 1/tokens over the non-empty rows; 0 for equal lengths, NaN for none."""
    lengths = np.asarray(lengths, dtype=float)
    lengths = lengths[lengths > 0]
    return float(np.mean(1 / lengths) - 1 / lengths.mean()) if lengths.size else float("nan")


def sign_length_imbalance(
    weights: Sequence[float] | np.ndarray,
    lengths: Sequence[float] | np.ndarray,
    advantages: Sequence[float] | np.ndarray,
) -> float:
    """K3: Σ w L A / Σ w L |A|, between -1 and 1; 0 where pushes up and down balance, NaN where nothing pushes."""
    mass = np.asarray(weights, dtype=float) * np.asarray(lengths, dtype=float)
    advantages = np.asarray(advantages, dtype=float)
    total = float((mass * np.abs(advantages)).sum())
    return float((mass * advantages).sum() / total) if total > 0 else float("nan")


@dataclass(frozen=True)
class ExactCheck:
    """Whether an identity of the weights holds, and a sentence that says what was compared."""

    holds: bool
    detail: str


_LENGTHS_N = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 128, 200], dtype=np.int64)
_HORIZON = 256.0
_STATED = {
    "seq-mean-token-mean": -1.0, "token-mean": 0.0, "seq-mean-token-sum": 0.0, "seq-mean-token-sum-norm": 0.0,
    "token-sum": 0.0,
}  # fmt: skip


def _equal(sentence: str, a: np.ndarray, b: np.ndarray) -> ExactCheck:
    gap = float(np.max(np.abs(a - b) / np.abs(b)))
    holds = gap <= _TOLERANCE
    return ExactCheck(holds, f"{sentence}: {'equal' if holds else f'they differ by a share of {gap:.2g}'}")


def _token_mean_of_one_row() -> ExactCheck:
    one = [(np.array([length]), np.zeros(1, dtype=np.int64)) for length in _LENGTHS_N]
    token, seq = (
        np.array([window_weights(mode, length, group, horizon=_HORIZON)[0] for length, group in one])
        for mode in ("token-mean", "seq-mean-token-mean")
    )
    return _equal("token-mean over one row vs seq-mean-token-mean", token, seq)


def _micro_token_mean_of_one_row_each() -> ExactCheck:
    rows = np.arange(len(_LENGTHS_N))
    micro = window_weights("micro-token-mean", _LENGTHS_N, rows // 4, horizon=_HORIZON, micro_ids_N=rows)
    seq = window_weights("seq-mean-token-mean", _LENGTHS_N, rows // 4, horizon=_HORIZON)
    return _equal("micro-token-mean with one row per micro-batch vs seq-mean-token-mean", micro, seq)


def _weight_elasticity() -> ExactCheck:
    """Within one group and micro-batch, every aggregation's elasticity is the one its registry entry states."""
    wrong = [name for name, value in _STATED.items() if parse_aggregation(name).exponent - 1 != value]
    for entry in AGGREGATIONS.values():
        for bound in _instances(entry.name):
            one_group_N, apart_N = np.zeros_like(_LENGTHS_N), np.arange(1, len(_LENGTHS_N) + 1)
            weights_N = window_weights(bound, _LENGTHS_N, one_group_N, horizon=_HORIZON, advantages_N=apart_N)
            slope = elasticity(_LENGTHS_N, weights_N)
            if abs(slope - (bound.exponent - 1)) > _TOLERANCE:
                wrong.append(f"{bound.name}: {slope:+.3g} instead of {bound.exponent - 1:+.3g}")
    stated = (
        "weight elasticity -1 for seq-mean-token-mean, 0 for token-mean and the sum modes, α - 1 for length-power:α"
    )
    return ExactCheck(not wrong, f"{stated}: {'exact' if not wrong else '; '.join(wrong)}")


def _instances(name: str) -> list[BoundAggregation]:
    if not AGGREGATIONS[name].takes_alpha:
        return [parse_aggregation(name)]
    return [parse_aggregation(f"{name}:{alpha}") for alpha in (0, 0.5, 1, 2)]


EXACT_CHECKS: dict[str, Callable[[], ExactCheck]] = {
    "token-mean-of-one-row": _token_mean_of_one_row,
    "micro-token-mean-of-one-row-each": _micro_token_mean_of_one_row_each,
    "weight-elasticity": _weight_elasticity,
}
"""The identities that claims rest on, computed on a fixed window."""
