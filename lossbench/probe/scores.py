"""Scores of completions along directions in parameter space, without ever holding a gradient per completion.

The score of completion o is its gradient of log-probability. Two things are needed of the scores of a batch: sums of
them with given coefficients (a direction), and the projection of each of them on a direction. Two engines give both:

- `LocalEngine`: one backward pass leaves, for each module that owns parameters, its input x and the gradient d of its
  output. A projection on v is then a sum over the module's tokens of <d, J v>, where J v is the module's own derivative
  by its parameters in forward mode: one matrix product per linear layer and direction, and attention is never
  differentiated twice.
- `ForwardEngine`: `torch.func.jvp` through the whole model. Slower by a factor of two to five, and the reference.

A module may use its parameters in a way that the first engine cannot see (experts that mix the rows' tokens, say), so
`make_engine` holds it to an ordinary gradient of the policy at hand before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lossbench.errors import UsageError
from lossbench.probe.batches import Chunk, ProbeBatch, make_chunks
from lossbench.sampling.decode import evaluation_mode

Vector = list[Tensor]
"""A point of parameter space: one tensor per selected parameter, in their order."""


def origin(parameters: Mapping[str, nn.Parameter]) -> Vector:
    """The origin of parameter space, float32, in one piece of memory.

    Freed, it goes back to the system whole; layer by layer it would leave gaps that the next one does not fit.
    """
    sizes = [p.numel() for p in parameters.values()]
    flat = torch.zeros(sum(sizes), device=next(iter(parameters.values())).device)
    return [part.view(p.shape) for part, p in zip(flat.split(sizes), parameters.values(), strict=True)]


class Record(Protocol):
    """Record of one batch, as an engine keeps it."""

    def directions(self, coefficients_KB: Tensor) -> list[Vector]:
        """For each k the sum over rows of coefficient times score, float32. Raises UsageError if it is not finite."""
        ...

    def projections(self, directions: Sequence[Vector], scales: Sequence[Vector | None]) -> Tensor:
        """Each row's score along each direction, multiplied by each scale: float64 (scales, K, B) on the CPU."""
        ...


class Engine:
    """Records of batches, and the projections of the two batches of a pair on each other's directions.

    This one holds each direction as a vector, no longer than one batch is projected on it.
    """

    name: str
    parameters: dict[str, nn.Parameter]

    def record(self, batch: ProbeBatch) -> Any:
        """A record of `batch`."""
        raise NotImplementedError

    def cross(
        self, records: Sequence[Any], coefficients: Sequence[Tensor], generators: Sequence[torch.Generator],
        random_directions: int, scales: Sequence[Vector | None],
    ) -> list[Tensor]:  # fmt: skip
        """For each of two batches its rows' scores along the other's directions, multiplied by each scale: float64
        (scales, K + random_directions, B) on the CPU.

        `coefficients` (K, B) make each batch's directions of its scores; after them come standard normal ones, drawn
        from the projected batch's generator.
        """
        found = []
        for half in (0, 1):
            vectors = records[1 - half].directions(coefficients[1 - half]) if len(coefficients[1 - half]) else []
            for _ in range(random_directions):
                vectors.append(origin(self.parameters))
                for part in vectors[-1]:
                    part.copy_(torch.randn(part.shape, generator=generators[half]))
            found.append(records[half].projections(vectors, scales))
            del vectors  # each is as large as the model in float32
        return found


def row_logps(logits_RSV: Tensor, chunk: Chunk, temperature: float) -> Tensor:
    """Log-probability of each completion (R,), float32, from the logits of every position but the last (R, S-1, V)."""
    logits_RTV = logits_RSV[:, chunk.start - 1 :].float()
    if temperature != 1.0:
        logits_RTV = logits_RTV / temperature
    targets_RT = chunk.ids_RS[:, chunk.start :]
    nll_RT = nn.functional.cross_entropy(logits_RTV.flatten(0, 1), targets_RT.flatten(), reduction="none")
    return -nll_RT.view_as(targets_RT).masked_fill(~chunk.live_RT, 0.0).sum(-1)


