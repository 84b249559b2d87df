"""Surrogates: the loss of one token, before any aggregation.

A surrogate takes log-probabilities (B, T) of the current and of the sampling policy, advantages (B,) or (B, T), the
mask (B, T) and its constants, and returns (B, T) losses to be minimised, float32 for half precision. Masked cells are
replaced before any exponential, so whatever they hold reaches neither the value nor the gradient of a live cell.

Notation: r = exp(logp - old_logp), A the advantage, sg() stops the gradient. Formulas follow the code of TRL 1.16 and
ms-swift 4.6. Adding a surrogate means adding one entry to `SURROGATES`, with a `Constants` class where it has constants
of its own: recipes and `--set` take them from there.
"""

import math
from typing import Any, Literal

from pydantic import Field, create_model

from lossbench.loss.lazy import Tensor, torch
from lossbench.loss.token_loss import Constants, Level, Surrogate, Tokens
from lossbench.registry import Registry

__all__ = ["SURROGATES", "Constants", "Level", "Surrogate", "SurrogateParams"]


class _Clip(Constants):
    epsilon_low: float = Field(0.2, ge=0, description="the ratio is clipped below 1 - epsilon_low")
    epsilon_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + epsilon_high")
    delta: float | None = Field(None, gt=0, description="upper bound of the unclipped ratio; none: no bound")


class _Cispo(Constants):
    cispo_cap: float = Field(
        5.0, gt=0, description="bound of the ratio itself, TRL's epsilon_high for cispo (there 0.2 unless set)"
    )


class _Sapo(Constants):
    sapo_tau_pos: float = Field(1.0, gt=0, description="temperature of the gate for positive advantages")
    sapo_tau_neg: float = Field(1.05, gt=0, description="temperature of the gate for negative advantages")


class _Vespo(Constants):
    vespo_k_pos: float = Field(2.0, ge=0, description="power of w for advantages of 0 or more")
    vespo_lambda_pos: float = Field(3.0, gt=0, description="decay of w for advantages of 0 or more")
    vespo_k_neg: float = Field(3.0, ge=0, description="power of w for negative advantages")
    vespo_lambda_neg: float = Field(2.0, gt=0, description="decay of w for negative advantages")


class _Gmpo(Constants):
    gmpo_epsilon: float = Field(0.4, gt=0, description="log-ratios are clipped to ± gmpo_epsilon")


class _Dppo(Constants):
    dppo_divergence: Literal["tv", "kl"] = Field(
        "tv", description="tv: change of the token's probability; kl: binary KL of the token vs all others, nats"
    )
    dppo_delta_low: float = Field(0.2, gt=0, le=1, description="largest divergence downwards, for negative advantages")
    dppo_delta_high: float = Field(0.2, gt=0, le=1, description="largest divergence upwards, for positive advantages")


def _clip(tokens: Tokens, constants: _Clip) -> Tensor:
    ratio_BT = tokens.ratio(constants)
    clipped_BT = torch.clamp(ratio_BT, 1 - constants.epsilon_low, 1 + constants.epsilon_high)
    bounded_BT = ratio_BT if constants.delta is None else torch.clamp(ratio_BT, max=constants.delta)
    return -torch.minimum(bounded_BT * tokens.advantages_BX, clipped_BT * tokens.advantages_BX)


def _clip_active(tokens: Tokens, constants: _Clip) -> Tensor:
    ratio_BT = tokens.ratio(constants)
    low_BT = (ratio_BT < 1 - constants.epsilon_low) & (tokens.advantages_BX < 0)
    high_BT = (ratio_BT > 1 + constants.epsilon_high) & (tokens.advantages_BX > 0)
    return low_BT | high_BT if constants.delta is None else low_BT | high_BT | (ratio_BT > constants.delta)


def _cispo(tokens: Tokens, constants: _Cispo) -> Tensor:
    capped_BT = torch.clamp(tokens.ratio(constants), max=constants.cispo_cap)
    return -capped_BT.detach() * tokens.advantages_BX * tokens.logp_BT


