"""The weights of every aggregation on one window, worked out by hand."""

import pytest
import torch

from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.window import window_weights

# Four completions of two prompts in two micro-batches:
#   L = 1, 4, 16, 4    N = 4    T = 25    H = 10
#   prompts 0, 0, 0, 1: P = 2, T_g = 21, 21, 21, 4
#   micro-batches 0, 0, 1, 1: M = 2, T_m = 5, 5, 20, 20
#   advantages 2, -1, -1, 0: prompt 0 has k₊ = 1 with 1 token, k₋ = 2 with 20; prompt 1 has no spread
LENGTHS, PROMPTS, MICRO_BATCHES, ADVANTAGES, HORIZON = [1, 4, 16, 4], [0, 0, 0, 1], [0, 0, 1, 1], [2, -1, -1, 0], 10
ROOT = 10**0.5
BY_HAND = {
    "token-mean": [1 / 25] * 4,  # 1/T
    "seq-mean-token-mean": [1 / 4, 1 / 16, 1 / 64, 1 / 16],  # 1/(4·1), 1/(4·4), 1/(4·16), 1/(4·4)
    "seq-mean-token-sum": [1 / 4] * 4,  # 1/N
    "seq-mean-token-sum-norm": [1 / 40] * 4,  # 1/(4·10)
    "token-sum": [1.0] * 4,
    "prompt-mean": [1 / 42, 1 / 42, 1 / 42, 1 / 8],  # 1/(2·21), 1/(2·4)
    "micro-token-mean": [1 / 10, 1 / 10, 1 / 40, 1 / 40],  # 1/(2·5), 1/(2·20)
    "balanced": [1 / 6, 1 / 60, 1 / 60, 0],  # (1/3)/(2·1), (2/3)/(2·20)
    "live-token-mean": [1 / 21, 1 / 21, 1 / 21, 0],  # 1/(1 + 4 + 16)
    # L^(α−1)/(N·H^α)
    "length-power:0": [1 / 4, 1 / 16, 1 / 64, 1 / 16],  # L⁻¹/4
    "length-power:0.5": [1 / (4 * ROOT), 1 / (8 * ROOT), 1 / (16 * ROOT), 1 / (8 * ROOT)],  # L^(−½)/(4·√10)
    "length-power:1": [1 / 40] * 4,
    "length-power:1.5": [1 / (40 * ROOT), 2 / (40 * ROOT), 4 / (40 * ROOT), 2 / (40 * ROOT)],  # √L/(4·10·√10)
    "length-power:2": [1 / 400, 4 / 400, 16 / 400, 4 / 400],  # L/(4·100)
    # L^(−α)/(H·Σ_j L_j^(−α))
    "delta-l:0": [1 / 40] * 4,  # 1/(10·4)
    "delta-l:0.5": [2 / 45, 1 / 45, 1 / 90, 1 / 45],  # Σ = 1 + 1/2 + 1/4 + 1/2 = 9/4: 4/90·(1, 1/2, 1/4, 1/2)
    "delta-l:1": [8 / 125, 2 / 125, 1 / 250, 2 / 125],  # Σ = 1 + 1/4 + 1/16 + 1/4 = 25/16: 16/250·(1, 1/4, 1/16, 1/4)
    "delta-l:-1": [1 / 250, 4 / 250, 16 / 250, 4 / 250],  # Σ = 25: L/(10·25)
}


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_of_four_completions(name: str) -> None:
    lengths_N, groups_N, micro_N = torch.tensor(LENGTHS), torch.tensor(PROMPTS), torch.tensor(MICRO_BATCHES)
    weights_N = window_weights(name, lengths_N, groups_N, horizon=HORIZON, micro_ids_N=micro_N, advantages_N=ADVANTAGES)
    assert weights_N.tolist() == pytest.approx(BY_HAND[name], rel=1e-14)


def test_every_aggregation_is_worked_out_and_every_exponent_at_three_values_or_more() -> None:
    worked = [name.partition(":")[0] for name in BY_HAND]
    assert set(worked) == set(AGGREGATIONS)
    assert all(worked.count(name) >= 3 for name, entry in AGGREGATIONS.items() if entry.takes_alpha)


def test_delta_l_of_one_group_of_three() -> None:
    # Σ L^(−½) = 1 + 1/2 + 1/4 = 7/4, so w = 4/70·(1, 1/2, 1/4)
    weights_N = window_weights("delta-l:.5", torch.tensor([1, 4, 16]), torch.zeros(3), horizon=10)
    assert weights_N.tolist() == pytest.approx([2 / 35, 1 / 35, 1 / 70], rel=1e-14)


def test_an_empty_row_counts_as_a_row_and_weighs_nothing() -> None:
    # L = 0, 2, 2 of prompts 0, 0, 1: N = 3, P = 2, T_g = 2, 2
    lengths_N, groups_N = torch.tensor([0, 2, 2]), torch.tensor([0, 0, 1])

    def weights(name: str) -> list[float]:
        return window_weights(name, lengths_N, groups_N, horizon=10).tolist()

    assert weights("seq-mean-token-mean") == pytest.approx([0, 1 / 6, 1 / 6])
    assert weights("seq-mean-token-sum-norm") == pytest.approx([0, 1 / 30, 1 / 30])
    assert weights("prompt-mean") == pytest.approx([0, 1 / 4, 1 / 4])
    assert weights("delta-l:1") == pytest.approx([0, 1 / 20, 1 / 20])  # Σ over live rows = 1: (1/2)/(10·1)
