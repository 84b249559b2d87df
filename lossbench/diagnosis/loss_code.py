"""The aggregation that a loss function computes, read off its gradient.

On-policy every ratio-type surrogate has one gradient: -d loss / d logp_it = w_i A_i m_it. Calling the function on
windows of unequal lengths, group sizes and padded widths therefore shows its row weights, which are compared with every
aggregation of the registry, and their scalars with products of what a window can be divided by.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from lossbench.errors import UsageError, one_line
from lossbench.loss.aggregations import AGGREGATIONS, BoundAggregation, format_number
from lossbench.loss.window import window_weights

RTOL = 1e-4
"""Relative difference of weights up to which two formulas count as one; float32 code stays below it."""
_HORIZON = 64.0
_CONFIGURED_ACCUMULATION = 4

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


@dataclass(frozen=True)
class Identified:
    """The finding: `agg_mode` is the registry's name, or None; `factor` what its weights are multiplied by."""

    agg_mode: str | None
    factor: str = ""
    nearest: str | None = None
    difference: float = 0.0
    horizon: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        if self.agg_mode is None:
            return f"none; nearest is {self.nearest}, whose weights differ by up to {self.difference:.0%}"
        constant = f" with H = {format_number(self.horizon)}" if self.horizon else ""
        return f"{self.agg_mode}{constant}{f', times {self.factor}' if self.factor else ''}"


def identify_loss(loss: Callable[..., Any], call: Callable[..., Any] | None = None) -> Identified:
    """Name the aggregation of `loss`.

    `loss` takes any of `ARGUMENTS` by their names; `call(loss, **arguments)` adapts one that does not. Raises
    UsageError for a callable whose arguments are unknown, that raises, or whose result is no finite scalar with a
    gradient.
    """
    function = _Function(loss, call)
    windows = [_made_window(seed) for seed in range(4)]
    weights = [function.weights(window) for window in windows]
    problem = _not_row_weights(function, windows)
    found = None if problem else _match(windows, weights)
    if found is not None:
        return replace(found, notes=tuple(_scope(function, found.factor)))
    nearest, difference = _nearest(windows, weights)
    return Identified(None, nearest=nearest, difference=difference, notes=(problem,) if problem else ())


@dataclass(frozen=True)
class _Window:
    """One optimizer step handed to the function: float64 tensors (B, T) and (B,), cut into micro-batches and ranks."""

    logp_BT: Tensor
    mask_BT: Tensor
    advantages_B: Tensor
    groups_B: Tensor
    micro_batches: int = 1
    processes: int = 1

    @property
    def lengths_B(self) -> Tensor:
        return self.mask_BT.sum(-1)

    @property
    def divisors(self) -> dict[str, float]:
        """Divisors that a window offers: its rows N, tokens T, prompts P, padded width W, and largest length."""
        lengths_B = self.lengths_B
        return {
            "N": float(len(lengths_B)), "T": float(lengths_B.sum()), "P": float(len(self.groups_B.unique())),
            "W": float(self.mask_BT.shape[1]), "max L": float(lengths_B.max()),
        }  # fmt: skip

    def parts(self) -> Iterator["_Window"]:
        """The rows of each micro-batch of each rank."""
        size = len(self.groups_B) // (self.micro_batches * self.processes)
        for start in range(0, len(self.groups_B), size):
            rows = slice(start, start + size)
            yield _Window(self.logp_BT[rows], self.mask_BT[rows], self.advantages_B[rows], self.groups_B[rows])

    def registry_weights(
        self, bound: BoundAggregation, horizon: float = _HORIZON, micro_ids: Tensor | None = None
    ) -> Tensor:
        """Row weights (B,) of an aggregation."""
        weights_B = window_weights(
            bound, self.lengths_B, self.groups_B, horizon=horizon, micro_ids_N=micro_ids,
            advantages_N=self.advantages_B,
        )  # fmt: skip
        return torch.from_numpy(weights_B)


def _made_window(seed: int, rows: int = 0, micro_batches: int = 1, processes: int = 1, flip: bool = False) -> _Window:
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
    return _Window(logp_BT, mask_BT, -advantages_B if flip else advantages_B, groups, micro_batches, processes)


