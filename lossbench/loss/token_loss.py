"""Token losses: a batch made safe, a surrogate and its constants, the KL term, and the weighted sum of a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lossbench.loss.lazy import Array, Tensor, torch

Level = Literal["token", "sequence", "sequence_token"]
Params = BaseModel | None


class Constants(BaseModel):
    """The constants of a surrogate, with defaults, bounds and meaning; TRL's defaults unless a description says more.

    The level of the importance ratio is common to all; vespo and gmpo have one for the correction of the KL term only.
    `sequence` is one ratio per row, the exponential of its mean log-ratio; `sequence_token` the same value with a
    gradient per token. Raises pydantic's ValidationError, a ValueError, for values out of bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    importance_sampling_level: Level = Field(default="token", description="level of the importance ratio")


@dataclass(frozen=True)
class Tokens:
    """A batch made safe: masked cells hold 0, log-probabilities are float32 or wider, advantages (B, 1) or (B, T)."""

    logp_BT: Tensor
    log_ratio_BT: Tensor
    advantages_BX: Tensor
    live_BT: Tensor

    def row_means(self, values_BT: Tensor) -> Tensor:
        """Means over the live tokens of each row, (B, 1), of values that are 0 in masked cells."""
        return values_BT.sum(-1, keepdim=True) / self.live_BT.sum(-1, keepdim=True).clamp(min=1)

    def log_weight(self, level: Level) -> Tensor:
        """Log importance weight, (B, T); at sequence level the row's mean log-ratio, repeated."""
        if level == "token":
            return self.log_ratio_BT
        mean_B1 = self.row_means(self.log_ratio_BT)
        if level == "sequence":
            return mean_B1.expand_as(self.log_ratio_BT)
        return self.logp_BT - self.logp_BT.detach() + mean_B1.detach()

    def ratio(self, constants: Constants) -> Tensor:
        """Importance ratio (B, T) at the level that the constants name."""
        return torch.exp(self.log_weight(constants.importance_sampling_level))


@dataclass(frozen=True)
class Surrogate:
    """One surrogate: the token losses of a batch made safe, its constants, and what is known about it.

    `clipped_of` marks where the clip or cap takes part of a token's gradient away; None where nothing is ever clipped.
    `sequence_level` takes the ratio per row unless the constants ask for `sequence_token`. `corrects_sampler` says
    whether the ratio to another sampler's probabilities may multiply the loss. `caution` gives a warning about
    constants that are allowed but rarely meant.
    """

    name: str
    loss_of: Callable[[Tokens, Any], Tensor]
    clipped_of: Callable[[Tokens, Any], Tensor] | None
    formula: str
    source: str
    caveat: str = ""
    constants: type[Constants] = Constants
    sequence_level: bool = False
    corrects_sampler: bool = True
    caution: Callable[[Any], str | None] = lambda constants: None

    def constants_of(self, params: Params = None) -> Constants:
        """This surrogate's constants out of any model that has them (settings, a recipe); its defaults for the rest."""
        found = self.constants.model_validate(params or self.constants(), from_attributes=True)
        if self.sequence_level and found.importance_sampling_level == "token":
            found = found.model_copy(update={"importance_sampling_level": "sequence"})
        return found

    def fn(
        self, logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor, params: Params = None
    ) -> Tensor:
        """Token losses (B, T), 0 in masked cells. Raises ValueError for shapes that disagree."""
        tokens = safe_tokens(logp_BT, old_logp_BT, advantages_B, mask_BT)
        return torch.where(tokens.live_BT, self.loss_of(tokens, self.constants_of(params)), 0.0)

    def clipped_BT(
        self, logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor, params: Params = None
    ) -> Tensor | None:
        """Bool (B, T): live tokens with an advantage whose gradient the clip or cap changes; None as `clipped_of`."""
        if self.clipped_of is None:
            return None
        with torch.no_grad():
            tokens = safe_tokens(logp_BT, old_logp_BT, advantages_B, mask_BT)
            return self.clipped_of(tokens, self.constants_of(params)) & tokens.live_BT & (tokens.advantages_BX != 0)


def check_mask(mask_BT: Tensor) -> Tensor:
    """The mask as bool (B, T), to be called once per batch. Raises ValueError for anything but zeros and ones."""
    odd = mask_BT[(mask_BT != 0) & (mask_BT != 1)]
    if odd.numel():
        raise ValueError(f"mask holds {odd[0].item()}; valid: 0 and 1")
    return mask_BT.bool()


def widen(values: Tensor) -> Tensor:
    """Half precision as float32, every other float dtype unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def safe_tokens(logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Tokens:
    """Replace masked cells by 0 and widen half precision. Raises ValueError for shapes that disagree."""
    shape = logp_BT.shape
    for name, value in (("old_logp_BT", old_logp_BT), ("mask_BT", mask_BT)):
        if value.shape != shape or len(shape) != 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, logp_BT {tuple(shape)}; valid: both (B, T)")
    if advantages_B.shape not in (shape[:1], shape):
        raise ValueError(f"advantages_B has shape {tuple(advantages_B.shape)}; valid: (B,) or (B, T)")
    live_BT, logp_BT = mask_BT.bool(), widen(logp_BT)
    advantages_BX = advantages_B.to(logp_BT.dtype)
    advantages_BX = advantages_BX[:, None] if advantages_BX.ndim == 1 else torch.where(live_BT, advantages_BX, 0.0)
    log_ratio_BT = torch.where(live_BT, logp_BT - widen(old_logp_BT), 0.0)
    return Tokens(torch.where(live_BT, logp_BT, 0.0), log_ratio_BT, advantages_BX, live_BT)


def kl_BT(
    logp_BT: Tensor, ref_logp_BT: Tensor, mask_BT: Tensor, old_logp_BT: Tensor | None = None, level: Level = "token"
) -> Tensor:
    """The k3 estimate of KL(policy || reference) per token: exp(q) - q - 1 with q = ref_logp - logp; (B, T), in nats.

    Trainers add it to the token losses, and the mode's row weights aggregate it. Masked cells give 0 and reach no
    gradient. With `old_logp_BT` the estimate is multiplied by the importance ratio at the given level, gradient
    included (TRL 1.16, `use_bias_correction_kl=True`, its default; ms-swift 4.6, verl and oat do not). Raises
    ValueError for shapes that disagree.
    """
    no_advantage_B = logp_BT.new_zeros(len(logp_BT))
    towards_ref = safe_tokens(logp_BT, ref_logp_BT, no_advantage_B, mask_BT)
    estimate_BT = torch.exp(-towards_ref.log_ratio_BT) + towards_ref.log_ratio_BT - 1
    if old_logp_BT is not None:
        ratio_BT = torch.exp(safe_tokens(logp_BT, old_logp_BT, no_advantage_B, mask_BT).log_weight(level))
        estimate_BT = torch.where(towards_ref.live_BT, estimate_BT * ratio_BT, 0.0)
    return estimate_BT


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
