"""A very small policy, fixed rollouts of known lengths, and one way to train on them with either trainer."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lossbench.loss.modes import parse_mode
from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.tiny import make_tokenizer
from lossbench.store.step_row import StepStats
from lossbench.training.trainer import ModeTrainer

PROMPTS = ("1+2=", "3+4=", "5+6=", "7+8=")
UNEVEN_PROMPTS = ("1+2=", "31+41=", "5+6=", "7+8=")
GROUP, CAP = 4, 12
# lengths and rewards of the four samples of each prompt; a completion of CAP tokens was cut, so it never ends
ROLLOUTS: dict[str, tuple[tuple[int, float], ...]] = {
    "1+2=": ((1, 1.0), (9, 0.0), (3, 0.5), (5, 0.0)),
    "3+4=": ((2, 0.0), (4, 1.0), (7, 1.0), (12, 0.0)),
    "31+41=": ((2, 0.0), (4, 1.0), (7, 1.0), (12, 0.0)),
    "5+6=": ((11, 0.2), (1, 0.9), (1, 0.0), (6, 1.0)),
    "7+8=": ((3, 1.0), (8, 0.0), (2, 0.0), (10, 0.0)),
    "9+9=": ((12, 1.0), (12, 0.0), (12, 0.0), (12, 0.0)),
}


@cache
def model_folder(root: str, family: str = "llama") -> str:
    """The policy on disk, where TRL finds its reference model too; "gpt2" has absolute positions."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    special: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    if family == "gpt2":
        config = GPT2Config(n_positions=64, n_embd=16, n_layer=1, n_head=2, **special)
    else:
        config = LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            max_position_embeddings=64, **special,
        )  # fmt: skip
    folder = Path(root) / family
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _samples(prompts: list[str]) -> list[tuple[str, int]]:
    """Each row's prompt, and which of its samples it is."""
    seen: dict[str, int] = {}
    rows = []
    for prompt in prompts:
        seen[prompt] = seen.get(prompt, -1) + 1
        rows.append((prompt, seen[prompt] % GROUP))
    return rows


def rollouts(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
    """The same completions for the same prompt and sample, whatever the rank or the batch."""
    completion_ids = []
    for prompt, sample in _samples(prompts):
        length, _ = ROLLOUTS[prompt][sample]
        ids = [2 + (7 * sample + 3 * t + list(ROLLOUTS).index(prompt)) % 10 for t in range(length)]
        completion_ids.append(ids if length == CAP else [*ids[:-1], 1])
    tokenizer = trainer.processing_class
    return {"prompt_ids": [tokenizer(p).input_ids for p in prompts], "completion_ids": completion_ids, "logprobs": None}


def reward(prompts: list[str], **_: Any) -> list[float]:
    """The reward of each prompt's samples, in the order of the samples."""
    return [ROLLOUTS[prompt][sample][1] for prompt, sample in _samples(prompts)]


class Gradients(TrainerCallback):
    """Keeps the gradients of each optimizer step, as they are before clipping."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_: Any) -> None:
        model = model.module if hasattr(model, "module") else model
        parts = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        self.steps.append(torch.cat(parts).clone())


class Steps:
    """A recorder that keeps the sums of each step."""

    def __init__(self) -> None:
        self.stats: list[StepStats] = []

    def begin_generation(self, *_: Any) -> None: ...

    def use_rows(self, *_: Any) -> None: ...

    def end_step(self, stats: StepStats) -> None:
        self.stats.append(stats)


class DoubleTrainer(ModeTrainer):
    """ModeTrainer with log-probabilities in the model's own dtype; TRL's fused head computes them in float32."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *_: Any, **__: Any):
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -logits_to_keep - 1 : -1]
        all_logps = logits.log_softmax(-1)
        logps = all_logps.gather(-1, input_ids[:, -logits_to_keep:, None]).squeeze(-1)
        return logps, -(all_logps.exp() * all_logps).sum(-1), None


@dataclass
class Trained:
    """Gradients and logged losses of each optimizer step, and the trainer that took them."""

    gradients: list[Tensor]
    losses: list[float]
    trainer: GRPOTrainer = field(repr=False)


def settings(root: str, **changes: Any) -> GRPOConfig:
    """SGD without clipping on one generation of 16 rows in 4 micro-batches, unless changed."""
    chosen: dict[str, Any] = {
        "output_dir": f"{root}/out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4,
        "num_generations": GROUP, "max_completion_length": CAP, "learning_rate": 0.5, "optim": "sgd",
        "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "max_steps": 1, "logging_steps": 1, "report_to": "none",
        "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "shuffle_dataset": False, "seed": 3,
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    return GRPOConfig(**{**chosen, **changes})


def train(
    root: str,
    *,
    mode: str | None = None,
    params: SurrogateParams | None = None,
    double: bool = False,
    match_scale: bool = False,
    horizon: float | None = None,
    cut_by_length: bool = True,
    prompts: tuple[str, ...] = PROMPTS,
    family: str = "llama",
    recorder: Any = None,
    **changes: Any,
) -> Trained:
    """Train with ModeTrainer under `mode`, with TRL's own trainer where it is None; returns each step's gradients."""
    args = settings(root, **changes)
    model = AutoModelForCausalLM.from_pretrained(model_folder(root, family))
    model = model.double() if double else model
    watcher = Gradients()
    common: dict[str, Any] = {
        "model": model, "args": args, "reward_funcs": reward, "processing_class": make_tokenizer(),
        "train_dataset": Dataset.from_dict({"prompt": list(prompts)}), "callbacks": [watcher],
        "rollout_func": rollouts,
    }  # fmt: skip
    if mode is None:
        trainer = GRPOTrainer(**common)
    else:
        trainer = (DoubleTrainer if double else ModeTrainer)(
            mode=parse_mode(mode), surrogate_params=params, sampler="generate", match_scale=match_scale,
            horizon=horizon, cut_by_length=cut_by_length, recorder=recorder, **common,
        )  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Trained(watcher.steps, losses, trainer)


def relative(first: Tensor, second: Tensor) -> float:
    """Relative difference of two gradients, in the norm."""
    return float((first - second).norm() / second.norm())