class _Function:
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
        return argument in self.wanted.values()

    def weights(self, window: _Window, accumulation: int | None = None) -> Tensor:
        """Row weights (B,): means over live tokens of `token_weights`."""
        cells_BT = self.token_weights(window, accumulation)
        return (cells_BT * window.mask_BT).sum(-1) / window.lengths_B

    def token_weights(self, window: _Window, accumulation: int | None = None) -> Tensor:
        """Weights of the window's tokens (B, T), micro-batch by micro-batch, averaged over ranks as DDP does.

        A function that takes no count of the whole window is averaged over micro-batches, as trainers do.
        """
        count = accumulation or window.micro_batches
        counted = any(map(self.takes, ("num_tokens", "num_rows", "accumulation")))
        cells_BT = torch.cat([self._gradient(part, window, count) for part in window.parts()])
        return cells_BT / (window.processes * (1 if counted else count))

    def _gradient(self, part: _Window, window: _Window, accumulation: int) -> Tensor:
        """Gradient by the token losses, or minus that by the log-probabilities over the advantage (B, T)."""
        losses_BT, logp_BT = (part.logp_BT.clone().requires_grad_() for _ in range(2))
        everything: dict[str, Any] = {
            "loss_mat": losses_BT, "logp": logp_BT, "old_logp": part.logp_BT.clone(), "advantages": part.advantages_B,
            "mask": part.mask_BT, "group_ids": part.groups_B, "num_tokens": float(window.lengths_B.sum()),
            "num_rows": float(len(window.groups_B)), "processes": window.processes, "horizon": _HORIZON,
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


def _not_row_weights(function: _Function, windows: Sequence[_Window]) -> str:
    """Reason why the gradient is no weight per row times the advantage; empty if it is one."""
    size = 0.0
    for window in windows:
        live_BT, cells_BT = window.mask_BT > 0, function.token_weights(window)
        size = float(cells_BT[live_BT].abs().max())
        if float(cells_BT[~live_BT].abs().max()) > RTOL * size:
            return "masked tokens have a gradient"
        if float((cells_BT - function.weights(window)[:, None])[live_BT].abs().max()) > RTOL * size:
            return "the weight changes from token to token inside a completion"
    if not size:
        return "the gradient is 0 at a ratio of 1"
    if not _same(function.weights(_made_window(0, flip=True)), function.weights(windows[0])):
        return "the weight of a completion depends on its advantage"
    return ""


def _same(a_B: Tensor, b_B: Tensor) -> bool:
    return torch.allclose(a_B, b_B, rtol=RTOL, atol=0)


def _match(windows: Sequence[_Window], weights: Sequence[Tensor]) -> Identified | None:
    """The registry's entry, and the product of window quantities, that give the weights; the simplest one."""
    found: list[tuple[int, Identified]] = []
    for bound in _candidates(windows, weights):
        ratios = [w_B / window.registry_weights(bound) for window, w_B in zip(windows, weights, strict=True)]
        factors = [float(ratio_B.mean()) for ratio_B in ratios]
        fits = all(_same(r_B, torch.full_like(r_B, factor)) for r_B, factor in zip(ratios, factors, strict=True))
        explained = _explain(windows, factors, bound) if fits and all(factors) else None
        if explained is not None:
            found.append((explained[0], Identified(bound.name, explained[1], horizon=explained[2])))
    return min(found, key=lambda item: item[0])[1] if found else None


def _candidates(windows: Sequence[_Window], weights: Sequence[Tensor]) -> Iterator[BoundAggregation]:
    """Every aggregation; those with an exponent at the one that two rows of the first window suggest."""
    lengths_B, weights_B = windows[0].lengths_B, weights[0]
    rows = [int(lengths_B.argmax()), int(lengths_B.argmin())]
    (long, short), (heavy, light) = lengths_B[rows].tolist(), weights_B[rows].tolist()
    for entry in AGGREGATIONS.values():
        if not entry.takes_alpha:
            yield BoundAggregation(entry)
        elif heavy * light > 0:
            slope = math.log(heavy / light) / math.log(long / short)
            # `exponent` is of the row's whole weight, w L, and linear in alpha.
            at_0, at_1 = entry.exponent(0.0), entry.exponent(1.0)
            yield BoundAggregation(entry, round((slope + 1 - at_0) / (at_1 - at_0), 4) + 0.0)


def _explain(
    windows: Sequence[_Window], factors: Sequence[float], bound: BoundAggregation
) -> tuple[int, str, float | None] | None:
    """The simplest product of window quantities that equals the factors: its cost, spelling and horizon."""
    powers = [(name, power) for name in windows[0].divisors for power in (-1, 1)]
    for size in (0, 1, 2):
        for chosen in combinations_with_replacement(powers, size):
            product = [math.prod(window.divisors[name] ** power for name, power in chosen) for window in windows]
            left = [factor / value for factor, value in zip(factors, product, strict=True)]
            if any(abs(value - left[0]) > RTOL * abs(left[0]) for value in left):
                continue
            if not chosen and _divides_by_horizon(windows[0], bound):  # then a constant factor is another H
                return 0, "", float(f"{_HORIZON / left[0]:.4g}")
            number = "" if abs(left[0] - 1) <= RTOL else f"{left[0]:.6g}"
            cost = 2 * bool(number) if not chosen else 1 + size + bool(number)
            return cost, "·".join(part for part in (number, _product(chosen)) if part), None
    return None


def _divides_by_horizon(window: _Window, bound: BoundAggregation) -> bool:
    once_B, twice_B = window.registry_weights(bound), window.registry_weights(bound, 2 * _HORIZON)
    return torch.allclose(once_B, 2 * twice_B, rtol=1e-9, atol=0)


def _product(chosen: Sequence[tuple[str, int]]) -> str:
    above = "·".join(name for name, power in chosen if power > 0) or "1" * bool(chosen)
    below = "·".join(name for name, power in chosen if power < 0)
    return f"{above}/({below})" if below.count("·") else f"{above}/{below}" if below else above


def _nearest(windows: Sequence[_Window], weights: Sequence[Tensor]) -> tuple[str, float]:
    """The aggregation whose weights, scaled to the same mean, are closest, and the largest relative difference."""

    distances = {}
    for entry in AGGREGATIONS.values():
        if entry.takes_alpha:
            continue
        for window, weights_B in zip(windows, weights, strict=True):
            known_B = window.registry_weights(BoundAggregation(entry))
            scaled_B = weights_B * known_B.mean() / weights_B.mean() if float(weights_B.mean()) else weights_B
            apart = float(((scaled_B - known_B) / known_B).abs().max())
            distances[entry.name] = max(apart, distances.get(entry.name, 0.0))
    return min(distances.items(), key=lambda item: item[1])


def _scope(function: _Function, factor: str) -> Iterator[str]:
    """Notes on the weights when a step is cut into micro-batches, dealt to ranks, or ends early."""

    def weights(micro_batches: int = 1, processes: int = 1) -> Tensor:
        return function.weights(_made_window(0, 12, micro_batches, processes))

    whole_B, in_pieces_B, window = weights(), weights(micro_batches=3), _made_window(0, 12)
    if "W" in factor or "max L" in factor:
        yield "the divisor is the padded width of the batch, not a constant: it moves with the longest completion"
    elif not _same(whole_B, in_pieces_B):
        split = [BoundAggregation(entry) for entry in AGGREGATIONS.values() if entry.depends_on_split]
        cut = [b.name for b in split if _same(in_pieces_B, window.registry_weights(b, micro_ids=torch.arange(12) // 4))]
        yield (
            f"over several micro-batches it is {cut[0]}: the divisor is the micro-batch's own" if cut
            else "the weights change with the cut into micro-batches"
        )  # fmt: skip
    if function.takes("processes"):
        if not _same(weights(processes=2), whole_B):
            yield "on two ranks the weights differ from those on one"
    elif function.takes("num_tokens") or function.takes("num_rows"):
        yield "local sums over a count of the whole window: under DDP's mean, multiply by the number of processes"
    if function.takes("accumulation"):
        window, count = _made_window(0, 12, micro_batches=2), _CONFIGURED_ACCUMULATION
        ratio = float((function.weights(window, accumulation=count) / function.weights(window)).mean())
        if abs(ratio - 1) > RTOL:
            yield f"a last window of 2 out of {count} configured micro-batches weighs {ratio:.2g} times as much"
