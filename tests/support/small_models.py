"""Small random models and batches that the sampler's tests share."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lossbench.sampling.rollouts import sample

PAD, EOS, VOCABULARY = 0, 1, 20
COMMON = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None}


def sharpened(model: nn.Module, factor: float = 4.0) -> nn.Module:
    """Random weights made large, so that next-token distributions are far from flat."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tiny_llama(**changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return sharpened(LlamaForCausalLM(LlamaConfig(**{**COMMON, **shape, **changes})))


def tiny_qwen2(**changes) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
    return sharpened(Qwen2ForCausalLM(Qwen2Config(**{**COMMON, **shape, "num_key_value_heads": 2, **changes})))


def tiny_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return sharpened(GPT2LMHeadModel(GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=2, n_positions=64)), factor=10.0)


LLAMA_KINDS = {
    "multi-head": lambda: tiny_llama(),
    "grouped-query": lambda: tiny_llama(num_key_value_heads=2),
    "one-key-head-tied": lambda: tiny_llama(num_key_value_heads=1, tie_word_embeddings=True),
    "biases": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "head-size": lambda: tiny_llama(head_dim=32),
    "llama3-rope": lambda: tiny_llama(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    ),
    "wide-weights": lambda: tiny_llama(
        hidden_size=256, intermediate_size=600, num_key_value_heads=2, attention_bias=True
    ),
    "qwen2": lambda: tiny_qwen2(),
}
OTHER_KINDS = {
    "gpt2": tiny_gpt2,
    "sliding-window": lambda: tiny_qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=0),
    "dynamic-rope": lambda: tiny_llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, max_position_embeddings=64
    ),
}


def ragged_prompts(rows: int, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Left-padded prompts of 1 to `width` tokens, the first one full."""
    generator = torch.Generator().manual_seed(seed)
    ids_BP = torch.randint(2, VOCABULARY, (rows, width), generator=generator)
    lengths_B1 = torch.randint(1, width + 1, (rows, 1), generator=generator)
    lengths_B1[0] = width
    mask_BP = (torch.arange(width) >= width - lengths_B1).long()
    return ids_BP * mask_BP, mask_BP


def draw(
    model: nn.Module, ids_BP: Tensor, mask_BP: Tensor, uniforms_BT: Tensor, eos: Sequence[int] = (EOS,), **settings
):
    return sample(model, ids_BP, mask_BP, uniforms_BT, eos_token_ids=list(eos), pad_token_id=PAD, **settings)


def generated(
    model, ids_BP: Tensor, mask_BP: Tensor, cap: int, eos: Sequence[int] = (EOS,), **settings
) -> list[list[int]]:
    """What `generate` gives, cut after each row's first EOS."""
    model.eval()
    rows = model.generate(ids_BP, attention_mask=mask_BP, max_new_tokens=cap, eos_token_id=list(eos), **settings)
    completions = rows[:, ids_BP.shape[1] :].tolist()
    ends = [next((i + 1 for i, token in enumerate(row) if token in eos), cap) for row in completions]
    return [row[:end] for row, end in zip(completions, ends, strict=True)]


def model_of(kind: str):
    """A fresh model of a kind named above."""
    return {**LLAMA_KINDS, **OTHER_KINDS}[kind]()
