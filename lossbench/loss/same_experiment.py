"""Modes of a grid that are the same experiment, found by computing their gradients and not by comparing names.

Each mode's gradient with respect to the log-probabilities is computed on several sample windows of one shape, whose
lengths, groups and rewards differ. Two modes are *same* where the gradients agree on every window, *constant* where one
ratio holds over all of them: a single window would make token-mean look proportional to seq-mean-token-sum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

from pydantic import BaseModel

from lossbench.loss.advantages import advantages
from lossbench.loss.lazy import Tensor, torch
from lossbench.loss.modes import Mode
from lossbench.loss.token_loss import weighted_loss
from lossbench.loss.window import window_weights

_WINDOWS, _WIDTH, _SEED, _TOLERANCE = 6, 12, 20250321, 1e-9


@dataclass(frozen=True)
class Setup:
    """Settings of a grid's runs. `micro_batches` counts all accumulation steps on all ranks of one optimizer step,
    `windows_per_generation` the optimizer steps that one generation feeds; `horizon` is in tokens. `on_policy` means
    that every ratio is 1: one optimizer step per generation, one pass over it."""

    on_policy: bool = True
    rows_per_micro_batch: int = 4
    micro_batches: int = 2
    num_generations: int = 4
    windows_per_generation: int = 1
    horizon: float = 64.0
    match_scale: bool = False
    params: BaseModel | None = None


@dataclass(frozen=True)
class Equality:
    """Two modes with one direction: the gradient of `second` is `ratio` times that of `first`."""

    first: str
    second: str
    kind: Literal["same", "constant"]
    ratio: float
    separated_by: str

    @property
    def sentence(self) -> str:
        """One line for people: what holds and what would tell the two apart."""
        if self.kind == "same":
            return f"{self.first} and {self.second} are the same experiment here; separated by {self.separated_by}"
        only = "gradient clipping, the optimizer's eps and weight decay"
        return f"{self.second} is {self.ratio:g} times {self.first} here: one direction, told apart only by {only}"


def _sample_window(setup: Setup, index: int) -> Callable[[Mode], Tensor]:
    """One window of a fresh generation of N rows, as the function from a mode to the gradient of its loss (cells).

    The reward spread grows with the index; lengths are uniform.
    """
    generator = torch.Generator().manual_seed(_SEED + index)
    rows = setup.rows_per_micro_batch * setup.micro_batches
    generated = math.ceil(rows * setup.windows_per_generation / setup.num_generations) * setup.num_generations
    lengths_B = torch.randint(1, _WIDTH + 1, (rows,), generator=generator)
    rewards_N = (torch.rand(generated, generator=generator) < 0.5).double()
    rewards_N += torch.randn(generated, generator=generator, dtype=torch.float64) * index
    rewards_N -= rewards_N.min()
    sampled_BT = -torch.rand(rows, _WIDTH, generator=generator, dtype=torch.float64) - 0.1
    noise_BT = torch.randn(rows, _WIDTH, generator=generator, dtype=torch.float64) * 0.4
    picked_B = torch.randperm(generated, generator=generator)[:rows]
    lengths_N = torch.randint(1, _WIDTH + 1, (generated,), generator=generator)
    lengths_N[picked_B] = lengths_B
    mask_BT, groups_N = torch.arange(_WIDTH) < lengths_B[:, None], torch.arange(generated) // setup.num_generations

    def gradient(mode: Mode) -> Tensor:
        logp_BT = sampled_BT.clone().requires_grad_()
        old_BT = sampled_BT if setup.on_policy else sampled_BT - noise_BT
        adv_B = advantages(rewards_N, groups_N, mode.advantage, lengths_N)[picked_B.numpy()]
        loss_BT = mode.surrogate.fn(logp_BT, old_BT, torch.from_numpy(adv_B), mask_BT, setup.params)
        weights_B = window_weights(
            mode.aggregation, lengths_B, groups_N[picked_B], horizon=setup.horizon, advantages_N=adv_B,
            micro_ids_N=torch.arange(rows) // setup.rows_per_micro_batch, match_scale=setup.match_scale,
        )  # fmt: skip
        return torch.autograd.grad(weighted_loss(loss_BT, mask_BT, weights_B), logp_BT)[0].flatten()

    return gradient


def _gradients(modes: list[Mode], setup: Setup) -> list[Tensor]:
    """Each mode's gradients on all sample windows, (windows, cells)."""
    windows = [_sample_window(setup, index) for index in range(_WINDOWS)]
    return [torch.stack([gradient(mode) for gradient in windows]) for mode in modes]


def _ratio(first: Tensor, second: Tensor) -> float | None:
    """The one number r with second = r * first over all windows, or None."""
    if first.norm() == 0:
        return 1.0 if second.norm() == 0 else None
    ratio = float((first * second).sum() / first.norm() ** 2)
    return ratio if (second - ratio * first).norm() <= _TOLERANCE * second.norm() and ratio != 0 else None


def _is_same(ratio: float | None) -> TypeGuard[float]:
    return ratio is not None and math.isclose(ratio, 1.0, rel_tol=_TOLERANCE)


def _separated_by(first: Mode, second: Mode, setup: Setup) -> str:
    """The first change of the setup that makes the two differ, tried out."""
    rows, batches = setup.rows_per_micro_batch, setup.micro_batches
    changes: dict[str, dict[str, Any]] = {
        "several optimizer steps per generation (steps_per_generation > gradient_accumulation_steps, or num_iterations"
        " > 1)": {"on_policy": False},
        "more than one prompt per optimizer step": {"num_generations": max(2, rows * batches // 3)},
        "more than one micro-batch per optimizer step": {"micro_batches": max(3, batches)},
        "more than one row per micro-batch": {"rows_per_micro_batch": max(3, rows)},
        "match_scale = false": {"match_scale": False},
        "the surrogate's default constants": {"params": None},
        "both several optimizer steps per generation and more than one micro-batch of several rows":
            {"on_policy": False, "micro_batches": 3, "rows_per_micro_batch": 3},
    }  # fmt: skip
    for words, change in changes.items():
        if not _is_same(_ratio(*_gradients([first, second], replace(setup, **change)))):
            return words
    return "no setting: they are one loss under two names"


def equalities(modes: list[Mode], setup: Setup | None = None) -> list[Equality]:
    """Every pair of modes with one gradient direction under `setup`, in the order of `modes`.

    Each mode is compared with the first of its kind, so n modes that all coincide give n - 1 entries.
    """
    setup = setup or Setup()
    found: list[Equality] = []
    leaders: list[tuple[Mode, Tensor]] = []
    for mode, gradient in zip(modes, _gradients(modes, setup), strict=True):
        for first, its_gradient in leaders:
            ratio = _ratio(its_gradient, gradient)
            if _is_same(ratio):
                found.append(Equality(first.name, mode.name, "same", ratio, _separated_by(first, mode, setup)))
                break
            if ratio is not None:
                found.append(Equality(first.name, mode.name, "constant", ratio, ""))
        else:
            leaders.append((mode, gradient))
    return found
