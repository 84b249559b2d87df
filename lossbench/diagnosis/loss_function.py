"""A user's loss function on made windows: its arguments matched by name, its row weights read off the gradient."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lossbench.errors import UsageError, one_line

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "loss_mat": ("loss_mat", "losses", "per_token_loss", "token_losses", "pg_losses"),
    "logp": ("logp", "logps", "log_prob", "log_probs", "logprobs", "new_logp", "new_logps", "per_token_logps"),
    "old_logp": ("old_logp", "old_logps", "old_log_prob", "old_log_probs", "old_logprobs", "old_per_token_logps"),
    "advantages": ("advantages", "advantage", "adv", "advs"),
    "mask": ("mask", "loss_mask", "response_mask", "completion_mask", "action_mask", "eos_mask"),
    "group_ids": ("group_ids", "groups", "group", "prompt_ids", "uid", "index"),
    "num_tokens": ("batch_num_tokens", "num_items_in_batch", "num_tokens", "total_tokens", "global_num_tokens"),
    "num_rows": ("global_batch_size", "num_rows", "num_sequences", "batch_size"),
    "processes": ("dp_size", "num_processes", "world_size"),
    "horizon": ("loss_scale_factor", "max_completion_length", "max_tokens", "generate_max_length", "horizon"),
    "accumulation": ("gradient_accumulation_steps", "accumulation_steps", "grad_accum"),
}
"""What a loss may take, and the parameter names under which frameworks take it."""

HORIZON = 64.0


@dataclass(frozen=True)
class Window:
    """One optimizer step handed to the function: float64 tensors (B, T) and (B,), cut into micro-batches and ranks."""

    logp_BT: Tensor
    mask_BT: Tensor
    advantages_B: Tensor
    groups_B: Tensor
    micro_batches: int = 1
    processes: int = 1

    @property
    def lengths_B(self) -> Tensor:
        """Loss tokens of each row, float64 (B)."""
        return self.mask_BT.sum(-1)

    @property
    def divisors(self) -> dict[str, float]:
        """Divisors that a window offers: its rows N, tokens T, prompts P, padded width W, largest and mean length."""
        lengths_B = self.lengths_B
        return {
            "N": float(len(lengths_B)), "T": float(lengths_B.sum()), "P": float(len(self.groups_B.unique())),
            "W": float(self.mask_BT.shape[1]), "max L": float(lengths_B.max()),
        }  # fmt: skip

    def parts(self) -> Iterator["Window"]:
        """The rows of each micro-batch of each rank."""
        size = len(self.groups_B) // (self.micro_batches * self.processes)
        for start in range(0, len(self.groups_B), size):
            rows = slice(start, start + size)
            yield Window(self.logp_BT[rows], self.mask_BT[rows], self.advantages_B[rows], self.groups_B[rows])


@dataclass(frozen=True)
class Weights:
    """Row weights read off a gradient: mean over the row's live tokens, their spread, and the largest masked cell."""

    mean: Tensor
    spread: float
    masked: float