def _cispo_caution(constants: _Cispo) -> str | None:
    said = (
        f"cispo_cap = {constants.cispo_cap:g} is below 1, so it cuts even a ratio of 1: on-policy it only scales the "
    )
    said += "gradient. It is absolute, as TRL's epsilon_high for cispo: 5.0 is usual"
    return said if constants.cispo_cap < 1 else None


def _sapo(tokens: Tokens, constants: _Sapo) -> Tensor:
    ratio_BT = tokens.ratio(constants)
    tau_BX = _by_sign(tokens.advantages_BX > 0, ratio_BT, constants.sapo_tau_pos, constants.sapo_tau_neg)
    return -torch.sigmoid(tau_BX * (ratio_BT - 1)) * 4 / tau_BX * tokens.advantages_BX


def _by_sign(positive_BX: Tensor, like: Tensor, if_positive: float, otherwise: float) -> Tensor:
    return torch.where(positive_BX, like.new_tensor(if_positive), like.new_tensor(otherwise))


_VESPO_LOG_FLOOR, _VESPO_LOG_CEILING = math.log(1e-8), 20.0


def _vespo(tokens: Tokens, constants: _Vespo) -> Tensor:
    log_w_B1 = tokens.log_ratio_BT.detach().clamp(-_VESPO_LOG_CEILING, _VESPO_LOG_CEILING).sum(-1, keepdim=True)
    log_w_B1 = log_w_B1.clamp(_VESPO_LOG_FLOOR, _VESPO_LOG_CEILING)
    positive_BX = tokens.advantages_BX >= 0
    k_BX = _by_sign(positive_BX, log_w_B1, constants.vespo_k_pos, constants.vespo_k_neg)
    lambda_BX = _by_sign(positive_BX, log_w_B1, constants.vespo_lambda_pos, constants.vespo_lambda_neg).clamp(min=1e-4)
    phi_BX = torch.exp(lambda_BX + k_BX * log_w_B1 - lambda_BX * torch.exp(log_w_B1))
    return -phi_BX * tokens.advantages_BX * tokens.logp_BT


def _vespo_active(tokens: Tokens, constants: _Vespo) -> Tensor:
    log_w_B1 = tokens.log_ratio_BT.sum(-1, keepdim=True)
    outside_B1 = (log_w_B1 < _VESPO_LOG_FLOOR) | (log_w_B1 > _VESPO_LOG_CEILING)
    return outside_B1.expand_as(tokens.live_BT)


def _gmpo(tokens: Tokens, constants: _Gmpo) -> Tensor:
    log_ratio_BT = tokens.log_ratio_BT
    inside_BT = log_ratio_BT.clamp(-constants.gmpo_epsilon, constants.gmpo_epsilon)
    one_sided_BT = torch.where(_gmpo_active(tokens, constants), inside_BT, log_ratio_BT)
    return (-torch.exp(tokens.row_means(one_sided_BT)) * tokens.advantages_BX).expand_as(log_ratio_BT)


def _gmpo_active(tokens: Tokens, constants: _Gmpo) -> Tensor:
    high_BT = (tokens.log_ratio_BT > constants.gmpo_epsilon) & (tokens.advantages_BX > 0)
    return high_BT | (tokens.log_ratio_BT < -constants.gmpo_epsilon) & (tokens.advantages_BX < 0)


def _dppo(tokens: Tokens, constants: _Dppo) -> Tensor:
    kept_BT = torch.where(_dppo_active(tokens, constants), 0.0, tokens.advantages_BX)
    return -tokens.ratio(constants) * kept_BT


def _dppo_active(tokens: Tokens, constants: _Dppo) -> Tensor:
    """Tokens that have left the trust region and would be pushed further out."""
    new_BT, old_BT = tokens.logp_BT.detach().exp(), (tokens.logp_BT - tokens.log_ratio_BT).detach().exp()
    up_BT = (new_BT > old_BT) & (tokens.advantages_BX > 0)
    down_BT = (new_BT < old_BT) & (tokens.advantages_BX < 0)
    if constants.dppo_divergence == "tv":
        divergence_BT = (new_BT - old_BT).abs()
    else:
        new_BT, old_BT = new_BT.clamp(max=1 - 1e-6), old_BT.clamp(max=1 - 1e-6)
        rest_BT = (1 - old_BT) * (torch.log1p(-old_BT) - torch.log1p(-new_BT))
        divergence_BT = -old_BT * tokens.log_ratio_BT.detach() + rest_BT
    return up_BT & (divergence_BT > constants.dppo_delta_high) | down_BT & (divergence_BT > constants.dppo_delta_low)


