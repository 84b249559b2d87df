"""Whether the installed TRL still computes the losses that its loss types are taken for.

TRL's own `_compute_loss` runs on a stand-in trainer whose log-probabilities are a given tensor, so no model is needed:
a whole optimizer step of two micro-batches is compared with the row weights, in value and gradient.
"""

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from lossbench.loss.equivalents import trl_loss_types
from lossbench.loss.modes import Mode, parse_mode
from lossbench.loss.surrogates import Level, SurrogateParams
from lossbench.loss.token_loss import kl_BT, weighted_loss
from lossbench.loss.window import window_weights

TRL_LOSS_TYPES = trl_loss_types()
TOLERANCE = 1e-6  # TRL computes the divisor of dapo, cispo and vespo and the temperature of sapo in float32
_MICRO_BATCHES, _ROWS, _WIDTH, _HORIZON, _BETA = 2, 4, 7, 9, 0.04


@dataclass(frozen=True)
class Difference:
    """Worst relative difference between TRL's loss type and ours: of the loss, and of its gradient."""

    loss_type: str
    loss: float
    gradient: float

    @property
    def drifted(self) -> bool:
        """Whether either is beyond what float32 divisors explain; NaN counts as drift."""
        return not (self.loss <= TOLERANCE and self.gradient <= TOLERANCE)


@dataclass(frozen=True)
class _Batch:
    logp_NT: Tensor
    old_NT: Tensor
    ref_NT: Tensor
    mask_NT: Tensor
    advantages_N: Tensor


def _batch() -> _Batch:
    """A window far off-policy, with holes in the mask and one short row."""
    generator = torch.Generator().manual_seed(7)
    shape = (_MICRO_BATCHES * _ROWS, _WIDTH)
    noise = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    mask_NT = torch.rand(shape, generator=generator) < 0.7
    mask_NT[:, 0] = True
    mask_NT[1, 1:] = False
    logp_NT = -noise[0].abs() - 0.1
    advantages_N = torch.randn(len(mask_NT), generator=generator, dtype=torch.float64)
    return _Batch(logp_NT, logp_NT - 0.4 * noise[1], logp_NT - 0.3 * noise[2], mask_NT, advantages_N)


def _stand_in(loss_type: str, level: Level, beta: float, params: Any, logp_BT: Tensor) -> Any:
    """The part of a GRPOTrainer that `_compute_loss` reads."""
    identity = lambda value, reduction="sum": value  # noqa: E731
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp_BT, torch.zeros_like(logp_BT), None),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        accelerator=SimpleNamespace(num_processes=1, gather=identity, reduce=identity, gather_for_metrics=identity),
        args=SimpleNamespace(
            delta=None,
            steps_per_generation=_MICRO_BATCHES,
            use_bias_correction_kl=True,
            sapo_temperature_pos=params.sapo_tau_pos,
            sapo_temperature_neg=params.sapo_tau_neg,
            vespo_k_pos=params.vespo_k_pos,
            vespo_lambda_pos=params.vespo_lambda_pos,
            vespo_k_neg=params.vespo_k_neg,
            vespo_lambda_neg=params.vespo_lambda_neg,
        ),
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        epsilon_low=params.epsilon_low,
        epsilon_high=params.cispo_cap if loss_type == "cispo" else params.epsilon_high,
        max_completion_length=_HORIZON,
        current_gradient_accumulation_steps=_MICRO_BATCHES,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
    )


def _theirs(loss_type: str, level: Level, beta: float, params: Any, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the window as TRL returns them, micro-batch by micro-batch."""
    logp_NT = batch.logp_NT.clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for first in range(0, len(logp_NT), _ROWS):
        part = slice(first, first + _ROWS)
        mask_BT = batch.mask_NT[part].long()
        inputs = {
            "prompt_ids": mask_BT[:, :1],
            "prompt_mask": mask_BT[:, :1],
            "completion_ids": mask_BT,
            "completion_mask": mask_BT,
            "advantages": batch.advantages_N[part],
            "old_per_token_logps": batch.old_NT[part],
            "ref_per_token_logps": batch.ref_NT[part],
            "num_items_in_batch": batch.mask_NT.sum(),
        }
        trainer = _stand_in(loss_type, level, beta, params, logp_NT[part])
        loss = loss + GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logp_NT.grad is not None
    return loss.detach(), logp_NT.grad


def _ours(mode: Mode, level: Level, beta: float, params: Any, batch: _Batch) -> tuple[Tensor, Tensor]:
    logp_NT = batch.logp_NT.clone().requires_grad_()
    loss_NT = mode.surrogate.fn(logp_NT, batch.old_NT, batch.advantages_N, batch.mask_NT, params)
    loss_NT = loss_NT + beta * kl_BT(logp_NT, batch.ref_NT, batch.mask_NT, batch.old_NT, level)
    rows_N = torch.arange(len(logp_NT))
    weights_N = window_weights(
        mode.aggregation, batch.mask_NT.sum(-1), rows_N * 0, horizon=_HORIZON, micro_ids_N=rows_N // _ROWS
    )
    loss = weighted_loss(loss_NT, batch.mask_NT, weights_N)
    loss.backward()
    assert logp_NT.grad is not None
    return loss.detach(), logp_NT.grad


def difference(loss_type: str) -> Difference:
    """Compare one of TRL's loss types at token and sequence level, without and with a KL term."""
    mode, batch = parse_mode(TRL_LOSS_TYPES[loss_type]), _batch()
    worst_loss = worst_gradient = 0.0
    levels: tuple[Level, ...] = ("token", "sequence")
    for level in levels:
        for beta in (0.0, _BETA):
            params = SurrogateParams(importance_sampling_level=level)
            (their_loss, their_grad) = _theirs(loss_type, level, beta, params, batch)
            (our_loss, our_grad) = _ours(mode, level, beta, params, batch)
            worst_loss = max(worst_loss, float((our_loss - their_loss).abs() / their_loss.abs()))
            worst_gradient = max(worst_gradient, float((our_grad - their_grad).norm() / their_grad.norm()))
    return Difference(loss_type, worst_loss, worst_gradient)
