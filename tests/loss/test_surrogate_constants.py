"""The constants of surrogates: declared with the entry, set from anywhere, and what the clip counts."""

import math

import pytest
import torch
from pydantic import Field
from torch import Tensor

from lossbench.errors import UsageError
from lossbench.loss.modes import parse_mode
from lossbench.loss.same_experiment import Setup, equalities
from lossbench.loss.surrogates import SURROGATES, Constants, Surrogate, SurrogateParams
from lossbench.sweep.recipe import make_recipe
from lossbench.training.run_spec import Settings


def test_every_constant_is_a_setting_with_a_meaning() -> None:
    for surrogate in SURROGATES.values():
        for name, field in surrogate.constants.model_fields.items():
            assert field.description, name
            assert Settings.model_fields[name].default == field.default


def _loss(surrogate: Surrogate, params: object, log_ratio: float, advantage: float) -> float:
    logp_BT = torch.full((1, 1), -1.0, dtype=torch.float64)
    mask_BT, adv_B = torch.ones(1, 1).bool(), torch.tensor([advantage]).double()
    return surrogate.fn(logp_BT, logp_BT - log_ratio, adv_B, mask_BT, params).item()


def test_constants_set_in_a_recipe_reach_the_loss() -> None:
    recipe = make_recipe({"vespo_k_pos": 1.0, "vespo_lambda_pos": 2.0, "gmpo_epsilon": 0.1}, "r")
    # vespo at r = 2, A = 1, log π = −1: φ = e^λ·w^k·e^(−λw) = e²·2·e⁻⁴, and the loss −φ·A·log π = φ
    assert _loss(SURROGATES["vespo"], recipe.settings(), math.log(2), 1.0) == pytest.approx(2 * math.exp(-2))
    # gmpo at log r = .5, A = 1: clipped to .1, loss −e^.1
    assert _loss(SURROGATES["gmpo"], recipe.settings(), 0.5, 1.0) == pytest.approx(-math.exp(0.1))


def test_a_surrogate_of_ones_own_brings_its_constant() -> None:
    class Cut(Constants):
        cut_at: float = Field(0.5, gt=0, description="largest ratio")

    def loss(tokens, constants: Cut) -> Tensor:
        return -tokens.ratio(constants).clamp(max=constants.cut_at) * tokens.advantages_BX

    own = Surrogate("cut", loss, None, formula="−min(r, cut)·A", source="this test", constants=Cut)
    assert _loss(own, None, 0.0, 1.0) == -0.5
    assert _loss(own, Cut(cut_at=0.25), 0.0, 1.0) == -0.25
    assert _loss(own, SurrogateParams(), 0.0, 1.0) == -0.5  # settings that lack it leave it at its default


