"""Rollouts of a causal language model: one batch in, completions out, and no work for rows that have ended."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lossbench.errors import UsageError
from lossbench.sampling.decode import Decoder, evaluation_mode, make_decoder
from lossbench.sampling.draws import check_draw_settings, draw_tokens, greedy_tokens

# Ended rows leave the batch once they are this share of it: each departure costs copies, each stay costs arithmetic.
_LEAVE_SHARE = 1 / 8
_NOT_FINITE = 1 << 32


def sample(
    model: nn.Module,
    prompt_ids_BP: Tensor,
    prompt_mask_BP: Tensor,
    uniforms_BT: Tensor,
    *,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    greedy: bool = False,
) -> list[list[int]]:
    """Draw one completion per row from a causal language model of transformers.

    Token t of row b is the inverse CDF of the model's next-token distribution at `uniforms_BT[b, t]`. So a completion
    depends on its prompt and its uniform numbers alone, not on the batch around it, up to the rounding of matrix
    products: in float32 that can matter only where a uniform number lies within about 1e-6 of a boundary. The
    distribution is that of `generate` with the same temperature, top_k and top_p. Weights are read at each call.
    Completions come from the policy without dropout, whatever mode the model is in; no gradient is recorded.

    Wrappers for several processes, compilation and LoRA adapters are seen through. Prompts are int64, padded on the
    left; `uniforms_BT` are numbers in [0, 1), as of `row_uniforms`, whose T caps the completion in tokens; temperature
    is above 0, top_p in (0, 1], and top_k 0 keeps all tokens; `greedy` takes the most likely token instead.

    Returns B lists of 1 to T token ids, the ending EOS included. Raises UsageError where a setting or shape is not
    valid, a prompt is empty or padded on the right, or the model cannot be decoded; FloatingPointError where its logits
    are not finite.
    """
    check_draw_settings(temperature, top_p, top_k)
    _check_batch(prompt_ids_BP, prompt_mask_BP, uniforms_BT, eos_token_ids)
    if len(prompt_ids_BP) == 0:
        return []
    draw = partial(draw_tokens, temperature=temperature, top_p=top_p, top_k=top_k)
    decoder = make_decoder(model)
    device = next(model.parameters()).device
    mask_BP = prompt_mask_BP.to(device=device, dtype=torch.int64)
    width = int(mask_BP.sum(-1).max())
    ids_BP = prompt_ids_BP.to(device).masked_fill(mask_BP == 0, pad_token_id)
    both_BP = torch.cat((ids_BP[:, -width:], mask_BP[:, -width:]), dim=1)
    prompts_UP, prompt_of_B = both_BP.unique(dim=0, return_inverse=True)
    prompt_ids_UP, prompt_mask_UP = prompts_UP.chunk(2, dim=1)
    # Not `inference_mode`: a module may keep a tensor made in its forward (rotary tables do) and train with it later.
    with evaluation_mode(model), torch.no_grad():
        logits_BV = decoder.prefill(prompt_ids_UP, prompt_mask_UP, prompt_of_B, width + uniforms_BT.shape[1])
        tokens_TB = _decode(decoder, logits_BV, greedy_tokens if greedy else draw, uniforms_BT, list(eos_token_ids))
    return _cut(tokens_TB, list(eos_token_ids))


def _check_batch(ids_BP: Tensor, mask_BP: Tensor, uniforms_BT: Tensor, eos_token_ids: Sequence[int]) -> None:
    if ids_BP.ndim != 2 or ids_BP.shape != mask_BP.shape or uniforms_BT.ndim != 2 or len(uniforms_BT) != len(ids_BP):
        raise UsageError(
            f"shapes are prompt_ids {tuple(ids_BP.shape)}, prompt_mask {tuple(mask_BP.shape)}, uniforms "
            f"{tuple(uniforms_BT.shape)}: they must be (B, P), (B, P), (B, T)"
        )
    if uniforms_BT.shape[1] < 1:
        raise UsageError("uniforms have no columns: the cap on completion tokens must be at least 1")
    if not eos_token_ids:
        raise UsageError("eos_token_ids is empty: name at least one token that ends a completion")
    present_BP = mask_BP != 0
    if not bool(present_BP[:, -1:].any(-1).all()) or bool((present_BP[:, :-1] & ~present_BP[:, 1:]).any()):
        raise UsageError("every prompt needs a token, and padding belongs on the left of it: see prompt_mask")
    if not bool(((uniforms_BT >= 0) & (uniforms_BT < 1)).all()):
        raise UsageError("uniforms must lie in [0, 1)")


# Tensors made here never reach autograd, so their bookkeeping can be left out as well.
@torch.inference_mode()
def _decode(
    decoder: Decoder, logits: Tensor, pick: Callable[[Tensor, Tensor], Tensor], uniforms_BT: Tensor, eos_ids: list[int]
) -> Tensor:
    """Tokens (T, B), step by step; an ended row may run on until it leaves the batch."""
    rows, cap = uniforms_BT.shape
    tokens_TB = torch.full((cap, rows), -1, dtype=torch.int64, device=logits.device)
    ended_by_token = _ending_table(logits, eos_ids)
    uniforms_TN = uniforms_BT.to(logits.device).t().contiguous()
    row_ids_N = torch.arange(rows, device=logits.device)
    ended_N = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    for step in range(cap):
        tokens_N = pick(logits, uniforms_TN[step])
        tokens_TB[step].index_copy_(0, row_ids_N, tokens_N)
        torch.maximum(ended_N, ended_by_token.index_select(0, tokens_N), out=ended_N)
        ended = int(ended_N.sum())
        if ended >= _NOT_FINITE:
            raise FloatingPointError(f"the policy's logits are not finite at completion token {step}")
        if ended == len(row_ids_N) or step + 1 == cap:
            break
        if ended >= _LEAVE_SHARE * len(row_ids_N):
            stay_N = _survivors(ended_N, ended)
            decoder.keep(stay_N)
            tokens_N, row_ids_N, ended_N = tokens_N[stay_N], row_ids_N[stay_N], ended_N[stay_N]
            uniforms_TN = uniforms_TN.index_select(1, stay_N)
        logits = decoder.step(tokens_N)
    return tokens_TB


def _ending_table(logits: Tensor, eos_ids: list[int]) -> Tensor:
    """For each token 1 if it ends a completion, else 0; and a flag for the mark of logits that are not finite."""
    vocabulary = logits.shape[-1]
    if outside := [token for token in eos_ids if not 0 <= token < vocabulary]:
        raise UsageError(f"eos_token_ids has {outside[0]}: the model's tokens are 0 to {vocabulary - 1}")
    table = torch.zeros(vocabulary + 1, dtype=torch.int64, device=logits.device)
    table[eos_ids] = 1
    table[vocabulary] = _NOT_FINITE
    return table


def _survivors(ended_N: Tensor, ended: int) -> Tensor:
    """Rows that go on, in an order that leaves as many as possible where they are: the last ones fill the gaps."""
    count = len(ended_N) - ended
    stay = torch.arange(count, device=ended_N.device)
    stay[ended_N[:count].nonzero().squeeze(1)] = count + (ended_N[count:] == 0).nonzero().squeeze(1)
    return stay


def _cut(tokens_TB: Tensor, eos_ids: list[int]) -> list[list[int]]:
    """Rows of the table up to their first EOS, or to the cap."""
    is_eos_TB = torch.isin(tokens_TB, torch.tensor(eos_ids, device=tokens_TB.device))
    lengths_B = torch.where(is_eos_TB.any(0), is_eos_TB.int().argmax(0) + 1, len(tokens_TB))
    return [row[:length] for row, length in zip(tokens_TB.t().tolist(), lengths_B.tolist(), strict=True)]
