"""From per-token losses and row weights to one scalar, blind to whatever masked cells hold."""

from lossbench.loss.lazy import Array, Tensor, torch


def check_mask(mask_BT: Tensor) -> Tensor:
    """The mask as bool (B, T), to be called once per batch. Raises ValueError for anything but zeros and ones."""
    if mask_BT.dtype == torch.bool:
        return mask_BT
    live_BT = mask_BT != 0
    odd = mask_BT[live_BT & (mask_BT != 1)]
    if odd.numel():
        raise ValueError(f"mask holds {odd[0].item()}; valid: 0 and 1")
    return live_BT


def widen(values: Tensor) -> Tensor:
    """Half precision as float32, every other float dtype unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def weighted_loss(loss_BT: Tensor, mask_BT: Tensor, weights_B: "Tensor | Array") -> Tensor:
    """`sum_i w_i * sum_t m_it * l_it`: the scalar loss of one batch.

    `loss_BT` (B, T) in any float dtype, `mask_BT` (B, T) bool or 0/1, `weights_B` (B,), an array or a tensor. The
    result is float32 for half precision, else in the dtype of `loss_BT`. Masked cells are selected away, never
    multiplied by 0, so NaN and infinities there reach neither value nor gradient. Raises ValueError for shapes that
    disagree.
    """
    shape = loss_BT.shape
    if mask_BT.shape != shape or len(shape) != 2:
        raise ValueError(f"mask_BT has shape {tuple(mask_BT.shape)}, loss_BT {tuple(shape)}; valid: both (B, T)")
    if weights_B.shape != shape[:1]:
        raise ValueError(f"weights_B has shape {tuple(weights_B.shape)}; valid: ({shape[0]},)")
    sums_B = widen(loss_BT).masked_fill(~mask_BT.bool(), 0.0).sum(-1)
    return (sums_B * torch.as_tensor(weights_B, dtype=sums_B.dtype, device=sums_B.device)).sum()
