"""Surrogates: the loss of one token, before any aggregation.

Each function takes log-probabilities (B, T) of the current and of the sampling policy, advantages (B,) or (B, T), the
mask (B, T) and the parameters, and returns (B, T) losses to be minimised, float32 for half precision. Masked cells are
replaced before any exponential, so whatever they hold reaches neither the value nor the gradient of a live cell.

Notation: r = exp(logp - old_logp), A the advantage, sg() stops the gradient. Formulas follow the code of TRL 1.16 and
ms-swift 4.6. Adding a surrogate means adding one entry to `SURROGATES`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from lossbench.errors import unknown
from lossbench.loss.lazy_torch import Tensor, torch
from lossbench.loss.masked_sums import widen

Level = Literal["token", "sequence", "sequence_token"]


@dataclass(frozen=True)
class SurrogateParams:
    """The constants of all surrogates; the defaults are TRL's, but for `cispo_cap` (TRL falls back to epsilon = 0.2).

    `epsilon_low`, `epsilon_high`: the clip range is [1 - low, 1 + high]. `delta`: upper bound of the unclipped ratio
    (None: no bound). `cispo_cap`: the bound of cispo's ratio itself, TRL's `epsilon_high` for that loss; below 1 it
    scales every on-policy gradient. `gmpo_epsilon`: half-width of gmpo's clip range in log space.
    `importance_sampling_level`: `token`, `sequence` (one ratio per row, the exponential of its mean log-ratio) or
    `sequence_token` (that value, with a gradient per token). Raises ValueError for values outside their range.
    """

    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    cispo_cap: float = 5.0
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    gmpo_epsilon: float = 0.4
    importance_sampling_level: Level = "token"

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        for name in (
            "cispo_cap",
            "sapo_tau_pos",
            "sapo_tau_neg",
            "vespo_lambda_pos",
            "vespo_lambda_neg",
            "gmpo_epsilon",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; valid: above 0")
        for name in ("epsilon_low", "epsilon_high", "vespo_k_pos", "vespo_k_neg"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; valid: 0 or more")
        if self.delta is not None and not self.delta > 0:
            raise ValueError(f"delta is {self.delta}; valid: above 0, or None for no bound")
        if self.importance_sampling_level not in get_args(Level):
            raise ValueError(unknown("importance_sampling_level", str(self.importance_sampling_level), get_args(Level)))


@dataclass(frozen=True)
class Tokens:
    """A batch made safe: masked cells hold 0, log-probabilities are float32 or wider, advantages (B, 1) or (B, T)."""

    logp_BT: Tensor
    log_ratio_BT: Tensor
    advantages_BX: Tensor
    live_BT: Tensor

    def log_weight(self, level: Level) -> Tensor:
        """Log importance weight, (B, T); at sequence level the row's mean log-ratio, repeated."""
        if level == "token":
            return self.log_ratio_BT
        mean_B1 = self.log_ratio_BT.sum(-1, keepdim=True) / self.live_BT.sum(-1, keepdim=True).clamp(min=1)
        if level == "sequence":
            return mean_B1.expand_as(self.log_ratio_BT)
        return self.logp_BT - self.logp_BT.detach() + mean_B1.detach()


@dataclass(frozen=True)
class Surrogate:
    """One surrogate: `fn(logp_BT, old_logp_BT, advantages_B, mask_BT, params) -> loss_BT`, and what is known about it.

    `loss_of` is the same mathematics on a batch made safe already; `clipped_of` marks where the clip or cap takes part
    of the token's gradient away.
    """

    name: str
    loss_of: Callable[[Tokens, SurrogateParams], Tensor]
    clipped_of: Callable[[Tokens, SurrogateParams], Tensor]
    formula: str
    source: str
    caveat: str = ""

    def fn(
        self, logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor, params: SurrogateParams
    ) -> Tensor:
        """Token losses (B, T), 0 in masked cells. Raises ValueError for shapes that disagree."""
        tokens = safe_tokens(logp_BT, old_logp_BT, advantages_B, mask_BT)
        return torch.where(tokens.live_BT, self.loss_of(tokens, params), 0.0)


