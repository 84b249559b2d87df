"""Faults that people reported against GRPO losses, each with the right value; the thread is in the test's id."""

import math

import pytest
import torch
from support.conformance import document, equal, numbers, tensor
from torch import Tensor

from lossbench.loss.advantages import advantages
from lossbench.loss.modes import parse_mode
from lossbench.loss.surrogates import SURROGATES, SurrogateParams
from lossbench.loss.token_loss import kl_BT, weighted_loss
from lossbench.loss.window import window_weights

CASES = {case["id"]: case for case in document("conformance_cases.json")["cases"]}


def _of_kind(*kinds: str) -> list:
    return [
        pytest.param(case, id=f"{case['id']}: {case['source_thread']}")
        for case in CASES.values()
        if case["kind"] in kinds
    ]


def _window_loss(
    agg_mode: str, loss_BT: Tensor, mask_BT: Tensor, horizon: float = 10, rows: int = 0, groups=None
) -> Tensor:
    """Loss of a window, `rows` rows per micro-batch (0: all in one)."""
    ids = torch.arange(len(mask_BT))
    group_ids = ids * 0 if groups is None else torch.tensor(groups)
    micro_ids = ids // rows if rows else None
    weights_B = window_weights(agg_mode, mask_BT.sum(-1), group_ids, horizon=horizon, micro_ids_N=micro_ids)
    return weighted_loss(loss_BT, mask_BT, weights_B)


def _simple_aggregates() -> list:
    return [param for param in _of_kind("aggregate") if "loss_mat" in param.values[0]["inputs"]]


