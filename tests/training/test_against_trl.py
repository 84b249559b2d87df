"""The trainer's loss and parameter gradients against TRL's own on the same batch."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from support.trainer import CAP, PROMPTS, UNEVEN_PROMPTS, model_folder, relative, reward, rollouts, settings, train
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from lossbench.loss.modes import parse_mode
from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.tiny import make_tokenizer
from lossbench.training.trainer import ModeTrainer
from lossbench.training.trl_check import TRL_LOSS_TYPES, difference

CISPO_CAP = 1.05  # low enough to be reached by the noise below
ROWS, WIDTH = 6, 9


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def trainers(root: str) -> tuple[GRPOTrainer, ModeTrainer]:
    """One of each kind; the tests set the loss on them."""

    def make(kind: type, **more: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(model_folder(root)).eval()
        args = settings(root, beta=0.04)
        dataset = Dataset.from_dict({"prompt": list(PROMPTS)})
        return kind(
            model=model, args=args, reward_funcs=reward, processing_class=make_tokenizer(),
            train_dataset=dataset, rollout_func=rollouts, **more,
        )  # fmt: skip

    return make(GRPOTrainer), make(ModeTrainer, mode=parse_mode("grpo"), sampler="generate")


def _batch(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    """Rows of many lengths, off-policy, with a hole that a tool wrote."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, 12, (ROWS, 4 + WIDTH), generator=generator)
    lengths = torch.tensor([1, 9, 4, 7, 2, 5])
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    tool_mask = torch.ones_like(mask)
    tool_mask[1, 3:5] = 0
    attention = torch.cat([torch.ones(ROWS, 4, dtype=torch.long), mask], dim=1)
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, WIDTH)
    noise = torch.randn(2, ROWS, WIDTH, generator=generator)
    return {
        "prompt_ids": ids[:, :4], "prompt_mask": attention[:, :4],
        "completion_ids": ids[:, 4:], "completion_mask": mask,
        "tool_mask": tool_mask, "advantages": torch.randn(ROWS, generator=generator),
        "old_per_token_logps": logps - 0.3 * noise[0] * mask, "ref_per_token_logps": logps - 0.2 * noise[1] * mask,
        "num_items_in_batch": (mask * tool_mask).sum(), "group_ids": torch.tensor([0, 0, 0, 1, 1, 1]),
        "row_ids": torch.arange(ROWS),
    }  # fmt: skip


def _loss_and_gradient(trainer: GRPOTrainer, batch: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, dict(batch))
    loss.backward()
    gradient = torch.cat([p.grad.flatten().double() for p in trainer.model.parameters()])
    return loss.item(), gradient.clone()


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", list(TRL_LOSS_TYPES))
def test_one_batch(trainers: tuple[GRPOTrainer, ModeTrainer], loss_type: str, level: Any, beta: float) -> None:
    theirs, ours = trainers
    theirs.loss_type, theirs.importance_sampling_level = loss_type, level
    theirs.epsilon_high = CISPO_CAP if loss_type == "cispo" else 0.2
    mode = parse_mode(TRL_LOSS_TYPES[loss_type])
    ours.mode, ours._aggregation, ours._level = mode, mode.aggregation, level
    ours.surrogate_params = SurrogateParams(importance_sampling_level=level, cispo_cap=CISPO_CAP)
    theirs.beta = ours.beta = beta
    batch = _batch(theirs)
    their_loss, their_gradient = _loss_and_gradient(theirs, batch)
    our_loss, our_gradient = _loss_and_gradient(ours, batch)
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    assert relative(our_gradient, their_gradient) < 1e-5


def test_a_correction_for_the_sampler_scales_the_losses_of_tokens_but_not_vespo_s(
    trainers: tuple[GRPOTrainer, ModeTrainer],
) -> None:
    theirs, ours = trainers
    theirs.loss_type, theirs.importance_sampling_level, theirs.epsilon_high = "dapo", "token", 0.2
    theirs.beta = ours.beta = 0.0
    theirs.use_vllm = theirs.vllm_importance_sampling_correction = True
    batch = _batch(theirs)
    ratio = torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)) + 0.5
    corrected = {**batch, "importance_sampling_ratio": ratio}
    found = {}
    for name in ("dapo", "vespo"):
        mode = parse_mode(name)
        ours.mode, ours._aggregation, ours._level = mode, mode.aggregation, "token"
        ours.surrogate_params = SurrogateParams()
        found[name] = [_loss_and_gradient(ours, rows)[1] for rows in (batch, corrected)]
    _, their_gradient = _loss_and_gradient(theirs, corrected)
    theirs.use_vllm = False
    assert relative(found["dapo"][1], their_gradient) < 1e-5 and relative(found["dapo"][0], their_gradient) > 1e-2
    assert relative(found["vespo"][1], found["vespo"][0]) < 1e-6


