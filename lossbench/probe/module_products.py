"""Contribution of one module's parameters to scores: sums of scores, and projections of scores on directions.

For a linear layer a token's part of a projection costs one product with the weights per direction. The score of a whole
completion, sum_t d_t x_t^T, costs as much once, and each direction is then one scalar product of the layer's size. So
large layers go by completion, and small ones, where calls cost more than arithmetic, by token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from lossbench.probe.scores import Vector, scaled

_LEAST_NUMBERS = 1 << 16  # of a weight that goes by completion
_LEAST_TOKENS = 4  # of a completion, on average: a scalar product with the layer waits for memory, a product does not
_BLOCK_NUMBERS = 1 << 26  # of the scores that are alive at once: 256 MB


@dataclass(frozen=True)
class Owner:
    """A module with selected parameters of its own: their names in it, and their places in a vector."""

    module: nn.Module
    names: tuple[str, ...]
    places: tuple[int, ...]

    def parameters(self) -> dict[str, Tensor]:
        """The module's selected parameters by name."""
        return {name: getattr(self.module, name).detach() for name in self.names}

    def without(self, place: int | None) -> "Owner":
        """The same module less the parameter at one place."""
        kept = [pair for pair in zip(self.names, self.places, strict=True) if pair[1] != place]
        return Owner(self.module, tuple(name for name, _ in kept), tuple(place for _, place in kept))

    def tangents(self, vector: Vector, scale: Vector | None) -> dict[str, Tensor]:
        """The module's part of `vector`, scaled, in the dtype of its parameters."""
        own = self.parameters()
        parts = scaled([vector[i] for i in self.places], None if scale is None else [scale[i] for i in self.places])
        return {name: part.to(own[name].dtype) for name, part in zip(self.names, parts, strict=True)}

    def output(self, inputs_nX: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
        """The module's output (n, ...) as a function of its selected parameters."""
        return lambda values: torch.func.functional_call(self.module, values, (inputs_nX,))


@dataclass(frozen=True)
class Use:
    """One call of a module over n tokens: its inputs (n, ...) and the gradient of its output (n, ...)."""

    owner: Owner
    inputs_nX: Tensor
    grads_nY: Tensor


@dataclass(frozen=True)
class Rows:
    """Row of the batch of each of n tokens; the tokens of a row are neighbours."""

    rows_n: Tensor

    @cached_property
    def spans(self) -> list[tuple[int, int, int]]:
        """(row, first token, token after its last) of every row."""
        rows_R, counts_R = torch.unique_consecutive(self.rows_n, return_counts=True)
        ends = counts_R.cumsum(0).tolist()
        return list(zip(rows_R.tolist(), [0, *ends[:-1]], ends, strict=True))


def add_gradients(use: Use, rows: Rows, coefficients_KB: Tensor, vectors: Sequence[Vector]) -> None:
    """Add to each vector the module's part of the rows' scores, summed with its coefficients (K, B)."""
    place = _by_completion(use, rows, len(vectors))
    if place is not None:
        for numbers, scores_RP in _scores(use, rows):
            for vector, coefficients_B in zip(vectors, coefficients_KB.to(scores_RP), strict=True):
                vector[place].view(-1).add_(coefficients_B[numbers] @ scores_RP)
    owner = use.owner.without(place)
    if owner.names:
        for vector, coefficients_n in zip(vectors, coefficients_KB.to(use.grads_nY)[:, rows.rows_n], strict=True):
            _add_by_token(Use(owner, use.inputs_nX, use.grads_nY), coefficients_n, vector)


def add_projections(
    use: Use, rows: Rows, directions: Sequence[Vector], scales: Sequence[Vector | None], out_MKB: Tensor
) -> None:
    """Add the module's part of each row's projection on each direction, elementwise scaled, to `out_MKB` (float64)."""
    place = _by_completion(use, rows, len(directions) * len(scales))
    if place is not None:
        for numbers, scores_RP in _scores(use, rows):
            for m, scale in enumerate(scales):
                scale_P = None if scale is None else scale[place].flatten()
                out_MKB[m][:, numbers] += _products(scores_RP, scale_P, [vector[place] for vector in directions])
    rest = Use(use.owner.without(place), use.inputs_nX, use.grads_nY)
    if rest.owner.names:
        rows_n = rows.rows_n.cpu()
        for m, scale in enumerate(scales):
            for k, direction in enumerate(directions):
                # Scaled module by module: a scaled copy of the whole direction would be another model's size.
                values_n = _along(rest, direction, scale)
                out_MKB[m, k].index_add_(0, rows_n, values_n.double().cpu().expand(len(rows_n)))


def _products(scores_RP: Tensor, scale_P: Tensor | None, parts: Sequence[Tensor]) -> Tensor:
    """Scalar products of scaled scores with each direction's part, float64 (K, R) on the CPU."""
    scaled_RP = scores_RP if scale_P is None else scores_RP * scale_P
    return torch.stack([scaled_RP @ part.flatten() for part in parts]).double().cpu()


def _by_completion(use: Use, rows: Rows, products: int) -> int | None:
    """The place of the module's weight where it pays to go by completion, else None."""
    owner = use.owner
    if type(owner.module) is not nn.Linear or "weight" not in owner.names or products < 2:
        return None
    if owner.module.weight.numel() < _LEAST_NUMBERS or len(rows.rows_n) < _LEAST_TOKENS * len(rows.spans):
        return None
    return owner.places[owner.names.index("weight")]


def _scores(use: Use, rows: Rows) -> Iterator[tuple[list[int], Tensor]]:
    """Scores of completions by a linear layer's weight, float32 (R, P), block by block, with their rows' numbers.

    The blocks share their memory: each is over when the next begins.
    """
    shape = (use.grads_nY.shape[1], use.inputs_nX.shape[1])
    per_block = max(1, _BLOCK_NUMBERS // (shape[0] * shape[1]))
    spans = rows.spans
    scores_RYX = torch.empty(min(per_block, len(spans)), *shape, device=use.grads_nY.device)
    for first in range(0, len(spans), per_block):
        block = spans[first : first + per_block]
        for score_YX, (_, begin, end) in zip(scores_RYX, block, strict=False):
            torch.mm(use.grads_nY[begin:end].T.float(), use.inputs_nX[begin:end].float(), out=score_YX)
        yield [row for row, _, _ in block], scores_RYX[: len(block)].flatten(1)


def _add_by_token(use: Use, coefficients_n: Tensor, vector: Vector) -> None:
    """Add the module's part of the gradient, tokens weighted with coefficients, to `vector` in place."""
    owner, inputs_nX, grads_nY = use.owner, use.inputs_nX, use.grads_nY
    if type(owner.module) is nn.Linear:
        weighted_nY = grads_nY * coefficients_n[:, None]
        parts = {"weight": lambda: weighted_nY.T @ inputs_nX, "bias": lambda: weighted_nY.sum(0)}
        for name, place in zip(owner.names, owner.places, strict=True):
            vector[place] += parts[name]()
        return
    pull = torch.func.vjp(owner.output(inputs_nX), owner.parameters())[1]
    (found,) = pull(grads_nY * coefficients_n.view((-1,) + (1,) * (grads_nY.ndim - 1)))
    for name, place in zip(owner.names, owner.places, strict=True):
        vector[place] += found[name]


def _along(use: Use, direction: Vector, scale: Vector | None) -> Tensor:
    """Per token <gradient of the output, derivative of the output along the module's part of the direction>, (n,)."""
    owner, inputs_nX, grads_nY = use.owner, use.inputs_nX, use.grads_nY
    own = owner.tangents(direction, scale)
    if type(owner.module) is not nn.Linear:
        change_nY = torch.func.jvp(owner.output(inputs_nX), (owner.parameters(),), (own,))[1]
        return (change_nY.float() * grads_nY.float()).flatten(1).sum(-1)
    total_n = torch.zeros((), device=grads_nY.device)
    if "weight" in own:
        weight_YX = own["weight"]
        # <d, V x> and <V'd, x> are the same number: take the product whose result is narrower.
        if weight_YX.shape[0] > weight_YX.shape[1]:
            total_n = ((grads_nY @ weight_YX).float() * inputs_nX.float()).sum(-1)
        else:
            total_n = ((inputs_nX @ weight_YX.T).float() * grads_nY.float()).sum(-1)
    if "bias" in own:
        total_n = total_n + (grads_nY @ own["bias"]).float()
    return total_n
