"""The aggregation that a loss function computes, read off its gradient.

On-policy every ratio-type surrogate has one gradient: -d loss / d logp_it = w_i A_i m_it. Calling the function on
windows of unequal lengths, group sizes and padded widths therefore shows its row weights, which are compared with every
aggregation of the registry, and their scalars with products of what a window can be divided by.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from lossbench.diagnosis.loss_function import HORIZON, Function, Weights, Window, make_window
from lossbench.loss.aggregations import AGGREGATIONS, BoundAggregation, format_number
from lossbench.loss.window import window_weights

RTOL = 1e-4
"""Relative difference of weights up to which two formulas count as one; float32 code stays below it."""

_CONFIGURED_ACCUMULATION = 4


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
    function = Function(loss, call)
    windows = [make_window(seed) for seed in range(4)]
    weights = [function.weights(window) for window in windows]
    means = [w.mean for w in weights]
    problem = _not_row_weights(function, weights)
    found = None if problem else _match(windows, means)
    if found is not None:
        return replace(found, notes=tuple(_scope(function, found.factor)))
    nearest, difference = _nearest(windows, means)
    return Identified(None, nearest=nearest, difference=difference, notes=(problem,) if problem else ())


def _not_row_weights(function: Function, weights: Sequence[Weights]) -> str:
    """Reason why the gradient is no weight per row times the advantage; empty if it is one."""
    if max(w.masked for w in weights) > RTOL:
        return "masked tokens have a gradient"
    if max(w.spread for w in weights) > RTOL:
        return "the weight changes from token to token inside a completion"
    if all(float(w.mean.abs().max()) == 0 for w in weights):
        return "the gradient is 0 at a ratio of 1"
    flipped = function.weights(make_window(0, flip=True)).mean
    if not torch.allclose(flipped, weights[0].mean, rtol=RTOL, atol=0):
        return "the weight of a completion depends on its advantage"
    return ""


def _match(windows: Sequence[Window], weights: Sequence[Tensor]) -> Identified | None:
    """The registry's entry, and the product of window quantities, that give the weights; the simplest one."""
    found: list[tuple[int, Identified]] = []
    for bound in _candidates(windows, weights):
        factors = _factors(windows, weights, bound)
        explained = _explain(windows, factors, _scales_with_horizon(windows[0], bound)) if factors else None
        if explained is not None:
            found.append((explained[0], Identified(bound.name, explained[1], horizon=explained[2])))
    return min(found, key=lambda item: item[0])[1] if found else None


def _candidates(windows: Sequence[Window], weights: Sequence[Tensor]) -> Iterator[BoundAggregation]:
    """Every aggregation; those with an exponent at the one that two rows of the first window suggest."""
    for entry in AGGREGATIONS.values():
        if not entry.takes_alpha:
            yield BoundAggregation(entry)
    lengths_B, weights_B = windows[0].lengths_B, weights[0]
    long, short = int(lengths_B.argmax()), int(lengths_B.argmin())
    ratio = float(weights_B[long] / weights_B[short]) if float(weights_B[short]) else 0.0
    if ratio <= 0:
        return
    slope = float(torch.log(torch.tensor(ratio)) / torch.log(lengths_B[long] / lengths_B[short]))
    for entry in AGGREGATIONS.values():
        if entry.takes_alpha:
            # `exponent` is of the row's whole weight, w L, and linear in alpha.
            at_0, at_1 = entry.exponent(0.0), entry.exponent(1.0)
            yield BoundAggregation(entry, round((slope + 1 - at_0) / (at_1 - at_0), 4) + 0.0)


def _factors(windows: Sequence[Window], weights: Sequence[Tensor], bound: BoundAggregation) -> list[float] | None:
    """For each window the constant that the aggregation's weights are multiplied by; None if absent."""
    factors = []
    for window, weights_B in zip(windows, weights, strict=True):
        ratio_B = weights_B / _registry_weights(window, bound)
        factor = float(ratio_B.mean())
        if not bool(((ratio_B - factor).abs() <= RTOL * abs(factor)).all()) or factor == 0:
            return None
        factors.append(factor)
    return factors


def _registry_weights(
    window: Window, bound: BoundAggregation, horizon: float = HORIZON, micro_ids: Tensor | None = None
) -> Tensor:
    weights_B = window_weights(
        bound, window.lengths_B, window.groups_B, horizon=horizon, micro_ids_N=micro_ids,
        advantages_N=window.advantages_B,
    )  # fmt: skip
    return torch.from_numpy(weights_B)


