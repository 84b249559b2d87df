"""Settings of GRPOConfig and arguments of ModeTrainer are honoured, or refused by name."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from support.trainer import CAP, PROMPTS, model_folder, relative, reward, rollouts, settings, train
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

import lossbench
from lossbench.errors import UsageError
from lossbench.loss.modes import parse_mode
from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.tiny import make_tokenizer
from lossbench.training.grpo_config import check_args, surrogate_params_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("policy"))


def _trainer(root: str, *, args: dict[str, Any] | None = None, mode: str = "grpo", **changes: Any) -> Any:
    return lossbench.ModeTrainer(
        mode=mode, args=settings(root, **(args or {})), reward_funcs=reward, processing_class=make_tokenizer(),
        model=AutoModelForCausalLM.from_pretrained(model_folder(root)),
        train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}), **changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "args", "expected"),
    [
        ("grpo", {}, {}),
        ("grpo", {"epsilon": 1e-4}, {"epsilon_low": 1e-4, "epsilon_high": 1e-4}),
        ("dapo", {"epsilon_high": 0.28}, {"epsilon_high": 0.28}),
        ("cispo", {"epsilon_high": 3.0}, {"cispo_cap": 3.0}),
        ("grpo", {"delta": 4.0, "importance_sampling_level": "sequence"},
         {"delta": 4.0, "importance_sampling_level": "sequence"}),
        ("sapo", {"sapo_temperature_neg": 1.5}, {"sapo_tau_neg": 1.5}),
        ("vespo", {"vespo_k_pos": 1.0, "vespo_lambda_neg": 5.0}, {"vespo_k_pos": 1.0, "vespo_lambda_neg": 5.0}),
    ],
)  # fmt: skip
def test_constants_come_from_the_config(root: str, mode: str, args: dict[str, Any], expected: dict[str, Any]) -> None:
    assert surrogate_params_of(settings(root, **args), parse_mode(mode), None) == SurrogateParams(**expected)


def test_constants_of_the_config_reach_the_update(root: str) -> None:
    # two passes over one generation: after a step of this size the second is clipped at 1e-4, and TRL's is too
    shared: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "epsilon": 1e-4}
    theirs, ours = train(root, loss_type="dapo", **shared), train(root, mode="dapo", **shared)
    assert relative(ours.gradients[1], theirs.gradients[1]) < 1e-5
    assert relative(ours.gradients[1], train(root, mode="dapo", num_iterations=2, max_steps=2).gradients[1]) > 0.1


@pytest.mark.parametrize(
    ("mode", "args", "message"),
    [
        ("grpo", {"loss_type": "dr_grpo"}, "loss_type='dr_grpo'.*mode is 'grpo'.*use mode 'dr_grpo'"),
        ("dr_grpo", {"scale_rewards": "batch"}, "scale_rewards='batch'.*'none'.*grpo@seq-mean-token-sum-norm/batch"),
        ("grpo", {"entropy_coef": 0.1}, "entropy_coef=0.1.*use 0.0"),
        ("grpo", {"use_adaptive_entropy": True}, "use_adaptive_entropy=True"),
        ("grpo", {"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2"),
        ("grpo", {"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
        ("grpo", {"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ("grpo", {"min_p": 0.1}, "min_p=0.1.*sampler='generate'"),
        ("grpo", {"repetition_penalty": 1.2}, "repetition_penalty"),
        ("grpo", {"generation_kwargs": {"num_beams": 2}}, "generation_kwargs"),
    ],
)
def test_what_no_mode_states_is_refused(root: str, mode: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _trainer(root, mode=mode, args=args)


@pytest.mark.parametrize(
    ("mode", "args"),
    [
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": False}),
        ("grpo@token-mean", {"loss_type": "dapo"}),
        ("luspo", {"loss_type": "luspo"}),
        ("grpo@seq-mean-token-sum", {"loss_type": "luspo"}),
        ("grpo@prompt-mean/batch", {"scale_rewards": "batch"}),
    ],
)
def test_what_says_the_same_as_the_mode_is_fine(root: str, mode: str, args: dict[str, Any]) -> None:
    check_args(settings(root, **args), parse_mode(mode))


def test_a_config_is_left_as_it_was(root: str) -> None:
    args = settings(root)
    for mode in ("dr_grpo", "grpo"):
        check_args(args, parse_mode(mode))
        lossbench.ModeTrainer(
            mode=mode, args=args, reward_funcs=reward, processing_class=make_tokenizer(),
            model=AutoModelForCausalLM.from_pretrained(model_folder(root)),
            train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}),
        )  # fmt: skip
    assert args.scale_rewards == "group"


def test_two_values_of_one_constant_are_refused(root: str) -> None:
    args, mode = settings(root, epsilon=0.1), parse_mode("grpo")
    with pytest.raises(UsageError, match=r"epsilon_low is 0\.1 in args and 0\.2 in surrogate_params"):
        surrogate_params_of(args, mode, SurrogateParams(delta=3.0))
    same = SurrogateParams(epsilon_low=0.1, epsilon_high=0.1)
    assert surrogate_params_of(args, mode, same) is same


def test_a_rollout_function_is_used_and_its_completions_end_at_the_first_eos(root: str) -> None:
    seen: list[list[int]] = []

    def padded(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        out = rollouts(prompts, trainer)
        rows = out["completion_ids"]
        width = max(map(len, rows)) + 1
        # EOS again, then padding, as a batched sampler leaves them; the one that was cut has no EOS and no padding
        out["completion_ids"] = [
            torch.tensor(ids if len(ids) == CAP else [*ids, 1, *[0] * (width - len(ids))]) for ids in rows
        ]
        out["logprobs"] = [[-1.0] * len(ids) for ids in out["completion_ids"]]
        return out

    def seen_reward(completion_ids: list[list[int]], **rest: Any) -> list[float]:
        seen.extend(completion_ids)
        return reward(**rest)

    trainer = _trainer(root, rollout_func=padded)
    trainer.reward_funcs = [seen_reward]
    trainer.train()
    assert sorted(map(len, seen)) == sorted(
        map(len, rollouts([p for p in PROMPTS for _ in range(4)], trainer)["completion_ids"])
    )
    assert all(ids.count(1) == (ids[-1] == 1) and 0 not in ids for ids in seen)


def test_samplers_that_exclude_each_other(root: str) -> None:
    with pytest.raises(UsageError, match="sampler='lossbench' samples by itself, without rollout_func"):
        _trainer(root, sampler="lossbench", rollout_func=rollouts)
    with pytest.raises(UsageError, match="sampler='vllm' needs use_vllm=True"):
        _trainer(root, sampler="vllm")
    with pytest.raises(UsageError, match="completion 0 has no tokens"):
        empty = lambda prompts, trainer: {**rollouts(prompts, trainer), "completion_ids": [[]] * len(prompts)}  # noqa: E731
        _trainer(root, rollout_func=empty).train()


def test_lengths_of_right_and_wrong_completions_are_metrics(root: str) -> None:
    trainer = _trainer(root, rollout_func=rollouts)
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "loss" in entry)
    # of the table of rollouts: rewards above .5 at lengths 1, 4, 7, 1, 6 and 3; the others' lengths are 9, 3, 5, 2,
    # 12, 11, 1, 8, 2 and 10
    assert log["length_correct"] == pytest.approx(22 / 6)
    assert log["length_incorrect"] == pytest.approx(63 / 10)
