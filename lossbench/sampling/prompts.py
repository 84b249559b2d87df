"""One forward pass over left-padded prompts, and the key-value cache it fills."""

import inspect
from typing import Any

from torch import Tensor

from lossbench.errors import UsageError

STOCK_SAMPLER = "--sampler generate with --set eval_samples=0, for evaluations are sampled by lossbench"


def prompt_positions(prompt_mask_UP: Tensor) -> Tensor:
    """Position ids of left-padded rows (U, P): 0 at each row's first token, and 0 on the padding before it."""
    return (prompt_mask_UP.cumsum(-1) - 1).clamp_(min=0)


def read_prompts(model: Any, prompt_ids_UP: Tensor, prompt_mask_UP: Tensor) -> tuple[Tensor, Any]:
    """The model's own forward over the prompts: last-position logits (U, V) and the filled cache.

    Raises UsageError where the model keeps no plain key-value cache of its input.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    logits_UV = forward(model, prompt_ids_UP, prompt_mask_UP, prompt_positions(prompt_mask_UP), cache)
    if not _is_plain(cache) or cache.get_seq_length() != prompt_ids_UP.shape[1]:
        raise UsageError(f"{type(model).__name__} keeps no plain key-value cache: use {STOCK_SAMPLER}")
    return logits_UV, cache


def forward(model: Any, ids_BS: Tensor, mask_BT: Tensor | None, positions_BS: Tensor, cache: Any) -> Tensor:
    """Next-token logits (U, V) of one step through the model, appended to `cache`."""
    names = inspect.signature(model.forward).parameters
    # transformers renames `past_key_values` to `cache` during its 5.x releases.
    arguments: dict[str, Any] = {"cache" if "cache" in names else "past_key_values": cache, "use_cache": True}
    if "position_ids" in names:
        arguments["position_ids"] = positions_BS
    if "logits_to_keep" in names:
        arguments["logits_to_keep"] = 1
    return model(input_ids=ids_BS, attention_mask=mask_BT, **arguments).logits[:, -1]


def _is_plain(cache: Any) -> bool:
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def check_cache(reference: str, config: Any) -> None:
    """Raise UsageError for a model without a plain key-value cache, which the built-in sampler needs."""
    from transformers import DynamicCache
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        return  # code of its own: its first use tells
    takes_cache = {"past_key_values", "cache"} & set(inspect.signature(kind.forward).parameters)
    if not takes_cache or not _is_plain(DynamicCache(config=config)):
        raise UsageError(f"model '{reference}' ({kind.__name__}) keeps no plain key-value cache: use {STOCK_SAMPLER}")
