"""One decode step after another for any causal language model with a plain key-value cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lossbench.errors import UsageError
from lossbench.sampling.llama_decode import LlamaDecoder, computes_plain_llama
from lossbench.sampling.prompts import forward, read_prompts


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradient checkpointing off, and leave every module in the mode it was found in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def unwrapped(model: nn.Module) -> Any:
    """The language model inside wrappers for several processes, compilation and adapters.

    Adapters that live inside the layers (LoRA and its kin) stay active. Raises UsageError where the adapter adds
    virtual prompt tokens, or the model is an encoder-decoder.
    """
    from accelerate.utils import extract_model_from_parallel

    inner: Any = extract_model_from_parallel(model, keep_fp32_wrapper=True, keep_torch_compile=False)
    if hasattr(inner, "get_base_model"):
        if any(getattr(config, "is_prompt_learning", False) for config in inner.peft_config.values()):
            raise UsageError("adapters with virtual prompt tokens are not supported: use LoRA or its kin")
        inner = inner.get_base_model()
    if getattr(inner.config, "is_encoder_decoder", False):
        raise UsageError(f"{type(inner).__name__} is an encoder-decoder: give a causal language model")
    return inner


class ModelDecoder:
    """Decoding through an unwrapped model's own forward: any causal model with a plain key-value cache.

    This is what the sampling loop asks of a decoder. Rows are numbered 0..n-1 in their present order.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def prefill(self, prompt_ids_UP: Tensor, prompt_mask_UP: Tensor, rows_B: Tensor, capacity: int) -> Tensor:
        """Read the distinct left-padded prompts (U, P), and return the batch's next-token logits (B, V).

        Row b of the batch continues prompt `rows_B[b]`; `capacity` positions are what a row may reach, its prompt
        included. Raises UsageError where learned positions end below that, or the model keeps no plain cache.
        """
        config = self._model.config
        limit = getattr(config, "max_position_embeddings", None)
        if limit is not None and getattr(config, "rope_parameters", None) is None and capacity > limit:
            raise UsageError(f"{type(self._model).__name__} has {limit} positions, prompt and cap need {capacity}")
        logits_UV, self._cache = read_prompts(self._model, prompt_ids_UP, prompt_mask_UP)
        self._cache.batch_select_indices(rows_B)
        self._width = prompt_ids_UP.shape[1]
        self._positions_B = prompt_mask_UP.sum(-1)[rows_B]
        self._mask_BT = nn.functional.pad(prompt_mask_UP[rows_B], (0, capacity - self._width), value=1)
        return logits_UV[rows_B]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append one token to each row (B) and return the next-token logits (B, V)."""
        self._width += 1
        logits_BV = forward(
            self._model, tokens_B[:, None], self._mask_BT[:, : self._width], self._positions_B[:, None], self._cache
        )
        self._positions_B = self._positions_B + 1
        return logits_BV

    def keep(self, rows_N: Tensor) -> None:
        """Go on with these rows only; row i of the smaller batch is the present row `rows_N[i]`."""
        self._cache.batch_select_indices(rows_N)
        self._positions_B = self._positions_B[rows_N]
        self._mask_BT = self._mask_BT[rows_N]


Decoder = LlamaDecoder | ModelDecoder


def make_decoder(model: nn.Module) -> Decoder:
    """The fastest decoder that computes what the model's forward does. Raises UsageError as `unwrapped`."""
    inner = unwrapped(model)
    return LlamaDecoder(inner) if computes_plain_llama(inner) else ModelDecoder(inner)
