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


def row_sums(loss_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum of the live token losses of each row (B,); half precision adds up in float32.

    Masked cells are selected away, never multiplied by 0, so NaN and infinities there reach neither value nor gradient.
    """
    live_BT = mask_BT if mask_BT.dtype == torch.bool else mask_BT != 0
    dtype = torch.float32 if loss_BT.dtype in (torch.float16, torch.bfloat16) else loss_BT.dtype
    return loss_BT.masked_fill(~live_BT, 0.0).sum(-1, dtype=dtype)


def weighted_loss(loss_BT: Tensor, mask_BT: Tensor, weights_B: "Tensor | Array") -> Tensor:
    """`sum_i w_i * sum_t m_it * l_it`: the scalar loss of one batch.

    `loss_BT` (B, T) in any float dtype, `mask_BT` (B, T) bool or 0/1, `weights_B` (B,), an array or a
    tensor. The result is float32 for half
    precision, else in the dtype of `loss_BT`. Raises ValueError for shapes that disagree.
    """
    if loss_BT.shape != mask_BT.shape or loss_BT.ndim != 2:
        raise ValueError(
            f"mask_BT has shape {tuple(mask_BT.shape)}, loss_BT {tuple(loss_BT.shape)}; valid: both (B, T)"
        )
    if weights_B.shape != loss_BT.shape[:1]:
        raise ValueError(f"weights_B has shape {tuple(weights_B.shape)}; valid: ({loss_BT.shape[0]},)")
    sums_B = row_sums(loss_BT, mask_BT)
    return (sums_B * torch.as_tensor(weights_B, dtype=sums_B.dtype, device=sums_B.device)).sum()