SURROGATES: Registry[Surrogate] = Registry("loss_type", (
    Surrogate(
        "grpo", _clip, _clip_active, constants=_Clip,
        formula="−min(min(r, δ)·A, clip(r, 1−ε_low, 1+ε_high)·A)",
        source="PPO clip as in GRPO (arXiv:2402.03300); two-sided δ from INTELLECT-2; TRL 1.16",
        caveat="inert while r = 1; papers print one ε for both sides; verl adds a dual clip at c = 3 for A < 0",
    ),
    Surrogate(
        "cispo", _cispo, lambda tokens, constants: tokens.ratio(constants) > constants.cispo_cap, constants=_Cispo,
        formula="−sg(min(r, cap))·A·log π",
        source="CISPO (MiniMax-M1, arXiv:2506.13585); TRL 1.16, ms-swift 4.6",
        caveat="cap is absolute (1 + ε_high in verl, slime, NeMo-RL); its value contains log π and compares with none",
        caution=_cispo_caution,
    ),
    Surrogate(
        "sapo", _sapo, None, constants=_Sapo,
        formula="−σ(τ·(r−1))·(4/τ)·A,  τ = τ_pos if A > 0 else τ_neg",
        source="SAPO (arXiv:2511.20347); TRL 1.16, verl, ms-swift 4.6",
        caveat="some articles print no 4/τ: their gradient is τ/4 of this one; no hard clip",
    ),
    Surrogate(
        "gspo", _clip, _clip_active, constants=_Clip,
        formula="−min(s·A, clip(s, 1−ε_low, 1+ε_high)·A),  s = exp(mean_t log r)",
        source="GSPO (arXiv:2507.18071); TRL importance_sampling_level='sequence'",
        caveat="the paper's ε are near 3e-4; with a sum over tokens a row's term is repeated over its live tokens",
        sequence_level=True,
    ),
    Surrogate(
        "vespo", _vespo, _vespo_active, constants=_Vespo,
        formula="−sg(φ(w))·A·log π,  φ(w) = e^λ·w^k·e^(−λw),  w = exp(Σ_t log r)",
        source="VESPO (arXiv:2602.10693); TRL 1.16",
        caveat="the value contains log π, so losses are not comparable; w is a product over the row, not a mean",
        corrects_sampler=False,
    ),
    Surrogate(
        "gmpo", _gmpo, _gmpo_active, constants=_Gmpo,
        formula="−exp(mean_t clip₁(log r, ±ε))·A, clipped on the side of A only",
        source="GMPO (arXiv:2507.20673); TRL 1.16 experimental, verl geo_mean",
        caveat="TRL's gmpo is gmpo@seq-mean-token-mean; verl's takes a plain mean per micro-batch",
    ),
    Surrogate(
        "dppo", _dppo, _dppo_active, constants=_Dppo,
        formula="−r·A·M,  M = 0 where A > 0 and D(π, μ) > δ_high upwards, or A < 0 and D > δ_low downwards",
        source="DPPO (arXiv:2602.04879); prime-rl's default, verl dppo_tv and dppo_kl, SkyRL",
        caveat="a change of probability, not of ratio: rare tokens may move far; prime-rl adds 1e-3·(log r)²",
    ),
    Surrogate(
        "reinforce", lambda tokens, constants: -tokens.advantages_BX * tokens.logp_BT, None, formula="−A·log π",
        source="REINFORCE; GPG (arXiv:2504.02546), Tinker, nanochat",
        caveat="no importance ratio: off-policy it is biased; its value contains log π and compares with none",
    ),
))  # fmt: skip

# Every surrogate's constants as one model: settings, recipes and `--set` embed it whole.
SurrogateParams: Any = create_model(
    "SurrogateParams", __base__=tuple(dict.fromkeys(entry.constants for entry in SURROGATES.values()))
)
