"""Reported faults that only show on the way through the trainer: endings, statistics, settings that are ignored."""

from dataclasses import replace

import pytest
import torch
from support.conformance import document
from support.trainer import model_folder, train
from transformers import AutoModelForCausalLM

from lossbench.errors import UsageError
from lossbench.loss.surrogates import SurrogateParams
from lossbench.sampling.rollouts import sample
from lossbench.store.step_row import Rollout, sampling_row
from lossbench.tasks import make_task
from lossbench.tasks.judging import judge

CASES = {case["id"]: case for case in document("conformance_cases.json")["cases"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("policy"))


def _rollout(length: int, *, terminated: bool = True, correct: bool | None = None) -> Rollout:
    return Rollout(
        generation=1, prompt_id=0, group=0, sample=0, length_tokens=length, terminated=terminated, reward=None,
        correct=correct, advantage=0.0, prompt=None, completion=None,
    )  # fmt: skip


def test_groups_of_two_generations_in_one_window_are_four() -> None:
    # Group numbers begin again with each generation; only the second group of the first has rewards that differ.
    rewards = {(1, 0): (1.0, 1.0), (1, 1): (0.0, 1.0), (2, 0): (0.0, 0.0), (2, 1): (1.0, 1.0)}
    rows = [
        replace(_rollout(3), generation=generation, group=group, reward=reward)
        for (generation, group), pair in rewards.items()
        for reward in pair
    ]
    assert sampling_row(rows)["zero_std_frac"] == 0.75


def test_every_end_token_ends() -> None:
    # C5 (TRL 7039)
    inputs, expected = CASES["C5"]["inputs"], CASES["C5"]["expected"]
    task = make_task("selfcheck", {})
    said = [judge(task, "1+1=", "2", "", ids, inputs["eos_ids"]) for ids in inputs["completion_ids"]]
    assert [entry["length_tokens"] for entry in said] == expected["lengths"]
    assert sum(not entry["terminated"] for entry in said) / 3 == pytest.approx(expected["clipped_ratio"])


def test_an_end_token_that_is_also_padding_is_kept(root: str) -> None:
    # C6 (TRL 4970, 6357): the first end token belongs to the completion, whatever pads the batch
    model = AutoModelForCausalLM.from_pretrained(model_folder(root))
    prompts = torch.full((64, 3), 5)
    uniforms = torch.rand(64, 24, generator=torch.Generator().manual_seed(1))
    drawn = {
        pad: sample(model, prompts, torch.ones_like(prompts), uniforms, eos_token_ids=[1], pad_token_id=pad)
        for pad in (0, 1)
    }
    assert drawn[0] == drawn[1]
    ended = [ids for ids in drawn[1] if 1 in ids]
    assert len(ended) > 20 and all(ids.index(1) == len(ids) - 1 for ids in ended)


def test_masked_rows_stay_in_the_statistics() -> None:
    # C9, C15 (TRL 3476, 4976): lengths come from the completions, not from the loss mask
    inputs, expected = CASES["C9"]["inputs"], CASES["C9"]["expected"]
    rows = [_rollout(n, terminated=end) for n, end in zip(inputs["lengths"], inputs["ended"], strict=True)]
    got = sampling_row(rows)
    assert got["length_mean"] == pytest.approx(expected["mean"])
    assert got["truncated_frac"] == pytest.approx(expected["clipped_ratio"])
    assert got["length_terminated"] == expected["terminated_mean"]


def test_length_of_correct_and_incorrect() -> None:
    # F16 (TRL 3263, Relax 173, 239); a class without rows is null, not 0
    inputs, expected = CASES["F16"]["inputs"], CASES["F16"]["expected"]
    pairs = zip(inputs["lengths"], inputs["rewards"], strict=True)
    got = sampling_row([_rollout(n, correct=bool(reward)) for n, reward in pairs])
    assert (got["length_correct"], got["length_incorrect"]) == (expected["correct"], expected["incorrect"])
    assert sampling_row([_rollout(3, terminated=False, correct=False)])["length_correct"] is None
    assert sampling_row([_rollout(3, terminated=False, correct=False)])["length_terminated"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"use_liger_kernel": True},
        {"entropy_coef": 0.1},
        {"top_entropy_quantile": 0.5},
        {"off_policy_mask_threshold": 0.1},
    ],
)
def test_settings_that_would_change_the_loss_unseen_are_refused(root: str, change: dict) -> None:
    # A18 (Liger 1082; TRL 5890, 6808): never a silently different loss
    with pytest.raises(UsageError, match=next(iter(change))):
        train(root, mode="grpo", **change)


def test_the_trainer_obeys_the_aggregation(root: str) -> None:
    # A7, A8 (verl 1083, autonomous-dev 413): four modes on one batch, four losses and four gradient norms
    modes = ("dapo", "grpo@seq-mean-token-sum", "grpo", "grpo@seq-mean-token-sum-norm")
    steps = [train(root, mode=mode) for mode in modes]
    assert len({round(step.gradients[0].norm().item(), 5) for step in steps}) == 4
    assert len({round(step.losses[0], 5) for step in steps}) == 4


def test_epsilon_is_inert_on_policy(root: str) -> None:
    # A24 (TRL 3120, 3757, 3294): one optimizer step per generation, so every ratio is 1
    steps = [train(root, mode="dapo", params=SurrogateParams(epsilon_low=eps, epsilon_high=eps)) for eps in (0.1, 0.5)]
    assert torch.equal(steps[0].gradients[0], steps[1].gradients[0])
