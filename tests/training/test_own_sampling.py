"""The trainer's own sampling: which random streams rows draw from, and which settings reach the sampler."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from support.trainer import PROMPTS, model_folder, settings
from transformers import AutoModelForCausalLM

import lossbench.training.trainer as training
from lossbench.policies.tiny import make_tokenizer
from lossbench.sampling.draws import row_uniforms
from lossbench.training.trainer import ModeTrainer


def calls_of(root: str, monkeypatch: pytest.MonkeyPatch, prompts: list[str], **changes: Any) -> list[dict[str, Any]]:
    """What the sampler was called with in each generation of a short run."""
    calls: list[dict[str, Any]] = []

    def sampler(policy: Any, ids_BP: torch.Tensor, mask_BP: torch.Tensor, uniforms_BT: torch.Tensor, **keywords: Any):
        calls.append({**keywords, "uniforms_BT": uniforms_BT, "ids_BP": ids_BP})
        return [[2, 3, 1]] * len(ids_BP)

    monkeypatch.setattr(training, "sample", sampler)
    data = Dataset.from_dict({"prompt": prompts, "prompt_id": [0] * len(prompts)})
    trainer = ModeTrainer(
        mode="dapo", model=AutoModelForCausalLM.from_pretrained(model_folder(root)),
        args=settings(root, learning_rate=0.0, **changes), reward_funcs=lambda prompts, **_: [1.0] * len(prompts),
        processing_class=make_tokenizer(), train_dataset=data,
    )  # fmt: skip
    trainer.train()
    return calls


def test_settings_reach_the_sampler(tmp_path, monkeypatch):
    (call,) = calls_of(str(tmp_path), monkeypatch, list(PROMPTS), temperature=0.7, top_p=0.8, top_k=5)
    assert {name: call[name] for name in ("temperature", "top_p", "top_k", "eos_token_ids")} == {
        "temperature": 0.7, "top_p": 0.8, "top_k": 5, "eos_token_ids": [1]
    }  # fmt: skip


def test_rows_draw_by_generation_group_and_sample(tmp_path, monkeypatch):
    # One prompt in every group: the group's number keeps its completions apart, the generation's those of two rounds.
    first, second = calls_of(str(tmp_path), monkeypatch, [PROMPTS[0]] * 8, max_steps=2)
    rows, cap = first["uniforms_BT"].shape
    size = settings(str(tmp_path)).num_generations
    groups, samples = [row // size for row in range(rows)], [row % size for row in range(rows)]
    for generation, call in ((1, first), (2, second)):
        assert torch.equal(call["uniforms_BT"], row_uniforms(3, generation, groups, samples, cap))