def safe_tokens(logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor) -> Tokens:
    """Replace masked cells by 0 and widen half precision. Raises ValueError for shapes that disagree."""
    for name, value in (("old_logp_BT", old_logp_BT), ("mask_BT", mask_BT)):
        if value.shape != logp_BT.shape or logp_BT.ndim != 2:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, logp_BT {tuple(logp_BT.shape)}; valid: both (B, T)"
            )
    if advantages_B.shape not in (logp_BT.shape[:1], logp_BT.shape):
        raise ValueError(f"advantages_B has shape {tuple(advantages_B.shape)}; valid: (B,) or (B, T)")
    live_BT = mask_BT if mask_BT.dtype == torch.bool else mask_BT != 0
    logp_BT, old_BT = widen(logp_BT), widen(old_logp_BT)
    advantages_BX = advantages_B.to(logp_BT.dtype)
    advantages_BX = advantages_BX[:, None] if advantages_BX.ndim == 1 else torch.where(live_BT, advantages_BX, 0.0)
    return Tokens(
        torch.where(live_BT, logp_BT, 0.0), torch.where(live_BT, logp_BT - old_BT, 0.0), advantages_BX, live_BT
    )


def _clip(tokens: Tokens, params: SurrogateParams, level: Level | None = None) -> Tensor:
    ratio_BT = torch.exp(tokens.log_weight(level or params.importance_sampling_level))
    clipped_BT = torch.clamp(ratio_BT, 1 - params.epsilon_low, 1 + params.epsilon_high)
    bounded_BT = ratio_BT if params.delta is None else torch.clamp(ratio_BT, max=params.delta)
    return -torch.minimum(bounded_BT * tokens.advantages_BX, clipped_BT * tokens.advantages_BX)


def _clip_active(tokens: Tokens, params: SurrogateParams, level: Level | None = None) -> Tensor:
    ratio_BT = torch.exp(tokens.log_weight(level or params.importance_sampling_level))
    low_BT = (ratio_BT < 1 - params.epsilon_low) & (tokens.advantages_BX < 0)
    high_BT = (ratio_BT > 1 + params.epsilon_high) & (tokens.advantages_BX > 0)
    return low_BT | high_BT if params.delta is None else low_BT | high_BT | (ratio_BT > params.delta)


def _gspo_level(params: SurrogateParams) -> Level:
    return "sequence" if params.importance_sampling_level == "token" else params.importance_sampling_level


def _cispo(tokens: Tokens, params: SurrogateParams) -> Tensor:
    ratio_BT = torch.exp(tokens.log_weight(params.importance_sampling_level))
    return -torch.clamp(ratio_BT, max=params.cispo_cap).detach() * tokens.advantages_BX * tokens.logp_BT


def _cispo_active(tokens: Tokens, params: SurrogateParams) -> Tensor:
    return torch.exp(tokens.log_weight(params.importance_sampling_level)) > params.cispo_cap


def _sapo(tokens: Tokens, params: SurrogateParams) -> Tensor:
    ratio_BT = torch.exp(tokens.log_weight(params.importance_sampling_level))
    positive = tokens.advantages_BX > 0
    tau_pos, tau_neg = (ratio_BT.new_tensor(tau) for tau in (params.sapo_tau_pos, params.sapo_tau_neg))
    tau_BX = torch.where(positive, tau_pos, tau_neg)
    return -torch.sigmoid(tau_BX * (ratio_BT - 1)) * 4 / tau_BX * tokens.advantages_BX


def _never(tokens: Tokens, params: SurrogateParams) -> Tensor:
    return torch.zeros_like(tokens.live_BT)


_VESPO_LOG_FLOOR, _VESPO_LOG_CEILING = math.log(1e-8), 20.0


def _vespo(tokens: Tokens, params: SurrogateParams) -> Tensor:
    log_w_B1 = tokens.log_ratio_BT.detach().clamp(-_VESPO_LOG_CEILING, _VESPO_LOG_CEILING).sum(-1, keepdim=True)
    log_w_B1 = log_w_B1.clamp(_VESPO_LOG_FLOOR, _VESPO_LOG_CEILING)
    positive = tokens.advantages_BX >= 0
    k_pos, k_neg = (log_w_B1.new_tensor(k) for k in (params.vespo_k_pos, params.vespo_k_neg))
    lambda_pos, lambda_neg = (log_w_B1.new_tensor(v) for v in (params.vespo_lambda_pos, params.vespo_lambda_neg))
    k_BX = torch.where(positive, k_pos, k_neg)
    lambda_BX = torch.where(positive, lambda_pos, lambda_neg).clamp(min=1e-4)
    phi_BX = torch.exp(lambda_BX + k_BX * log_w_B1 - lambda_BX * torch.exp(log_w_B1))
    return -phi_BX * tokens.advantages_BX * tokens.logp_BT


def _vespo_active(tokens: Tokens, params: SurrogateParams) -> Tensor:
    log_w_B1 = tokens.log_ratio_BT.sum(-1, keepdim=True)
    outside_B1 = (log_w_B1 < _VESPO_LOG_FLOOR) | (log_w_B1 > _VESPO_LOG_CEILING)
    return outside_B1.expand_as(tokens.live_BT)