@pytest.mark.parametrize("loss_type", list(TRL_LOSS_TYPES))
def test_two_optimizer_steps(root: str, loss_type: str) -> None:
    # the second step uses the rollouts again, so ratios have left 1; with a KL term
    cap = {"epsilon_high": CISPO_CAP} if loss_type == "cispo" else {}
    shared = {"num_iterations": 2, "max_steps": 2, "beta": 0.04}
    mode = TRL_LOSS_TYPES[loss_type]
    theirs = train(
        root, loss_type=loss_type, scale_rewards=parse_mode(mode).scale_rewards, **cap, **shared
    )  # fmt: skip
    ours = train(root, mode=mode, params=SurrogateParams(cispo_cap=CISPO_CAP), **shared)
    assert len(ours.gradients) == len(theirs.gradients) == 2
    for our_gradient, their_gradient in zip(ours.gradients, theirs.gradients, strict=True):
        assert relative(our_gradient, their_gradient) < 1e-5
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-4, abs=1e-6)


def test_trl_divides_by_an_average_window_where_a_generation_feeds_several_steps(root: str) -> None:
    # one generation of 16 rows, two windows of 8: TRL divides each by half of the generation's tokens, we by its own
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    theirs = train(root, loss_type="dapo", max_steps=1, **split)
    ours = train(root, mode="dapo", max_steps=1, **split)
    layout = ours.trainer._layout
    own, every = int(layout.lengths_RCB[:, :2].sum()), int(layout.lengths_RCB.sum())
    assert own != every / 2
    assert relative(ours.gradients[0] * own, theirs.gradients[0] * (every / 2)) < 1e-5
    assert relative(ours.gradients[0], theirs.gradients[0]) > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_prompts_of_several_lengths(root: str, family: str) -> None:
    # TRL gives no position ids: a model of learned positions counts the padding on the left there, here it does not
    shared = {"family": family, "prompts": UNEVEN_PROMPTS, "num_iterations": 2, "max_steps": 2, "disable_dropout": True}
    theirs = train(root, loss_type="grpo", **shared)
    ours = train(root, mode="grpo", **shared)
    for our_gradient, their_gradient in zip(ours.gradients, theirs.gradients, strict=True):
        difference = relative(our_gradient, their_gradient)
        assert difference < 1e-5 if family == "llama" else difference > 1e-2


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_truncated_rows_leave_the_token_count_and_stay_rows(root: str, loss_type: str) -> None:
    # TRL 6369, 3476: 85 tokens less the 12 of the one completion that was cut
    shared = {"mask_truncated_completions": True}
    theirs = train(root, loss_type=loss_type, scale_rewards=parse_mode(loss_type).scale_rewards, **shared)
    ours = train(root, mode=loss_type, **shared)
    lengths = ours.trainer._layout.lengths_RCB
    assert int(lengths.sum()) == 85 - 12 and int((lengths == 0).sum()) == 1
    assert relative(ours.gradients[0], theirs.gradients[0]) < 1e-5


def test_a_window_without_live_tokens_is_zero_and_said(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    # NeMo-RL 158, TRL 6668: every completion was cut and masked
    step = train(
        root, mode="dapo", prompts=("9+9=",), mask_truncated_completions=True, gradient_accumulation_steps=1
    )  # fmt: skip
    assert step.losses == [0.0] and (step.gradients[0] == 0).all()
    assert "no live token" in "".join(capsys.readouterr())


def test_trl_keeps_sapo_s_temperature_in_float32() -> None:
    # 1.05 is 1.0499999523 there, in float64 arithmetic otherwise: a difference, but a small one
    assert 1e-9 < difference("sapo").loss < 1e-6
    assert difference("grpo").loss < 1e-12


@pytest.mark.parametrize("loss_type", list(TRL_LOSS_TYPES))
def test_the_installed_trl_has_not_drifted(loss_type: str) -> None:
    assert not difference(loss_type).drifted


def test_a_drifted_trl_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GRPOTrainer._compute_loss
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, *rest: original(self, *rest) * (1 + 1e-5))
    assert difference("grpo").drifted


def test_the_cap_is_the_horizon_unless_set(root: str) -> None:
    # dr_grpo at twice the horizon has half the gradient
    plain, wide = train(root, mode="dr_grpo"), train(root, mode="dr_grpo", horizon=2 * CAP)
    assert relative(2 * wide.gradients[0], plain.gradients[0]) < 1e-6
