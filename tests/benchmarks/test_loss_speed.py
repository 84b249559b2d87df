"""Weights and contraction cost about as much as one masked mean."""

import time
from collections.abc import Callable
from statistics import median

import pytest
import torch

from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.token_loss import weighted_loss
from lossbench.loss.window import window_weights

ROWS, WIDTH, LIMIT = 512, 4096, 1.5
NAMES = [f"{entry.name}:0.5" if entry.takes_alpha else entry.name for entry in AGGREGATIONS.values()]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.benchmark
@pytest.mark.parametrize("name", NAMES)
def test_a_mode_costs_a_masked_mean(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    loss_BT = torch.randn(ROWS, WIDTH, generator=generator)
    mask_BT = torch.arange(WIDTH) < torch.randint(1, WIDTH + 1, (ROWS, 1), generator=generator)
    group_ids = torch.arange(ROWS) // 8

    def mode() -> torch.Tensor:
        weights_B = window_weights(name, mask_BT.sum(-1), group_ids, horizon=WIDTH)
        return weighted_loss(loss_BT, mask_BT, weights_B)

    def masked_mean() -> torch.Tensor:
        return (loss_BT * mask_BT).sum() / mask_BT.sum()

    ratios = []
    for _ in range(15):  # interleaved, so that a busy machine slows both
        ratios.append(_seconds(mode) / _seconds(masked_mean))
    with capsys.disabled():
        print(f"\n{name}: {median(ratios):.2f} times a masked mean (limit {LIMIT})")
    assert median(ratios) <= LIMIT