@pytest.mark.parametrize("case", _simple_aggregates())
def test_aggregation(case: dict) -> None:
    inputs, expected = case["inputs"], case["expected"]
    losses = expected.get("row_counted") or expected["loss"]
    if not isinstance(losses, dict):  # nothing live: one value and one gradient for all modes
        losses = dict.fromkeys(("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "prompt-mean"), losses)
    for agg_mode, right in losses.items():
        loss_BT, mask_BT = tensor(inputs["loss_mat"]).requires_grad_(), tensor(inputs["loss_mask"]).bool()
        loss = _window_loss(agg_mode, loss_BT, mask_BT, inputs.get("constant", 10), groups=inputs.get("group_ids"))
        loss.backward()
        assert loss.item() == pytest.approx(right, rel=1e-9), agg_mode
        wrong = [float(value) for value in case.get("known_wrong", {}).values()]
        assert not any(loss.item() == pytest.approx(value, rel=1e-9) for value in wrong), agg_mode
        assert (loss_BT.grad[~mask_BT] == 0).all()
        grads = case.get("expected_grad", {})
        if agg_mode in grads:
            assert equal(loss_BT.grad, grads[agg_mode], 1e-9, 1e-12)


def test_the_other_reading_of_an_empty_row_is_not_ours() -> None:
    # C2: verl without a global batch size leaves the row out, 4.0; here it counts, (0+4)/2 = 2.0
    case = CASES["C2"]
    loss_BT, mask_BT = tensor(case["inputs"]["loss_mat"]), tensor(case["inputs"]["loss_mask"]).bool()
    assert _window_loss("seq-mean-token-sum", loss_BT, mask_BT).item() == 2.0
    assert case["expected"]["row_left_out"]["seq-mean-token-sum"] == 4.0


@pytest.mark.parametrize("case", _of_kind("token_weight"))
def test_weight_of_one_token(case: dict) -> None:
    mask_BT = tensor(case["inputs"]["loss_mask"]).bool()
    for agg_mode, right in case["expected"].items():
        groups = torch.tensor(case["inputs"].get("group_ids", [0] * len(mask_BT)))
        weights_B = window_weights(agg_mode, mask_BT.sum(-1), groups, horizon=case["inputs"].get("constant", 10))
        assert equal(weights_B, right, 1e-9, 0), agg_mode


def _value_and_grad(
    surrogate: str, ratio: float, advantage: float, logp: float, params: SurrogateParams
) -> list[float]:
    logp_BT = torch.tensor([[logp]], dtype=torch.float64, requires_grad=True)
    old_BT = logp_BT.detach() - math.log(ratio)
    mask_BT = torch.ones(1, 1, dtype=torch.bool)
    loss = SURROGATES[surrogate].fn(logp_BT, old_BT, torch.tensor([advantage]).double(), mask_BT, params).sum()
    loss.backward()
    return [loss.item(), logp_BT.grad.item()]


@pytest.mark.parametrize("reading", ["cap_is_one_plus_eps", "cap_is_eps"])
def test_cispo_cap_is_absolute_and_says_so(reading: str) -> None:
    inputs, expected = CASES["A12"]["inputs"], CASES["A12"]["expected"]
    cap = inputs["epsilon_high"] + (reading == "cap_is_one_plus_eps")
    got = [_value_and_grad("cispo", r, 1.0, inputs["logp"], SurrogateParams(cispo_cap=cap)) for r in inputs["ratios"]]
    assert equal(got, expected[reading], 1e-9, 1e-12)
    assert "cap is absolute" in SURROGATES["cispo"].caveat


def test_cispo_keeps_the_gradient_that_the_clip_loses() -> None:
    inputs, expected = CASES["A13"]["inputs"], CASES["A13"]["expected"]
    params = SurrogateParams(epsilon_low=1 - inputs["low"], epsilon_high=inputs["high"] - 1, cispo_cap=inputs["high"])
    for name, surrogate in (("cispo", "cispo"), ("clip", "grpo")):
        got = [_value_and_grad(surrogate, 1.5, advantage, -2.0, params) for advantage in inputs["advantages"]]
        assert equal(got, expected[name], 1e-9, 1e-12)


@pytest.mark.parametrize("case_id", ["A14", "A15"])
def test_sapo_has_the_factor_four_over_tau(case_id: str) -> None:
    inputs = CASES[case_id]["inputs"]
    params = SurrogateParams(sapo_tau_pos=inputs["tau_pos"], sapo_tau_neg=inputs["tau_neg"])
    got = [_value_and_grad("sapo", inputs["ratio"], advantage, -1.0, params) for advantage in inputs["advantages"]]
    assert equal(got, CASES[case_id]["expected"]["sapo"], 1e-9, 1e-12)


@pytest.mark.parametrize("case", _of_kind("advantage"))
def test_advantage(case: dict) -> None:
    inputs, expected = case["inputs"], case["expected"]
    rewards = tensor(inputs["rewards"])
    ids = inputs.get("group_ids") or [row // inputs["group_size"] for row in range(len(rewards))]
    wanted = {scale: value for scale, value in expected.items() if scale in ("none", "group", "batch")}
    if "advantages" in expected:
        wanted[inputs["scale"]] = expected["advantages"]
    if "ddof1_eps_1e_4" in expected:
        wanted["group"] = expected["ddof1_eps_1e_4"]
    assert wanted
    for scale, right in wanted.items():
        assert equal(advantages(rewards, torch.tensor(ids), scale), right, 1e-9, 1e-12), scale


def test_which_eps() -> None:
    # D8: verl's eps of 1e-6 on the same group
    right = CASES["D8"]["expected"]["ddof1_eps_1e_6_first"]
    got = advantages(tensor([1, 0, 0, 0]), torch.zeros(4), "group", eps=1e-6)
    assert got[0].item() == pytest.approx(right, rel=1e-9)


T0_LOSS, T0_MASK = tensor(CASES["T0"]["inputs"]["loss_mat"]), tensor(CASES["T0"]["inputs"]["loss_mask"]).bool()


@pytest.mark.parametrize("rows", [1, 2, 0])
@pytest.mark.parametrize(
    ("agg_mode", "right"),
    [
        ("token-mean", 10 / 6),
        ("seq-mean-token-mean", 2.0),
        ("seq-mean-token-sum", 5.0),
        ("seq-mean-token-sum-norm", 0.5),
    ],
)
def test_micro_batches_do_not_move_the_objective(agg_mode: str, right: float, rows: int) -> None:
    # TRL 3021; ms-swift 10117; open-instruct 1137, 1161; verl 7321, 7200, 5798, 1644, 728, 906 (B1, B3-B7, B13, B14)
    assert _window_loss(agg_mode, T0_LOSS, T0_MASK, rows=rows).item() == pytest.approx(right)


def test_the_local_token_mean_moves_and_says_so() -> None:
    # B1: one row per micro-batch, (4/4 + 6/2)/2 = 2.0; both rows in one, 10/6
    assert (
        _window_loss("micro-token-mean", T0_LOSS, T0_MASK, rows=1).item() == CASES["B1"]["expected"]["local_token_mean"]
    )
    assert _window_loss("micro-token-mean", T0_LOSS, T0_MASK).item() == pytest.approx(
        CASES["B1"]["expected"]["token_mean"]
    )
    entry = parse_mode("bnpo").aggregation.entry
    assert entry.depends_on_split and "depend" in entry.caveat


@pytest.mark.parametrize(
    "micro_batches", [window[1] for window in CASES["B2"]["inputs"]["steps_per_generation_and_accumulation"]]
)
def test_token_mean_of_a_window_whatever_the_generation_batch(micro_batches: int) -> None:
    # TRL 5619: 10 tokens of loss 1 per micro-batch
    ones = torch.ones(micro_batches, 10, dtype=torch.float64)
    assert _window_loss("token-mean", ones, ones.bool(), rows=1).item() == pytest.approx(1.0)


def test_four_modes_four_losses_and_gradient_norms() -> None:
    # A2, A7, A8: verl 931, 1083; autonomous-dev 413
    norms, losses = set(), set()
    for agg_mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        loss_BT = T0_LOSS.clone().requires_grad_()
        loss = _window_loss(agg_mode, loss_BT, T0_MASK)
        loss.backward()
        losses.add(round(loss.item(), 9))
        norms.add(round(loss_BT.grad.norm().item(), 9))
    assert losses == {round(10 / 6, 9), 5.0, 2.0, 0.5} and len(norms) == 4


@pytest.mark.parametrize(
    ("agg_mode", "right"),
    [("seq-mean-token-mean", 0.0), ("token-mean", 0.5), ("seq-mean-token-sum", 1.0), ("seq-mean-token-sum-norm", 0.25)],
)
def test_on_policy_value_tells_the_mode(agg_mode: str, right: float) -> None:
    # A9, F14 (TRL 2995, 2703, 3187, 3178, 3452): ratio 1, A = [+1, -1], lengths 1 and 3, H = 4; 0 has a gradient
    mask_BT = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    logp_BT = torch.full((2, 3), -1.5, dtype=torch.float64, requires_grad=True)
    adv_B = torch.tensor([1.0, -1.0])
    loss_BT = SURROGATES["grpo"].fn(logp_BT, logp_BT.detach(), adv_B, mask_BT, SurrogateParams())
    loss = _window_loss(agg_mode, loss_BT, mask_BT, horizon=4)
    loss.backward()
    assert loss.item() == pytest.approx(right, abs=1e-12)
    assert logp_BT.grad.norm() > 0


def test_kl_is_averaged_over_live_tokens_only() -> None:
    # A16 (open-instruct 535): 0.1*(0.2+0.4+0.6)/3 = 0.04
    inputs = CASES["A16"]["inputs"]
    got = _window_loss("token-mean", inputs["beta"] * tensor(inputs["kl"]), tensor(inputs["loss_mask"]).bool())
    assert got.item() == pytest.approx(CASES["A16"]["expected"]["kl_term"])


def test_kl_trains_groups_without_reward_spread() -> None:
    # D11 (TRL 5588): rewards [1, 1], a KL of 0.2 per token, beta 0.1; q solves exp(q) - q - 1 = 0.2
    low, high = 0.0, 1.0
    for _ in range(60):
        q = (low + high) / 2
        low, high = (q, high) if math.exp(q) - q - 1 < 0.2 else (low, q)
    logp_BT, mask_BT = torch.full((2, 3), -1.0, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    adv_B = torch.from_numpy(advantages(tensor([1, 1]), torch.zeros(2)))
    policy_BT = SURROGATES["grpo"].fn(logp_BT, logp_BT, adv_B, mask_BT, SurrogateParams())
    assert _window_loss("token-mean", policy_BT, mask_BT).item() == CASES["D11"]["expected"]["policy_term"]
    loss_BT = policy_BT + 0.1 * kl_BT(logp_BT, logp_BT + q, mask_BT)
    assert _window_loss("token-mean", loss_BT, mask_BT).item() == pytest.approx(CASES["D11"]["expected"]["loss"])


@pytest.mark.parametrize("epsilon", [0.1, 0.2, 0.5])
def test_the_clip_range_is_inert_on_policy(epsilon: float) -> None:
    # A24 (TRL 3120, 3757, 3294): ratio 1 gives loss -A and gradient -A whatever epsilon is, and nothing is clipped
    params = SurrogateParams(epsilon_low=epsilon, epsilon_high=epsilon)
    assert _value_and_grad("grpo", 1.0, 1.0, -2.0, params) == [-1.0, -1.0]
    one = torch.full((1, 1), -2.0)
    assert not SURROGATES["grpo"].clipped_BT(one, one, torch.ones(1), one.bool(), params).any()


def test_a_masked_log_ratio_of_200_leaves_gradients_finite() -> None:
    # C4, gradient form: exp(200) overflows float32
    for surrogate in SURROGATES.values():
        logp_BT = torch.tensor([[-1.0, 0.0]], requires_grad=True)
        old_BT = torch.tensor([[-1.1, -200.0]])
        mask_BT = torch.tensor([[True, False]])
        surrogate.fn(logp_BT, old_BT, torch.ones(1), mask_BT, SurrogateParams()).sum().backward()
        assert torch.isfinite(logp_BT.grad).all() and logp_BT.grad[0, 1] == 0 and logp_BT.grad[0, 0] != 0


def test_a_group_of_one_has_no_advantage() -> None:
    # D7 (ms-swift 3980): torch's std of one number is NaN
    assert advantages(tensor([0.7, 1.0]), torch.tensor([0, 1])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("size", "share"), [(2, 0.7024), (8, 0.2007)])
def test_share_of_groups_without_signal(size: int, share: float) -> None:
    # D12 (CoursIA 10603): p^G + (1-p)^G at p = 0.1819, counted over all outcomes of a group
    p, dead = 0.1819, 0.0
    for outcome in range(2**size):
        rewards = torch.tensor([float(outcome >> bit & 1) for bit in range(size)])
        if (advantages(rewards, torch.zeros(size), "group") == 0).all():
            dead += p ** rewards.sum().item() * (1 - p) ** (size - rewards.sum().item())
    assert dead == pytest.approx(share, abs=5e-5)


def test_dr_grpo_is_the_whole_of_dr_grpo() -> None:
    # A23 (Relax 173): TRL's loss_type alone keeps the division by the standard deviation
    mode = parse_mode("dr_grpo")
    assert (mode.agg_mode, mode.scale_rewards) == ("seq-mean-token-sum-norm", "none")
    right = numbers(CASES["A23"]["expected"]["advantages"])
    assert advantages(tensor([1, 0, 0, 0]), torch.zeros(4), mode.scale_rewards).tolist() == right
