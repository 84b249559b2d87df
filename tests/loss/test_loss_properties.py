"""What must hold for any window: splits, order, padding, holes, empty rows, whatever masked cells hold."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lossbench.loss
from lossbench.loss.advantages import advantages
from lossbench.loss.aggregations import AGGREGATIONS, parse_aggregation, sum_by
from lossbench.loss.surrogates import SURROGATES, SurrogateParams
from lossbench.loss.token_loss import check_mask, weighted_loss
from lossbench.loss.verl_agg_loss import VERL_MODES, agg_loss
from lossbench.loss.window import Layout, Window, window_weights

NAMES = [f"{entry.name}:0.5" if entry.takes_alpha else entry.name for entry in AGGREGATIONS.values()]
SPLIT_FREE = [name for name in NAMES if not parse_aggregation(name).entry.depends_on_split]
HORIZON = 8.0
fast = settings(max_examples=40, deadline=None)


@st.composite
def masks(draw: st.DrawFn, least_live: int = 0) -> Tensor:
    """Bool (B, T) masks with holes and, unless `least_live` is 1, empty rows."""
    rows, width = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    bits = draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    mask_BT = torch.tensor(bits).reshape(rows, width)
    if least_live:
        mask_BT[:, 0] = True
    return mask_BT


def _weights(name: str, lengths_N: Tensor, groups: Tensor, rows_N: Tensor | None = None, **more) -> np.ndarray:
    """Weights of rows whose advantages go round -1, 0 and 1 by their own number."""
    rows_N = torch.arange(len(lengths_N)) if rows_N is None else rows_N
    return window_weights(name, lengths_N, groups, horizon=HORIZON, advantages_N=rows_N % 3 - 1, **more)


def _groups(mask_BT: Tensor, size: int) -> Tensor:
    return torch.arange(len(mask_BT)) // size


def _random(mask_BT: Tensor, seed: int) -> Tensor:
    return torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _as_ranks_do(name: str, mask_BT: Tensor, groups: Tensor, loss_BT: Tensor, ranks: int, rows: int) -> Tensor:
    """The window's loss as ranks make it: row terms in each rank's micro-batches, the scalar once at the end."""
    rows_RCB = torch.arange(len(mask_BT)).view(ranks, -1, rows)
    layout = Layout(mask_BT.sum(-1)[rows_RCB], groups[rows_RCB], rows_RCB, rows_RCB % 3 - 1)
    window = Window(parse_aggregation(name), HORIZON)
    terms_RCB = window.add_segment(layout, 0, layout.micro_batches)
    parts = [
        weighted_loss(loss_BT[part_B], mask_BT[part_B], terms_B)
        for part_B, terms_B in zip(rows_RCB.flatten(0, 1), terms_RCB.reshape(-1, rows), strict=True)
    ]
    return torch.stack(parts).sum() * window.scalar


@pytest.mark.parametrize("name", SPLIT_FREE)
@given(
    mask_BT=masks(), size=st.integers(1, 4), ranks=st.integers(1, 3), rows=st.integers(1, 8), seed=st.integers(0, 99)
)
@fast
def test_any_split_gives_the_window_s_loss(
    name: str, mask_BT: Tensor, size: int, ranks: int, rows: int, seed: int
) -> None:
    missing = -len(mask_BT) % (ranks * rows)  # whole micro-batches: empty rows of the first group make them up
    mask_BT = torch.cat([mask_BT, torch.zeros(missing, mask_BT.shape[1]).bool()])
    groups = torch.cat([_groups(mask_BT[: len(mask_BT) - missing], size), torch.zeros(missing).long()])
    loss_BT = _random(mask_BT, seed)
    whole = weighted_loss(loss_BT, mask_BT, _weights(name, mask_BT.sum(-1), groups))
    dealt = _as_ranks_do(name, mask_BT, groups, loss_BT, ranks, rows)
    assert dealt.item() == pytest.approx(whole.item(), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("name", NAMES)
@given(
    mask_BT=masks(), size=st.integers(1, 4), seed=st.integers(0, 99), junk=st.sampled_from([math.nan, 1e30, math.inf])
)
@fast
def test_order_padding_and_junk_change_nothing(name: str, mask_BT: Tensor, size: int, seed: int, junk: float) -> None:
    groups, loss_BT = _groups(mask_BT, size), _random(mask_BT, seed)

    def loss_and_grad(loss_BT: Tensor, mask_BT: Tensor, groups: Tensor, rows_N=None) -> tuple[float, Tensor]:
        leaf = loss_BT.clone().requires_grad_()
        loss = weighted_loss(leaf, mask_BT, _weights(name, mask_BT.sum(-1), groups, rows_N))
        loss.backward()
        return loss.item(), leaf.grad

    value, grad = loss_and_grad(loss_BT, mask_BT, groups)
    order = torch.randperm(len(mask_BT), generator=torch.Generator().manual_seed(seed))
    shuffled, shuffled_grad = loss_and_grad(loss_BT[order], mask_BT[order], groups[order], order)
    padded_mask = torch.nn.functional.pad(mask_BT, (0, 3))
    padded, padded_grad = loss_and_grad(torch.nn.functional.pad(loss_BT, (0, 3), value=junk), padded_mask, groups)
    junked, junked_grad = loss_and_grad(torch.where(mask_BT, loss_BT, junk), mask_BT, groups)
    assert shuffled == pytest.approx(value, rel=1e-12, abs=1e-14)
    assert padded == pytest.approx(value, rel=1e-12, abs=1e-14)
    assert junked == value
    torch.testing.assert_close(shuffled_grad, grad[order], rtol=1e-12, atol=0)
    torch.testing.assert_close(padded_grad[:, : mask_BT.shape[1]], grad, rtol=1e-12, atol=0)
    torch.testing.assert_close(junked_grad, grad, rtol=0, atol=0)
    assert (padded_grad[:, mask_BT.shape[1] :] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@given(mask_BT=masks(), size=st.integers(1, 4))
@fast
def test_matched_weights_add_up_to_one_over_the_horizon(name: str, mask_BT: Tensor, size: int) -> None:
    lengths_N, groups = mask_BT.sum(-1), _groups(mask_BT, size)
    weights_N = _weights(name, lengths_N, groups, match_scale=True)
    assert weights_N.sum().item() == pytest.approx(1 / HORIZON if weights_N.any() else 0.0)
    assert weights_N.any() or not lengths_N.sum() or parse_aggregation(name).entry.needs_advantages
    assert np.isfinite(weights_N).all() and (weights_N[lengths_N.numpy() == 0] == 0).all()


@pytest.mark.parametrize("name", list(SURROGATES))
@given(mask_BT=masks(), seed=st.integers(0, 99), junk=st.sampled_from([math.nan, 1e30, -math.inf, 200.0]))
@fast
def test_surrogates_are_blind_to_masked_cells(name: str, mask_BT: Tensor, seed: int, junk: float) -> None:
    old_BT, adv_B = _random(mask_BT, seed) - 2, _random(mask_BT, seed + 1)[:, 0]

    def loss_and_grad(logp_BT: Tensor, old_BT: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logp_BT.clone().requires_grad_()
        loss_BT = SURROGATES[name].fn(leaf, old_BT, adv_B, mask_BT, SurrogateParams())
        loss_BT.sum().backward()
        return loss_BT.detach(), leaf.grad

    logp_BT = old_BT + 0.3 * _random(mask_BT, seed + 2)
    clean, clean_grad = loss_and_grad(logp_BT, old_BT)
    junked, junked_grad = loss_and_grad(torch.where(mask_BT, logp_BT, junk), torch.where(mask_BT, old_BT, -junk))
    torch.testing.assert_close(junked, clean, rtol=0, atol=0)
    torch.testing.assert_close(junked_grad, clean_grad, rtol=0, atol=0)
    assert (clean[~mask_BT] == 0).all() and (clean_grad[~mask_BT] == 0).all()


@pytest.mark.parametrize("name", list(SURROGATES))
def test_all_surrogates_have_one_gradient_on_policy(name: str) -> None:
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    logp_BT = torch.full((2, 3), -0.7, dtype=torch.float64, requires_grad=True)
    adv_B = torch.tensor([0.5, -1.5], dtype=torch.float64)
    SURROGATES[name].fn(logp_BT, logp_BT.detach(), adv_B, mask_BT, SurrogateParams()).sum().backward()
    # every live token gets -A, whatever the surrogate
    torch.testing.assert_close(logp_BT.grad, torch.where(mask_BT, -adv_B[:, None], 0.0))


@given(mask_BT=masks(least_live=1), seed=st.integers(0, 99), mode=st.sampled_from(VERL_MODES["article"]))
@fast
def test_agg_loss_is_the_weights_where_no_row_is_empty(mask_BT: Tensor, seed: int, mode: str) -> None:
    loss_BT = _random(mask_BT, seed)
    weights_N = window_weights(mode, mask_BT.sum(-1), torch.zeros(len(mask_BT)), horizon=HORIZON)
    ours = weighted_loss(loss_BT, mask_BT, weights_N).item()
    factor = len(mask_BT) if mode == "seq-mean-token-sum-norm" else 1  # that release does not divide by the rows
    theirs = agg_loss(loss_BT, mask_BT, mode, loss_scale_factor=HORIZON).item()
    assert theirs == pytest.approx(ours * factor, rel=1e-6, abs=1e-9)


@given(rewards=st.lists(st.floats(-5, 5), min_size=1, max_size=12), size=st.integers(1, 4), shift=st.floats(-3, 3))
@fast
def test_advantages_are_centred_and_blind_to_a_shift(rewards: list[float], size: int, shift: float) -> None:
    rewards_B = torch.tensor(rewards, dtype=torch.float64)
    groups = torch.arange(len(rewards)) // size
    for scale in ("group", "batch", "none"):
        adv_B = advantages(rewards_B, groups, scale)
        assert np.isfinite(adv_B).all()
        assert np.abs(sum_by(adv_B, groups)).max() < 1e-6 * len(rewards)
        np.testing.assert_allclose(advantages(rewards_B + shift, groups, scale), adv_B, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_adds_up_in_float32(dtype: torch.dtype) -> None:
    # 4096 cells of 0.01: bfloat16 running sums would stop growing near 4; float32 gives 4096 times the rounded 0.01
    loss_BT, mask_BT = torch.full((1, 4096), 0.01, dtype=dtype), torch.ones(1, 4096, dtype=torch.bool)
    got = weighted_loss(loss_BT, mask_BT, torch.ones(1))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(4096 * float(loss_BT[0, 0]), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_mask(torch.tensor([[0.0, 0.5]])), ("mask", "0.5", "0 and 1")),
        (lambda: weighted_loss(torch.ones(2, 3), torch.ones(2, 4).bool(), torch.ones(2)), ("mask_BT", "(2, 4)")),
        (
            lambda: weighted_loss(torch.ones(2, 3), torch.ones(2, 3).bool(), torch.ones(3)),
            ("weights_B", "(3,)", "(2,)"),
        ),
        (lambda: window_weights("token-mean", torch.ones(2), torch.ones(3), horizon=1), ("group_ids_N", "(3,)")),
        (lambda: window_weights("token-mean", -torch.ones(2), torch.ones(2), horizon=1), ("lengths_N", "-1")),
        (lambda: window_weights("token-mean", torch.ones(2), torch.ones(2), horizon=0), ("horizon", "0")),
        (lambda: window_weights("token-mean", torch.ones(2), torch.ones(2), horizon=math.inf), ("horizon", "inf")),
        (lambda: parse_aggregation("length-power:nan"), ("length-power:nan", "finite")),
        (lambda: parse_aggregation("length-power"), ("length-power", "finite")),
        (lambda: parse_aggregation("token-mean:1"), ("token-mean:1", "no number")),
        (lambda: parse_aggregation("token-men"), ("token-men", "did you mean 'token-mean'")),
        (lambda: SurrogateParams(cispo_cap=0), ("cispo_cap", "greater than 0")),
        (lambda: SurrogateParams(delta=-1.0), ("delta", "greater than 0")),
        (lambda: SurrogateParams(importance_sampling_level="row"), ("importance_sampling_level", "row", "sequence")),
        (lambda: advantages(torch.ones(2), torch.ones(2), "std"), ("advantage", "std", "batch")),
        (
            lambda: window_weights("length-power:-1000", torch.tensor([300, 5]), torch.ones(2), horizon=300),
            ("length-power:-1000", "5 to 300"),
        ),
        (
            lambda: window_weights("delta-l:1000", torch.tensor([300, 5]), torch.ones(2), horizon=300),
            ("delta-l:1000", "5 to 300"),
        ),
        (lambda: agg_loss(torch.ones(1, 1), torch.ones(1, 1), "token-sum"), ("token-sum", "article", "token-mean")),
        (lambda: agg_loss(torch.ones(1, 2), torch.ones(1, 1), "token-mean"), ("loss_mat", "(1, 2)")),
        (lambda: agg_loss(torch.ones(1, 1), torch.ones(1, 1), "token-mean", dp_size=0), ("dp_size", "0")),
        (
            lambda: agg_loss(torch.ones(1, 1), torch.ones(1, 1), "token-mean", batch_num_tokens=-1),
            ("batch_num_tokens",),
        ),
        (lambda: agg_loss(torch.ones(1, 1), 2 * torch.ones(1, 1), "token-mean"), ("mask", "2.0")),
    ],
)
def test_bad_input_is_named(call, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_loss_room_needs_torch_alone() -> None:
    rooms = sorted(path.stem for path in Path(lossbench.loss.__file__).parent.glob("[a-z]*.py"))
    imports = "; ".join(f"import lossbench.loss.{room}" for room in rooms)
    heavy = "[m for m in ('trl', 'transformers', 'pandas', 'matplotlib', 'accelerate') if m in sys.modules]"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
