"""The KL term that trainers add to the token losses; it is aggregated by the mode's own row weights."""

import torch
from torch import Tensor

from lossbench.loss.token_loss import Level, safe_tokens


def kl_BT(
    logp_BT: Tensor,
    ref_logp_BT: Tensor,
    mask_BT: Tensor,
    old_logp_BT: Tensor | None = None,
    level: Level = "token",
) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(q) - q - 1 with q = ref_logp - logp; (B, T), in nats.

    All arguments (B, T); masked cells give 0 and reach no gradient. With `old_logp_BT` the estimate is multiplied by
    the importance ratio at the given level, gradient included (TRL 1.16, `use_bias_correction_kl=True`, its default;
    ms-swift 4.6, verl and oat do not). Raises ValueError for shapes that disagree.
    """
    no_advantage_B = logp_BT.new_zeros(len(logp_BT))
    towards_ref = safe_tokens(logp_BT, ref_logp_BT, no_advantage_B, mask_BT)
    estimate_BT = torch.exp(-towards_ref.log_ratio_BT) + towards_ref.log_ratio_BT - 1
    if old_logp_BT is not None:
        ratio_BT = torch.exp(safe_tokens(logp_BT, old_logp_BT, no_advantage_B, mask_BT).log_weight(level))
        estimate_BT = torch.where(towards_ref.live_BT, estimate_BT * ratio_BT, 0.0)
    return estimate_BT