def _gmpo(tokens: Tokens, params: SurrogateParams) -> Tensor:
    log_ratio_BT = tokens.log_ratio_BT
    inside_BT = log_ratio_BT.clamp(-params.gmpo_epsilon, params.gmpo_epsilon)
    one_sided_BT = torch.where(
        tokens.advantages_BX > 0, torch.minimum(log_ratio_BT, inside_BT), torch.maximum(log_ratio_BT, inside_BT)
    )
    mean_B1 = one_sided_BT.sum(-1, keepdim=True) / tokens.live_BT.sum(-1, keepdim=True).clamp(min=1)
    return (-torch.exp(mean_B1) * tokens.advantages_BX).expand_as(log_ratio_BT)


def _gmpo_active(tokens: Tokens, params: SurrogateParams) -> Tensor:
    high_BT = (tokens.log_ratio_BT > params.gmpo_epsilon) & (tokens.advantages_BX > 0)
    return high_BT | (tokens.log_ratio_BT < -params.gmpo_epsilon) & (tokens.advantages_BX < 0)


SURROGATES: dict[str, Surrogate] = {}


def register(entry: Surrogate) -> None:
    """Add a surrogate to the registry. Raises ValueError where the name is taken."""
    if entry.name in SURROGATES:
        raise ValueError(f"surrogate name {entry.name!r} is taken; valid: a name not in {', '.join(SURROGATES)}")
    SURROGATES[entry.name] = entry


for _entry in (
    Surrogate(
        name="grpo",
        loss_of=_clip,
        clipped_of=_clip_active,
        formula="−min(min(r, δ)·A, clip(r, 1−ε_low, 1+ε_high)·A)",
        source="PPO clip as in GRPO (arXiv:2402.03300); two-sided δ from INTELLECT-2; TRL 1.16",
        caveat="inert while r = 1; papers print one ε for both sides; verl adds a dual clip at c = 3 for A < 0",
    ),
    Surrogate(
        name="cispo",
        loss_of=_cispo,
        clipped_of=_cispo_active,
        formula="−sg(min(r, cap))·A·log π",
        source="CISPO (MiniMax-M1, arXiv:2506.13585); TRL 1.16, ms-swift 4.6",
        caveat="cap is absolute (1 + ε_high in verl, slime, NeMo-RL); the value contains log π: losses do not compare",
    ),
    Surrogate(
        name="sapo",
        loss_of=_sapo,
        clipped_of=_never,
        formula="−σ(τ·(r−1))·(4/τ)·A,  τ = τ_pos if A > 0 else τ_neg",
        source="SAPO (arXiv:2511.20347); TRL 1.16, verl, ms-swift 4.6",
        caveat="some articles print no 4/τ: their gradient is τ/4 of this one; no hard clip",
    ),
    Surrogate(
        name="gspo",
        loss_of=lambda tokens, params: _clip(tokens, params, _gspo_level(params)),
        clipped_of=lambda tokens, params: _clip_active(tokens, params, _gspo_level(params)),
        formula="−min(s·A, clip(s, 1−ε_low, 1+ε_high)·A),  s = exp(mean_t log r)",
        source="GSPO (arXiv:2507.18071); TRL importance_sampling_level='sequence'",
        caveat="the paper's ε are near 3e-4; with a sum over tokens a row's term is repeated over its live tokens",
    ),
    Surrogate(
        name="vespo",
        loss_of=_vespo,
        clipped_of=_vespo_active,
        formula="−sg(φ(w))·A·log π,  φ(w) = e^λ·w^k·e^(−λw),  w = exp(Σ_t log r)",
        source="VESPO (arXiv:2602.10693); TRL 1.16",
        caveat="the value contains log π, so losses are not comparable; w is a product over the row, not a mean",
    ),
    Surrogate(
        name="gmpo",
        loss_of=_gmpo,
        clipped_of=_gmpo_active,
        formula="−exp(mean_t clip₁(log r, ±ε))·A, clipped on the side of A only",
        source="GMPO (arXiv:2507.20673); TRL 1.16 experimental, verl geo_mean",
        caveat="TRL's gmpo is gmpo@seq-mean-token-mean; verl's takes a plain mean per micro-batch",
    ),
):
    register(_entry)


def clipped_BT(
    name: str, logp_BT: Tensor, old_logp_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor, params: SurrogateParams
) -> Tensor:
    """Bool (B, T): live tokens where the surrogate's clip or cap is active. Raises ValueError for an unknown name."""
    if name not in SURROGATES:
        raise ValueError(unknown("surrogate", name, SURROGATES))
    with torch.no_grad():
        tokens = safe_tokens(logp_BT, old_logp_BT, advantages_B, mask_BT)
        return SURROGATES[name].clipped_of(tokens, params) & tokens.live_BT
