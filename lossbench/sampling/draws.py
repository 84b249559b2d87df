"""Random numbers that belong to a row, and the one way a token is drawn from them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lossbench.errors import UsageError

_WORD = 1 << 64


def row_uniforms(
    seed: int, generation: int, prompt_ids: Sequence[int], samples: Sequence[int], width: int, *, stream: int = 0
) -> Tensor:
    """Uniform numbers in [0, 1) of a batch of rows, float32 (B, width) on the CPU, each row from a stream of its own.

    Row b is a function of (seed, stream, generation, prompt_ids[b], samples[b]) alone: not of the other rows, the
    batch's order, the rank or `width` (a wider table begins with the narrower one). The streams are those of the
    counter-based generator Philox4x64-10 (Salmon et al. 2011, as in numpy.random.Philox): `seed` and `stream` are its
    key, the other three are words of its counter, so two different rows never share a counter value. `stream` keeps
    purposes apart, such as 0 for training and 1 for evaluation.

    Raises ValueError where `prompt_ids` and `samples` differ in length, or an integer is outside [0, 2**64).
    """
    if len(prompt_ids) != len(samples):
        raise ValueError(f"prompt_ids has {len(prompt_ids)} rows and samples {len(samples)}: give one of each per row")
    words = [seed, stream, generation, *prompt_ids, *samples]
    if any(not 0 <= word < _WORD for word in words):
        raise ValueError("seed, stream, generation, prompt_ids and samples must lie in [0, 2**64)")
    key = np.array([seed, stream], dtype=np.uint64)
    bits_BT = np.empty((len(samples), width), dtype=np.uint64)
    for row, (prompt, sample) in enumerate(zip(prompt_ids, samples, strict=True)):
        counter = np.array([0, int(sample), int(prompt), generation], dtype=np.uint64)
        bits_BT[row] = np.random.Philox(counter=counter, key=key).random_raw(width)
    # The upper 24 bits are exactly a float32 mantissa: more would round some numbers up to 1.
    return torch.from_numpy((bits_BT >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))


def check_draw_settings(temperature: float, top_p: float, top_k: int) -> None:
    """Raise UsageError unless temperature > 0, 0 < top_p <= 1 and top_k >= 0."""
    if not 0.0 < temperature < float("inf"):
        raise UsageError(f"temperature is {temperature}: it must be a number above 0 (greedy is its own option)")
    if not 0.0 < top_p <= 1.0:
        raise UsageError(f"top_p is {top_p}: it must lie in (0, 1], 1 switches it off")
    if top_k < 0:
        raise UsageError(f"top_k is {top_k}: it must be 0 (off) or more")


def filtered_logits(logits_BV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Logits with -inf for every token that top-k, then top-p (nucleus sampling, Holtzman et al. 2020), leave out.

    The rules are those of transformers 5: ties with the k-th largest stay; of the tokens in order of rising probability
    those whose cumulative probability is at most 1 - top_p go, but never the most likely one.
    """
    if top_k > 0:
        kth_B1 = logits_BV.topk(min(top_k, logits_BV.shape[-1]), dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    if top_p < 1.0:
        rising_BV, order_BV = logits_BV.sort(dim=-1)
        drop_BV = rising_BV.softmax(-1).cumsum(-1) <= 1.0 - top_p
        drop_BV[:, -1] = False
        logits_BV = logits_BV.masked_fill(torch.zeros_like(drop_BV).scatter(1, order_BV, drop_BV), -torch.inf)
    return logits_BV


def draw_tokens(
    logits_BV: Tensor, uniforms_B: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> Tensor:
    """One token per row by inverse CDF: the first token whose cumulative probability exceeds the row's uniform number.

    `logits_BV` may be of any float dtype; the arithmetic is float32. Returns int64 (B). A token of probability 0 is
    never drawn. V (one past the last token) marks a row whose logits are not finite numbers, so that the caller can say
    which.
    """
    logits_BV = logits_BV.float()
    if temperature != 1.0:
        logits_BV = logits_BV / temperature
    if top_k > 0 or top_p < 1.0:
        logits_BV = filtered_logits(logits_BV, top_p, top_k)
    # A parallel float32 scan may step down by a rounding error, and a search needs a rising sequence; the CPU's scan
    # accumulates in float64 as it is.
    scan_dtype = torch.float64 if logits_BV.is_cuda else torch.float32
    cdf_BV = logits_BV.softmax(-1).cumsum(-1, dtype=scan_dtype)
    # u <= 1 - 2**-24 keeps u * total below the total after rounding, so the search ends on a step of positive height.
    targets_B1 = uniforms_B.unsqueeze(1).to(scan_dtype) * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, targets_B1, right=True).squeeze(1)


def greedy_tokens(logits_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The most likely token of each row, whatever the uniform numbers: int64 (B).

    V marks a row with NaN logits, as in `draw_tokens`.
    """
    best_B, tokens_B = logits_BV.max(dim=-1)
    return tokens_B.masked_fill(best_B.isnan(), logits_BV.shape[-1])
