"""Tiny random policies of many architectures, dropout on, each with a tokenizer trained on a few sums."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2MoeConfig,
)

from support.small_models import sharpened

DROPOUT = 0.3
QUICK = ("gpt2", "qwen2-sliding")
_LINES = [f"{a} plus {b} is {a + b}" for a in range(20) for b in range(20)]
_SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_ROPE: dict[str, Any] = {**_SHAPE, "intermediate_size": 48, "max_position_embeddings": 128}

CONFIGS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "gpt2": (GPT2Config, {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96,
        "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "attn_pdrop": DROPOUT,
    }),
    "gpt-neo": (GPTNeoConfig, {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 8, "max_position_embeddings": 96, "intermediate_size": 48,
        "resid_dropout": DROPOUT, "embed_dropout": DROPOUT, "attention_dropout": DROPOUT,
    }),
    "opt": (OPTConfig, {
        **_SHAPE, "ffn_dim": 48, "max_position_embeddings": 96, "word_embed_proj_dim": 32,
        "dropout": DROPOUT, "attention_dropout": DROPOUT, "layerdrop": DROPOUT,
    }),
    "bloom": (BloomConfig, {
        "hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": DROPOUT, "attention_dropout": DROPOUT,
    }),
    "qwen2-sliding": (Qwen2Config, {
        **_ROPE, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0,
        "attention_dropout": DROPOUT,
    }),
    "gemma2": (Gemma2Config, {
        **_ROPE, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "attention_dropout": DROPOUT,
    }),
    "phi": (PhiConfig, {**_ROPE, "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT, "attention_dropout": DROPOUT}),
}  # fmt: skip
_MIXTURES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen2-moe": (Qwen2MoeConfig, {
        **_ROPE, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }),
}  # fmt: skip


@cache
def trained_tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs over the text of small sums; prompts are of several lengths in it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<pad>", "<eos>", "<unk>"]
    tokenizer.train_from_iterator(_LINES, trainers.BpeTrainer(vocab_size=60, special_tokens=special))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def saved_policy(root: Path, architecture: str, **changes: Any) -> str:
    """A random policy of `architecture` on disk, next-token distributions far from flat."""
    folder = root / architecture
    tokenizer = trained_tokenizer()
    kind, shape = {**CONFIGS, **_MIXTURES}[architecture]
    torch.manual_seed(0)
    config = kind(**shape, **changes, vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, bos_token_id=None)
    model = sharpened(AutoModelForCausalLM.from_config(config), 3.0)
    model.generation_config.eos_token_id = [1, *range(3, 12)]  # so that completions have all lengths
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