def test_gspo_takes_one_ratio_per_row_unless_told_otherwise() -> None:
    gspo = SURROGATES["gspo"]
    assert gspo.constants_of().importance_sampling_level == "sequence"
    assert gspo.constants_of(Settings()).importance_sampling_level == "sequence"
    kept = SurrogateParams(importance_sampling_level="sequence_token")
    assert gspo.constants_of(kept).importance_sampling_level == "sequence_token"
    assert SURROGATES["grpo"].constants_of(Settings()).importance_sampling_level == "token"
    # two tokens with log-ratios .3 and −.1: s = e^.1 for both; sequence_token has that value and a gradient per token
    logp_BT = torch.tensor([[-1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    old_BT, mask_BT = torch.tensor([[-1.3, -0.9]]).double(), torch.ones(1, 2).bool()
    for params, grad in ((None, [-math.exp(0.1)] * 2), (kept, [-math.exp(0.1)] * 2)):
        logp_BT.grad = None
        loss_BT = gspo.fn(logp_BT, old_BT, torch.ones(1), mask_BT, params)
        assert loss_BT.tolist() == [pytest.approx([-math.exp(0.1)] * 2)]
        loss_BT.sum().backward()
        assert logp_BT.grad is not None and logp_BT.grad[0].tolist() == pytest.approx(grad)
    # the first token's loss alone: at sequence level half its gradient is the other token's, else all of it is its own
    for params, grad in ((None, [-math.exp(0.1) / 2] * 2), (kept, [-math.exp(0.1), 0.0])):
        logp_BT.grad = None
        gspo.fn(logp_BT, old_BT, torch.ones(1), mask_BT, params)[0, 0].backward()
        assert logp_BT.grad is not None and logp_BT.grad[0].tolist() == pytest.approx(grad)


def _clipped(name: str, log_ratios: list[float], advantage: float, mask: list[int] | None = None, **constants):
    old_BT = torch.zeros(1, len(log_ratios), dtype=torch.float64)
    mask_BT = torch.tensor([mask or [1] * len(log_ratios)]).bool()
    params = SurrogateParams(**constants)
    adv_B = torch.tensor([advantage]).double()
    found = SURROGATES[name].clipped_BT(torch.tensor([log_ratios]).double(), old_BT, adv_B, mask_BT, params)
    return None if found is None else found[0].tolist()


def test_what_counts_as_clipped() -> None:
    assert _clipped("grpo", [math.log(0.5)], 0.0) == [False]  # no advantage, no gradient to clip
    assert _clipped("grpo", [math.log(5)], 0.0, delta=4.0) == [False]
    assert _clipped("grpo", [math.log(5)], -1.0, delta=4.0) == [True]
    assert _clipped("grpo", [math.log(3)], -1.0, delta=4.0) == [False]
    assert _clipped("grpo", [math.log(1.3), math.log(0.7)], 1.0) == [True, False]
    assert _clipped("grpo", [math.log(1.3), math.log(0.7)], -1.0) == [False, True]
    assert _clipped("cispo", [math.log(6), math.log(6), 0.0], 1.0, mask=[1, 0, 1]) == [True, False, False]
    assert _clipped("vespo", [6.0] * 4, 1.0) == [True] * 4  # the product's log is 24, beyond 20; their mean is 6
    assert _clipped("vespo", [6.0] * 3, 1.0) == [False] * 3
    assert _clipped("sapo", [3.0], 1.0) is None  # a soft gate clips nothing


def test_dppo_masks_tokens_that_move_further_out() -> None:
    dppo = SURROGATES["dppo"]

    def loss_and_grad(old: float, new: float, advantage: float, **constants) -> list[float]:
        logp_BT = torch.tensor([[math.log(new)]], dtype=torch.float64, requires_grad=True)
        old_BT, mask_BT = torch.tensor([[math.log(old)]]).double(), torch.ones(1, 1).bool()
        loss = dppo.fn(logp_BT, old_BT, torch.tensor([advantage]).double(), mask_BT, SurrogateParams(**constants)).sum()
        loss.backward()
        assert logp_BT.grad is not None
        return [loss.item(), logp_BT.grad.item()]

    # tv: .5 → .6 stays inside .2: −r·A = −1.2, and its gradient is the same; .5 → .8 is out upwards, in downwards
    assert loss_and_grad(0.5, 0.6, 1.0) == pytest.approx([-1.2, -1.2])
    assert loss_and_grad(0.5, 0.8, 1.0) == [0, 0]
    assert loss_and_grad(0.5, 0.8, -1.0) == pytest.approx([1.6, 1.6])
    assert loss_and_grad(0.5, 0.2, -1.0) == [0, 0]
    assert loss_and_grad(0.5, 0.8, 1.0, dppo_delta_high=0.31) == pytest.approx([-1.6, -1.6])
    # a rare token may grow fivefold: .01 → .05 moves .04
    assert loss_and_grad(0.01, 0.05, 1.0) == pytest.approx([-5, -5])
    # kl: .5·log(.5/.8) + .5·log(.5/.2) = .2231
    for delta, kept in ((0.22, 0.0), (0.23, -1.6)):
        got = loss_and_grad(0.5, 0.8, 1.0, dppo_divergence="kl", dppo_delta_high=delta)
        assert got == pytest.approx([kept, kept])


def test_reinforce_is_the_log_probability_times_the_advantage() -> None:
    # ratio 2 has no part in it: −1·(−1) = 1
    assert _loss(SURROGATES["reinforce"], None, math.log(2), 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dppo_delta_high": 0}, ["dppo_delta_high = 0", "greater than 0"]),
        ({"dppo_delta_low": 1.5}, ["dppo_delta_low = 1.5", "less than or equal to 1"]),
        ({"dppo_divergence": "js"}, ["dppo_divergence = 'js'", "'kl'"]),
        ({"vespo_lambda_pos": 0}, ["vespo_lambda_pos = 0", "greater than 0"]),
    ],
)
def test_a_constant_out_of_range_is_one_line(keys: dict, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        make_recipe(keys, "r")
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_one_prompt_a_step_is_one_prompt_only_where_a_generation_feeds_one_step() -> None:
    modes = [parse_mode("dapo"), parse_mode("grpo@prompt-mean")]
    one = Setup(rows_per_micro_batch=4, micro_batches=1, num_generations=4)
    assert [found.kind for found in equalities(modes, one)] == ["same"]
    two = Setup(rows_per_micro_batch=4, micro_batches=1, num_generations=4, windows_per_generation=2)
    assert equalities(modes, two) == []  # two prompts are shuffled over two steps


def test_invisible_characters_of_a_copied_name_are_left_out() -> None:
    assert parse_mode("grpo@\u200btoken-mean/\u2060none\ufeff").name == "grpo@token-mean/none"
