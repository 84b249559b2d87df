"""verl's `agg_loss`, number for number, in the release the article prints and in the current one."""

import torch
from torch import Tensor

from lossbench.errors import unknown
from lossbench.loss.token_loss import check_mask

VERSIONS = {"article": "article", "v0.7.0": "article", "latest": "latest"}
_SEQ_MODES = ("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
VERL_MODES = {"article": ("token-mean", *_SEQ_MODES), "latest": ("token-mean", "token-sum", *_SEQ_MODES)}


def agg_loss(
    loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str, dp_size: int = 1, batch_num_tokens: float | None = None,
    global_batch_size: float | None = None, loss_scale_factor: float | None = None, version: str = "article",
) -> Tensor:  # fmt: skip
    """One rank's share of the aggregated loss, a scalar in the dtype of `loss_mat`.

    `loss_mat` (bs, response_length) in a float dtype, `loss_mask` of the same shape, 0/1 in any dtype. Counts that are
    not given are taken from this batch: `batch_num_tokens` live tokens (token-mean), `global_batch_size` rows that are
    not empty (seq modes), `loss_scale_factor` the padded width (seq-mean-token-sum-norm). `dp_size` multiplies, to undo
    the mean over data-parallel ranks.

    `version="article"` (alias "v0.7.0") is verl 0.7.0: seq-mean-token-sum-norm has neither batch size nor `dp_size`,
    and `dp_size` 2 without global counts doubles the local value. `version="latest"` is verl 0.9 and later: that mode
    divides by the row count and multiplies by `dp_size`, token-sum exists, and `dp_size` > 1 without the global count
    it needs is refused. In both, a count of 0 gives NaN, the seq modes turn NaN where a masked cell holds NaN or
    infinity, seq-mean-token-mean adds 1e-8 to token counts, and a mask that is not float64 rounds that away.

    Raises ValueError for unknown names, shapes that disagree, a mask that is not 0/1 and divisors out of range.
    """
    if version not in VERSIONS:
        raise ValueError(unknown("version", version, VERSIONS))
    version = VERSIONS[version]
    if loss_agg_mode not in VERL_MODES[version]:
        raise ValueError(unknown(f"loss_agg_mode of version {version}", loss_agg_mode, VERL_MODES[version]))
    if loss_mat.shape != loss_mask.shape or loss_mat.ndim != 2:
        shapes = f"loss_mat has shape {tuple(loss_mat.shape)}, loss_mask {tuple(loss_mask.shape)}"
        raise ValueError(f"{shapes}; valid: both (bs, response_length)")
    check_mask(loss_mask)
    counts = {"batch_num_tokens": batch_num_tokens, "global_batch_size": global_batch_size}
    for name, value, least in (("dp_size", dp_size, 1), *((name, value, 0) for name, value in counts.items())):
        if value is not None and not value >= least:
            raise ValueError(f"{name} is {value}; valid: {least} or more")
    if loss_scale_factor is not None and not loss_scale_factor > 0:
        raise ValueError(f"loss_scale_factor is {loss_scale_factor}; valid: above 0")
    needed = {"token-mean": "batch_num_tokens", "token-sum": None}.get(loss_agg_mode, "global_batch_size")
    if version == "latest" and dp_size > 1 and needed and counts[needed] is None:
        raise ValueError(f"{needed} is None at dp_size > 1 in {loss_agg_mode}; valid: the count over all ranks")
    if loss_agg_mode == "token-sum":
        return _masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode == "token-mean":
        count = loss_mask.sum() if batch_num_tokens is None else batch_num_tokens
        return _masked_sum(loss_mat, loss_mask) / count * dp_size
    # the mask is multiplied, as verl does, so NaN in masked cells spreads
    lengths, row_losses = loss_mask.sum(-1), (loss_mat * loss_mask).sum(-1)
    divisor = loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor
    if loss_agg_mode == "seq-mean-token-sum-norm" and version == "article":
        return row_losses.sum() / divisor
    if loss_agg_mode == "seq-mean-token-mean":
        row_losses = row_losses / (lengths + 1e-8)
    live = lengths > 0
    mean = _masked_sum(row_losses, live) / (live.sum() if global_batch_size is None else global_batch_size)
    return mean * dp_size / (divisor if loss_agg_mode == "seq-mean-token-sum-norm" else 1)


def _masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), values, 0.0).sum()
