"""Group-relative advantages, with the three scales that TRL calls `scale_rewards`."""

from lossbench.errors import unknown
from lossbench.loss.lazy import Tensor, torch

SCALES = ("group", "batch", "none")


def advantages(rewards_B: Tensor, group_ids_B: Tensor, scale: str = "group", eps: float = 1e-4) -> Tensor:
    """Reward minus the group's mean, over (std + eps): (B,), in the rewards' float dtype.

    `group`: the unbiased standard deviation of the row's prompt group; `batch`: that of all rewards, with group means;
    `none`: centred only, as Dr. GRPO wants. `group_ids_B` (B,) names each row's prompt, in any order. A NaN reward is
    missing: left out of mean and deviation, advantage 0. A group with one scored row, or with equal rewards, gets 0.
    Computed in float64. Source: TRL 1.16 (eps 1e-4; verl has 1e-6, oat 1e-8). Raises ValueError for an unknown scale, a
    negative eps and shapes that disagree.
    """
    if scale not in SCALES:
        raise ValueError(unknown("scale_rewards", str(scale), SCALES))
    if rewards_B.ndim != 1 or group_ids_B.shape != rewards_B.shape:
        shapes = f"rewards_B has shape {tuple(rewards_B.shape)}, group_ids_B {tuple(group_ids_B.shape)}"
        raise ValueError(f"{shapes}; valid: both (B,)")
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; valid: 0 or more")
    if not len(rewards_B):
        return rewards_B.clone()
    scored_B = ~torch.isnan(rewards_B)
    rewards = torch.where(scored_B, rewards_B, 0).double()
    _, group_B = torch.unique(group_ids_B, return_inverse=True)
    count_B = _group_sum(scored_B.double(), group_B)
    centred_B = torch.where(scored_B, rewards - _group_sum(rewards, group_B) / count_B.clamp(min=1), 0.0)
    centred_B = torch.where(count_B > 1, centred_B, 0.0)
    if scale == "group":
        variance_B = _group_sum(centred_B.square(), group_B) / (count_B - 1).clamp(min=1)
        centred_B = centred_B / _divisor(variance_B.sqrt(), eps)
    elif scale == "batch" and int(scored_B.sum()) > 1:
        centred_B = centred_B / _divisor(rewards[scored_B].std(), eps)
    dtype = rewards_B.dtype if rewards_B.is_floating_point() else torch.get_default_dtype()
    return centred_B.to(dtype)


def _group_sum(values_B: Tensor, group_B: Tensor) -> Tensor:
    """For each row, the sum over the rows of its group."""
    return values_B.new_zeros(int(group_B.max()) + 1).index_add(0, group_B, values_B)[group_B]


def _divisor(std: Tensor, eps: float) -> Tensor:
    """std + eps, and 1 where both vanish: there every centred reward is 0 already."""
    return torch.where(std + eps > 0, std + eps, 1.0)
