"""What a model's configuration allows, known before its weights are loaded."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from lossbench.errors import UsageError
from lossbench.policies.adapters import adapter_base
from lossbench.policies.hub import resolve

_LONGEST_TEXTS = 500  # by characters: the prompt of most tokens is among them
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_NO_CACHE = ("openai-gpt",)  # architectures of transformers that keep no keys and values


def model_config(reference: str) -> dict[str, Any]:
    """config.json of the model, or of the base of an adapter; empty where it has none. Raises UsageError."""
    folder = resolve(reference, weights=False).folder
    base = adapter_base(folder, reference)
    path = folder / "config.json"
    if base or not path.is_file():
        return model_config(base) if base else {}
    config = json.loads(path.read_text(encoding="utf-8"))
    return config | (config.get("text_config") or {})


def check_fits(reference: str, tokenizer: Any, prompts: Iterable[str], cap: int, say: Callable[[str], None]) -> None:
    """Refuse prompts and a cap, in tokens, that exceed a table of positions, and a tokenizer larger than the embedding.

    `say` is told where rotary positions go beyond the context that the model was trained for. Raises UsageError.
    """
    config = model_config(reference)
    if config.get("model_type") in _NO_CACHE:
        raise UsageError(f"model '{reference}': {config['model_type']} keeps no key-value cache to sample with")
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and len(tokenizer) > vocabulary:
        raise UsageError(
            f"model '{reference}': its tokenizer has {len(tokenizer)} tokens, its embedding {vocabulary}: any beyond "
            "the embedding would fail; resize the embedding or take the tokenizer that belongs to the model"
        )
    positions = next((config[name] for name in _POSITIONS if isinstance(config.get(name), int)), None)
    texts = sorted(prompts, key=len, reverse=True)[:_LONGEST_TEXTS]
    if positions is None or not texts:
        return
    longest = max(len(ids) for ids in tokenizer(texts)["input_ids"])
    if longest + cap <= positions:
        return
    found = f"model '{reference}': {longest} tokens of the longest prompt and {cap} of max_completion_length"
    if any(name.startswith(("rope", "rotary")) for name in config):
        say(f"{found} go beyond the {positions} positions that it was trained for")
    else:
        raise UsageError(f"{found} exceed its {positions} positions: lower the cap or shorten the prompts")