class Policy:
    """A frozen model: its selected parameters, and the log-probabilities of chunks."""

    def __init__(
        self, model: nn.Module, parameters: dict[str, nn.Parameter], temperature: float, max_positions: int
    ) -> None:
        self.model, self.parameters = model, parameters
        self.temperature, self.max_positions = temperature, max_positions
        self.device = next(iter(parameters.values())).device

    def chunks(self, batch: ProbeBatch) -> list[Chunk]:
        """The batch's passes."""
        return make_chunks(batch, self.max_positions, self.device)

    def logps(self, chunk: Chunk) -> Tensor:
        """Log-probability of each completion of the chunk (R,)."""
        return row_logps(self.model(input_ids=chunk.ids_RS[:, :-1], use_cache=False).logits, chunk, self.temperature)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """No dropout, and gradients by the selected parameters alone; both are put back."""
        before = [(p, p.requires_grad) for p in self.model.parameters()]
        wanted = {id(p) for p in self.parameters.values()}
        padded = [m for m in self.model.modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None]
        handles = [module.register_forward_hook(_hold_padding) for module in padded]
        try:
            for parameter, _ in before:
                parameter.requires_grad_(id(parameter) in wanted)
            with evaluation_mode(self.model), torch.enable_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter, required in before:
                parameter.requires_grad_(required)

    def gradient(self, chunk: Chunk, coefficients_R: Tensor) -> Vector:
        """Ordinary gradient of the rows' log-probabilities summed with coefficients."""
        total = (self.logps(chunk) * coefficients_R).sum()
        grads = torch.autograd.grad(total, list(self.parameters.values()), allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters.values(), grads, strict=True)]


def _hold_padding(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Keep a padding token's embedding constant: a backward pass, and so training, does, but forward mode does not."""
    return torch.where(args[0].eq(module.padding_idx).unsqueeze(-1), output.detach(), output)


def check_finite(vectors: Sequence[Vector], names: Sequence[str]) -> None:
    """Raises UsageError naming the first parameter whose gradient is not finite."""
    for vector in vectors:
        for name, tensor in zip(names, vector, strict=True):
            if not bool(torch.isfinite(tensor).all()):
                raise UsageError(f"the policy's gradient is not finite in '{name}': its lengths have no derivative")


class ForwardEngine(Engine):
    """Directions by an ordinary backward pass, projections by `torch.func.jvp` through the whole model."""

    name = "forward"

    def __init__(self, policy: Policy) -> None:
        self.policy, self.parameters = policy, policy.parameters

    def record(self, batch: ProbeBatch) -> Record:
        """A record of `batch`."""
        return _ForwardRecord(self.policy, batch)


class _ForwardRecord:
    def __init__(self, policy: Policy, batch: ProbeBatch) -> None:
        self.policy, self.rows, self.chunks = policy, len(batch.completion_ids), policy.chunks(batch)

    def directions(self, coefficients_KB: Tensor) -> list[Vector]:
        vectors = [origin(self.policy.parameters) for _ in coefficients_KB]
        with self.policy.ready():
            for chunk in self.chunks:
                for vector, coefficients_B in zip(vectors, coefficients_KB, strict=True):
                    grads = self.policy.gradient(chunk, coefficients_B[chunk.rows_R].to(self.policy.device))
                    for total, grad in zip(vector, grads, strict=True):
                        total += grad
        check_finite(vectors, list(self.policy.parameters))
        return vectors

    def projections(self, directions: Sequence[Vector], scales: Sequence[Vector | None]) -> Tensor:
        out = torch.zeros(len(scales), len(directions), self.rows, dtype=torch.float64)
        with self.policy.ready(), torch.no_grad(), _plain_attention():
            for chunk in self.chunks:
                for m, scale in enumerate(scales):
                    for k, direction in enumerate(directions):
                        out[m, k, chunk.rows_R] = self._along(chunk, scaled(direction, scale)).double().cpu()
        return out

    def _along(self, chunk: Chunk, tangent: Vector) -> Tensor:
        parameters = {name: p.detach() for name, p in self.policy.parameters.items()}
        tangents = {name: t.to(p.dtype) for (name, p), t in zip(parameters.items(), tangent, strict=True)}

        def logps(values: dict[str, Tensor]) -> Tensor:
            arguments = {"input_ids": chunk.ids_RS[:, :-1], "use_cache": False}
            logits = torch.func.functional_call(self.policy.model, values, (), arguments).logits
            return row_logps(logits, chunk, self.policy.temperature)

        return torch.func.jvp(logps, (parameters,), (tangents,))[1]


def _plain_attention():
    # The fused kernels have no forward-mode derivative.
    return nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)


def scaled(direction: Vector, scale: Vector | None) -> Vector:
    """The direction, multiplied elementwise by the scale where there is one."""
    return direction if scale is None else [v * s for v, s in zip(direction, scale, strict=True)]
