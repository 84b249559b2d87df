"""Whether the installed TRL still computes the losses that its loss types are taken for.

TRL's own `_compute_loss` runs on a stand-in trainer whose log-probabilities are a given tensor, so no model is needed:
a whole optimizer step of two micro-batches is compared with the row weights, in value and gradient.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from trl import GRPOTrainer

from lossbench.loss.equivalents import trl_loss_types
from lossbench.loss.modes import Mode, parse_mode
from lossbench.loss.surrogates import Level, SurrogateParams
from lossbench.loss.token_loss import kl_BT, weighted_loss
from lossbench.loss.window import window_weights
from lossbench.training.grpo_config import CONSTANTS

TRL_LOSS_TYPES = trl_loss_types()
TOLERANCE = 1e-6  # TRL computes the divisor of dapo, cispo and vespo and the temperature of sapo in float32
_LEVELS: tuple[Level, ...] = ("token", "sequence")
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


class _Batch(NamedTuple):
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
            **{name: getattr(params, ours) for name, ours in CONSTANTS.items() if name.startswith(("sapo", "vespo"))},
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


def _theirs(loss_type: str, level: Level, beta: float, params: Any, batch: _Batch) -> Tensor:
    """Loss of the window as TRL returns it, micro-batch by micro-batch."""
    loss = torch.zeros((), dtype=torch.float64)
    for first in range(0, len(batch.logp_NT), _ROWS):
        part = _Batch(*(tensor[first : first + _ROWS] for tensor in batch))
        mask_BT = part.mask_NT.long()
        inputs = {
            "prompt_ids": mask_BT[:, :1],
            "prompt_mask": mask_BT[:, :1],
            "completion_ids": mask_BT,
            "completion_mask": mask_BT,
            "advantages": part.advantages_N,
            "old_per_token_logps": part.old_NT,
            "ref_per_token_logps": part.ref_NT,
            "num_items_in_batch": batch.mask_NT.sum(),
        }
        trainer = _stand_in(loss_type, level, beta, params, part.logp_NT)
        loss = loss + GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def _ours(mode: Mode, level: Level, beta: float, params: Any, batch: _Batch) -> Tensor:
    logp_NT, old_NT, ref_NT, mask_NT, advantages_N = batch
    loss_NT = mode.surrogate.fn(logp_NT, old_NT, advantages_N, mask_NT, params)
    loss_NT = loss_NT + beta * kl_BT(logp_NT, ref_NT, mask_NT, old_NT, level)
    rows_N = torch.arange(len(logp_NT))
    weights_N = window_weights(
        mode.aggregation, mask_NT.sum(-1), rows_N * 0, horizon=_HORIZON, micro_ids_N=rows_N // _ROWS
    )
    return weighted_loss(loss_NT, mask_NT, weights_N)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def difference(loss_type: str) -> Difference:
    """Compare one of TRL's loss types at token and sequence level, without and with a KL term."""
    mode, batch = parse_mode(TRL_LOSS_TYPES[loss_type]), _batch()
    batch.logp_NT.requires_grad_()
    found = []
    for level, beta in product(_LEVELS, (0.0, _BETA)):
        params = SurrogateParams(importance_sampling_level=level)
        losses = _ours(mode, level, beta, params, batch), _theirs(loss_type, level, beta, params, batch)
        gradients = (torch.autograd.grad(loss, batch.logp_NT)[0] for loss in losses)
        found.append((_apart(*losses), _apart(*gradients)))
    return Difference(loss_type, *torch.tensor(found).amax(0).tolist())  # NaN where one is NaN
