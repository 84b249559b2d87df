"""The built-in sampler gives what `generate` gives, greedily, for any architecture and padding."""

from pathlib import Path

import pytest
import torch
from support.architectures import CONFIGS, QUICK, saved_policy, trained_tokenizer
from support.small_models import generated
from transformers import AutoModelForCausalLM

from lossbench.sampling.rollouts import sample

CAP = 20
PROMPTS = ["1 plus 2 is", "what , then , is 12 plus 17 plus 3 plus 5 ?", "7 plus 19 is", "19 plus 18 plus 4 is"]


@pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]
)
def test_greedy_completions_are_those_of_generate(tmp_path: Path, architecture: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved_policy(tmp_path, architecture)).train()
    batch = trained_tokenizer()(PROMPTS, padding=True, return_tensors="pt")
    ids_BP, mask_BP = batch["input_ids"], batch["attention_mask"]
    assert (mask_BP[:, 0] == 0).any()
    ours = sample(
        model, ids_BP, mask_BP, torch.zeros(len(PROMPTS), CAP), eos_token_ids=[1], pad_token_id=0, greedy=True
    )  # fmt: skip
    assert ours == generated(model, ids_BP, mask_BP, CAP, eos=[1], do_sample=False)
    assert all(ours)