def _scales_with_horizon(window: Window, bound: BoundAggregation) -> bool:
    """Whether the constant H is a plain divisor of the aggregation, so that code may have any."""
    ratio_B = _registry_weights(window, bound) / _registry_weights(window, bound, 2 * HORIZON)
    return bool(torch.allclose(ratio_B, torch.full_like(ratio_B, 2.0), rtol=1e-9))


def _explain(
    windows: Sequence[Window], factors: Sequence[float], any_horizon: bool
) -> tuple[int, str, float | None] | None:
    """A product of window quantities that equals the factors: cost, factor and horizon of the simplest; None without.

    `any_horizon`: a constant factor is another H.
    """
    powers = [(name, power) for name in windows[0].divisors for power in (-1, 1)]
    for size in (0, 1, 2):
        for chosen in combinations_with_replacement(powers, size):
            product = [math.prod(window.divisors[name] ** power for name, power in chosen) for window in windows]
            left = [factor / value for factor, value in zip(factors, product, strict=True)]
            if any(abs(value - left[0]) > RTOL * abs(left[0]) for value in left):
                continue
            if not chosen and any_horizon:
                return 0, "", float(f"{HORIZON / left[0]:.4g}")
            number = "" if abs(left[0] - 1) <= RTOL else f"{left[0]:.6g}"
            cost = 2 * bool(number) if not chosen else 1 + size + bool(number)
            return cost, "·".join(part for part in (number, _product(chosen)) if part), None
    return None


def _product(chosen: Sequence[tuple[str, int]]) -> str:
    above = "·".join(name for name, power in chosen if power > 0) or "1" * bool(chosen)
    below = "·".join(name for name, power in chosen if power < 0)
    return f"{above}/({below})" if below.count("·") else f"{above}/{below}" if below else above


def _nearest(windows: Sequence[Window], weights: Sequence[Tensor]) -> tuple[str, float]:
    """The aggregation whose weights, scaled to the same mean, are closest, and the largest relative difference."""

    def distance(bound: BoundAggregation) -> float:
        worst = 0.0
        for window, weights_B in zip(windows, weights, strict=True):
            known_B = _registry_weights(window, bound)
            scaled_B = weights_B * known_B.mean() / weights_B.mean() if float(weights_B.mean()) else weights_B
            worst = max(worst, float(((scaled_B - known_B) / known_B).abs().max()))
        return worst

    known = [BoundAggregation(entry) for entry in AGGREGATIONS.values() if not entry.takes_alpha]
    best = min(known, key=distance)
    return best.name, distance(best)


def _scope(function: Function, factor: str) -> Iterator[str]:
    """Notes on the weights when a step is cut into micro-batches, dealt to ranks, or ends early."""

    def weights(micro_batches: int = 1, processes: int = 1) -> Tensor:
        return function.weights(make_window(0, 12, micro_batches, processes)).mean

    def same(a_B: Tensor, b_B: Tensor) -> bool:
        return torch.allclose(a_B, b_B, rtol=RTOL, atol=0)

    whole_B, in_pieces_B, window = weights(), weights(micro_batches=3), make_window(0, rows=12)
    if "W" in factor or "max L" in factor:
        yield "the divisor is the padded width of the batch, not a constant: it moves with the longest completion"
    elif not same(whole_B, in_pieces_B):
        by_split = (
            entry.name for entry in AGGREGATIONS.values() if entry.depends_on_split
            and same(in_pieces_B, _registry_weights(window, BoundAggregation(entry), micro_ids=torch.arange(12) // 4))
        )  # fmt: skip
        name = next(by_split, None)
        yield (
            f"over several micro-batches it is {name}: the divisor is the micro-batch's own" if name
            else "the weights change with the cut into micro-batches"
        )  # fmt: skip
    if function.takes("processes"):
        if not same(weights(processes=2), whole_B):
            yield "on two ranks the weights differ from those on one"
    elif function.takes("num_tokens") or function.takes("num_rows"):
        yield "local sums over a count of the whole window: under DDP's mean, multiply by the number of processes"
    if function.takes("accumulation"):
        window, count = make_window(0, rows=12, micro_batches=2), _CONFIGURED_ACCUMULATION
        ratio = float((function.weights(window, accumulation=count).mean / function.weights(window).mean).mean())
        if abs(ratio - 1) > RTOL:
            yield f"a last window of 2 out of {count} configured micro-batches weighs {ratio:.2g} times as much"