class Function:
    """The user's function with its arguments matched by name."""

    def __init__(self, loss: Callable[..., Any], call: Callable[..., Any] | None) -> None:
        self.loss, self.call, self.name = loss, call, getattr(loss, "__name__", "loss")
        meaning = {name: argument for argument, names in ARGUMENTS.items() for name in names}
        parameters = {} if call is not None else inspect.signature(loss).parameters
        self.wanted = {name: meaning[name] for name in parameters if name in meaning}
        for name, parameter in parameters.items():
            open_ended = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if name not in meaning and parameter.default is parameter.empty and not open_ended:
                valid = ", ".join(names[0] for names in ARGUMENTS.values())
                raise UsageError(
                    f"{self.name}: parameter '{name}' is not known; valid: {valid} and their usual spellings, or --call"
                )
        if call is None and not {"loss_mat", "logp"} & set(self.wanted.values()):
            raise UsageError(f"{self.name}: takes neither token losses (loss_mat) nor log-probabilities (logp)")

    def takes(self, argument: str) -> bool:
        """Whether the function is given this argument."""
        return self.call is None and argument in self.wanted.values()

    def weights(self, window: Window, accumulation: int | None = None) -> Weights:
        """Weights of the window's rows, micro-batch by micro-batch, averaged over ranks as DDP does.

        A function that takes no count of the whole window is averaged over micro-batches, as trainers do.
        """
        count = accumulation or window.micro_batches
        counted = any(map(self.takes, ("num_tokens", "num_rows", "accumulation")))
        cells_BT = torch.cat([self._weight_cells(part, window, count) for part in window.parts()])
        cells_BT = cells_BT / (window.processes * (1 if counted else count))
        live_BT = window.mask_BT > 0
        mean_B = (cells_BT * window.mask_BT).sum(-1) / window.lengths_B.clamp(min=1)
        deviation_BT = torch.where(live_BT, (cells_BT - mean_B[:, None]).abs(), 0.0)
        size = float(mean_B.abs().max().clamp(min=1e-300))
        return Weights(
            mean_B, float(deviation_BT.max()) / size, float(torch.where(live_BT, 0.0, cells_BT.abs()).max()) / size
        )

    def _weight_cells(self, part: Window, window: Window, accumulation: int) -> Tensor:
        """Gradient by the token losses, or minus that by the log-probabilities over the advantage (B, T)."""
        losses_BT, logp_BT = (part.logp_BT.clone().requires_grad_() for _ in range(2))
        everything: dict[str, Any] = {
            "loss_mat": losses_BT, "logp": logp_BT, "old_logp": part.logp_BT.clone(), "advantages": part.advantages_B,
            "mask": part.mask_BT, "group_ids": part.groups_B, "num_tokens": float(window.lengths_B.sum()),
            "num_rows": float(len(window.groups_B)), "processes": window.processes, "horizon": HORIZON,
            "accumulation": accumulation,
        }  # fmt: skip
        try:
            value = self.call(self.loss, **everything) if self.call is not None else self._called(everything)
        except Exception as error:  # whatever a user's function raises is told in one line
            raise UsageError(f"{self.name}: raised {type(error).__name__}: {one_line(error)}") from error
        value = value[0] if isinstance(value, tuple) else value
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise UsageError("the function returns no scalar with a gradient: it must return the loss as a tensor")
        by_loss, by_logp = torch.autograd.grad(value.reshape(()), (losses_BT, logp_BT), allow_unused=True)
        gradient_BT = by_loss if by_loss is not None else by_logp
        if gradient_BT is None or not bool(torch.isfinite(gradient_BT).all()) or not bool(torch.isfinite(value)):
            raise UsageError("the loss or its gradient is not finite, or does not depend on the log-probabilities")
        return gradient_BT if by_loss is not None else -gradient_BT / part.advantages_B[:, None]

    def _called(self, everything: Mapping[str, Any]) -> Any:
        """The result, with advantages per row, or per token where a function of one per row fails on their shape."""
        arguments = {name: everything[argument] for name, argument in self.wanted.items()}
        try:
            return self.loss(**arguments)
        except RuntimeError:  # torch refuses (B,) beside (B, T)
            if not self.takes("advantages"):
                raise
            name = next(name for name, argument in self.wanted.items() if argument == "advantages")
            return self.loss(**{**arguments, name: arguments[name][:, None].expand_as(everything["mask"])})


def make_window(
    seed: int, rows: int | None = None, micro_batches: int = 1, processes: int = 1, flip: bool = False
) -> Window:
    """A window whose rows, tokens, prompts and padded width have no common factor to mistake one for another."""
    generator = torch.Generator().manual_seed(1000 + seed)
    rows = rows or (7, 10, 9, 11)[seed % 4]
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2])[:rows]
    lengths_B = torch.randperm(37, generator=generator)[:rows] + 1
    width = int(lengths_B.max()) + (3, 5, 2, 8)[seed % 4]
    mask_BT = (torch.arange(width) < lengths_B[:, None]).double()
    advantages_B = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    advantages_B[1::2] *= -1
    logp_BT = -torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.1
    return Window(logp_BT, mask_BT, -advantages_B if flip else advantages_B, groups, micro_batches, processes)
