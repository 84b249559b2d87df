"""The engine at the head: scores by the use of the output layer alone, from one forward pass and without backward.

With hidden states h_t, z_t = W h_t + b, logits f(z_t) (a scale and a soft cap where the model has them) and sampling
temperature T, a completion's score by the head is

    S_i = (1/T) sum_t [(e_{y_t} - pi_t) * f'(z_t)] h_t^T        (vocabulary x hidden; a bias is one more column of h)

A projection of it is a sum over the vocabulary, and so is taken block by block: each block of S_i of both batches of a
pair is one matrix product, gives its block of the directions, and is projected on the other batch's. No direction and
no batch of logits is ever held whole. A head that is tied to the embedding is moved here as a head alone.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lossbench.errors import UsageError
from lossbench.probe.batches import Chunk, ProbeBatch
from lossbench.probe.scores import Engine, Policy, Vector, check_finite
from lossbench.sampling.decode import evaluation_mode

HEAD = "head"
KEPT_BYTES = 1 << 30
"""Hidden states of one batch that stay in memory; those beyond it go to a temporary file."""
BLOCK_NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 28}
"""Numbers of both batches' scores in one block of the vocabulary."""
_MAX_POSITIONS = 1 << 13
_NOT_FINITE = "the policy's logits are not finite: its lengths have no derivative"


class _Reached(Exception):
    """The forward pass has come to the head, with these hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


@dataclass(frozen=True)
class Head:
    """The output layer of a model: logits are f(W h + b), with f(z) = scale z, or cap tanh(scale z / cap).

    `used_V` marks the rows of W that are tokens at all: a padded vocabulary may be cut off or masked.
    """

    layer: nn.Linear
    scale: float
    cap: float | None
    used_V: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """That of all sums: float32, unless the weights are of float64."""
        return torch.float64 if self.layer.weight.dtype == torch.float64 else torch.float32

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Weight and, where there is one, bias."""
        return dict(self.layer.named_parameters())

    def rows(self, low: int, high: int) -> Tensor:
        """Rows of W, with the bias as a last column where there is one (v, H)."""
        return self.joined([part.detach()[low:high] for part in self.parameters.values()])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Weight-like and bias-like (v, H - 1), (v,) as one (v, H)."""
        weight_VH, *bias = (part.to(self.dtype) for part in parts)
        return torch.cat([weight_VH, bias[0][:, None]], 1) if bias else weight_VH

    def widened(self, hidden: Tensor) -> Tensor:
        """Hidden states in the dtype of the sums, with a last column of ones where there is a bias."""
        hidden = hidden.to(self.dtype)
        return hidden if self.layer.bias is None else torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)

    def logits(self, z: Tensor, low: int = 0) -> tuple[Tensor, Tensor | float]:
        """f(z) and f'(z) for rows `low` and on of W; unused rows get the least number."""
        y, slope = self.scale * z, self.scale
        if self.cap is not None:
            bent = torch.tanh(y / self.cap)
            y, slope = self.cap * bent, self.scale * (1 - bent.square())
        used_v = self.used_V[low : low + z.shape[-1]]
        return (y if bool(used_v.all()) else y.masked_fill(~used_v, torch.finfo(y.dtype).min)), slope


def find_head(model: nn.Module, ids_1S: Tensor) -> Head:
    """The model's head, with scale, soft cap and used rows as they show in its logits on one row of tokens.

    Raises UsageError for a model without an output embedding, or logits come from it in another way.
    """
    find: Any = getattr(model, "get_output_embeddings", lambda: None)
    layer = find()
    if not isinstance(layer, nn.Linear):
        what = "no output embedding" if layer is None else f"{type(layer).__name__} for a head"
        raise UsageError(f"the policy has {what}, and --params head needs a linear layer: give --params all")
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda *told: seen.append(told[2]))
    try:
        with evaluation_mode(model), torch.no_grad():
            y_SV = model(input_ids=ids_1S, use_cache=False).logits[0].double()
    finally:
        handle.remove()
    z_SV = seen[-1][0].double()[..., : y_SV.shape[-1]] if seen else y_SV[:, :0]
    if z_SV.shape != y_SV.shape:
        raise UsageError("the policy's logits do not come from its output embedding: give --params all")
    if bool(y_SV.isnan().any()):
        raise UsageError(_NOT_FINITE)
    used_V = torch.zeros(layer.out_features, dtype=torch.bool, device=y_SV.device)
    used_V[: y_SV.shape[1]] = (y_SV > -1e30).any(0)
    y, z = (part[:, used_V[: y_SV.shape[1]]] for part in (y_SV, z_SV))
    rounding = 3e-2 if layer.weight.dtype in (torch.float16, torch.bfloat16) else 1e-4
    config: Any = getattr(model, "config", None)
    numbers = _numbers(config.get_text_config() if hasattr(config, "get_text_config") else config)
    for cap in (None, *(number for name, number in numbers.items() if "cap" in name and number > 0)):
        straight = y if cap is None else cap * torch.atanh((y / cap).clamp(-1 + 1e-9, 1 - 1e-9))
        inner = torch.ones_like(y, dtype=torch.bool) if cap is None else y.abs() < 0.9 * cap
        scale = float((straight[inner] * z[inner]).sum() / z[inner].square().sum())
        # As the configuration has it, where it does: what is measured is rounded.
        stated = [1.0, *(x for number in numbers.values() if number > 0 for x in (number, 1 / number))]
        near = [x for x in stated if abs(x - scale) <= rounding * abs(scale)]
        scale = min(near, key=lambda x, scale=scale: abs(x - scale), default=scale)
        gap = Head(layer, scale, cap, torch.ones_like(used_V)).logits(z)[0] - y
        if float(gap.abs().max()) <= rounding * float(y.abs().max()):
            return Head(layer, scale, cap, used_V)
    raise UsageError("the policy changes its logits after the head in a way not known here: give --params all")


def _numbers(config: Any) -> dict[str, float]:
    """The configuration's numbers by name."""
    values = vars(config) if config is not None else {}
    return {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


class HeadEngine(Engine):
    """See the head of this module."""

    name = HEAD

    def __init__(self, policy: Policy, head: Head) -> None:
        self.policy, self.head, self.parameters = policy, head, head.parameters
        self.block_numbers = BLOCK_NUMBERS.get(policy.device.type, BLOCK_NUMBERS["cpu"])

    def record(self, batch: ProbeBatch) -> "HeadRecord":
        """Hidden states of `batch`, kept. Raises UsageError where its logits are not finite."""
        return HeadRecord(self, batch)

    def blocks(self, rows: int) -> Iterator[tuple[int, int]]:
        """First and last row of W of each block in which scores of so many completions are held."""
        vocabulary, hidden = self.head.layer.weight.shape
        step = max(1, self.block_numbers // (max(1, rows) * (hidden + 1)))
        return ((low, min(low + step, vocabulary)) for low in range(0, vocabulary, step))

    def hidden(self, chunk: Chunk) -> Tensor:
        """Hidden states that tell the chunk's completion tokens (R, T, H); 0 if absent."""
        handle = self.head.layer.register_forward_pre_hook(_stop)
        try:
            with evaluation_mode(self.policy.model), torch.no_grad():
                self.policy.model(input_ids=chunk.ids_RS[:, :-1], use_cache=False)
        except _Reached as reached:
            return reached.hidden[:, chunk.start - 1 :].masked_fill(~chunk.live_RT[..., None], 0)
        finally:
            handle.remove()
        raise UsageError("the policy's forward pass does not reach its output embedding: give --params all")

    def cross(
        self, records: "Sequence[HeadRecord]", coefficients: Sequence[Tensor], generators: Sequence[torch.Generator],
        random_directions: int, scales: Sequence[Vector | None],
    ) -> list[Tensor]:  # fmt: skip
        """See `Engine.cross`."""
        counts = [len(coefficients[1 - half]) + random_directions for half in (0, 1)]
        out = [torch.zeros(len(scales), counts[half], records[half].rows, dtype=torch.float64) for half in (0, 1)]
        joined = [None if scale is None else self.head.joined(scale) for scale in scales]
        for low, high in self.blocks(sum(record.rows for record in records)):
            scores = [record.scores(low, high) for record in records]
            for half in (0, 1):
                along_KP = coefficients[1 - half].to(scores[half]) @ scores[1 - half].flatten(1)
                shape = random_directions, along_KP.shape[1]
                drawn_KP = torch.randn(shape, generator=generators[half]).to(along_KP)
                _add_projections(scores[half], torch.cat([along_KP, drawn_KP]), joined, (low, high), out[half])
        return [_finite(found) for found in out]


def _stop(module: nn.Module, args: tuple[Any, ...]) -> None:
    raise _Reached(args[0])


def _add_projections(
    scores_BvH: Tensor, directions_KP: Tensor, scales: Sequence[Tensor | None], block: tuple[int, int], out_MKB: Tensor
) -> None:
    """Add a block's part of each row's projection on each direction, elementwise scaled, to `out_MKB`."""
    for m, scale_VH in enumerate(scales):
        scaled_KP = directions_KP if scale_VH is None else directions_KP * scale_VH[slice(*block)].flatten()
        out_MKB[m] += (scaled_KP @ scores_BvH.flatten(1).T).double().cpu()


def _finite(projections: Tensor) -> Tensor:
    if not bool(torch.isfinite(projections).all()):
        raise UsageError("the policy's gradient is not finite in its head: its lengths have no derivative")
    return projections


@dataclass(frozen=True)
class _Part:
    """A chunk's rows, its hidden states (R, T, H), what they tell (R, T), and log sum exp of their logits (R, T)."""

    rows_R: Tensor
    hidden_RTH: Tensor
    targets_RT: Tensor
    live_RT: Tensor
    norms_RT: Tensor


class HeadRecord:
    """Record of a batch of B completions: hidden states and log sum exp of the logits."""

    def __init__(self, engine: HeadEngine, batch: ProbeBatch) -> None:
        self._engine, self._head, self.rows = engine, engine.head, len(batch.completion_ids)
        self._temperature = engine.policy.temperature
        self._kept_bytes = 0
        self._parts = [self._part(chunk) for chunk in engine.policy.chunks(batch)]

    def _part(self, chunk: Chunk) -> _Part:
        hidden_RTH = self._engine.hidden(chunk)
        norms_RT = torch.full(chunk.live_RT.shape, -torch.inf, dtype=self._head.dtype, device=hidden_RTH.device)
        for low, high in self._engine.blocks(hidden_RTH.shape[0]):
            y_RTv, _ = self._logits(hidden_RTH, low, high)
            norms_RT = torch.logaddexp(norms_RT, (y_RTv / self._temperature).logsumexp(-1))
        if not bool(torch.isfinite(norms_RT).all()):
            raise UsageError(_NOT_FINITE)
        targets_RT = chunk.ids_RS[:, chunk.start :]
        return _Part(chunk.rows_R, self._keep(hidden_RTH), targets_RT, chunk.live_RT, norms_RT)

    def _keep(self, tensor: Tensor) -> Tensor:
        self._kept_bytes += tensor.nbytes
        if self._kept_bytes <= KEPT_BYTES:
            return tensor.contiguous()
        with tempfile.NamedTemporaryFile() as file:  # gone by name, and wholly once the tensor is
            kept = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
            return kept.copy_(tensor.flatten()).view(tensor.shape)

    def _logits(self, hidden_RTH: Tensor, low: int, high: int) -> tuple[Tensor, Tensor | float]:
        z_RTv = self._head.widened(hidden_RTH) @ self._head.rows(low, high).T
        return self._head.logits(z_RTv, low)

    def _residuals(self, part: _Part, low: int, high: int) -> tuple[Tensor, Tensor]:
        """(e_y - pi) f'(z) / T for a block of the vocabulary (R, T, v), and the hidden states (R, T, H)."""
        hidden_RTH = part.hidden_RTH.to(part.norms_RT.device)
        y_RTv, slope = self._logits(hidden_RTH, low, high)
        residual_RTv = (y_RTv / self._temperature).sub_(part.norms_RT[..., None]).exp_().neg_()
        inside_RT = (part.targets_RT >= low) & (part.targets_RT < high)
        place_RT1 = (part.targets_RT - low).clamp(0, high - low - 1)[..., None]
        residual_RTv.scatter_add_(-1, place_RT1, inside_RT[..., None].to(residual_RTv))
        residual_RTv.mul_(slope / self._temperature).masked_fill_(~part.live_RT[..., None], 0)
        return residual_RTv, self._head.widened(hidden_RTH)

    def scores(self, low: int, high: int) -> Tensor:
        """Rows `low` to `high` of each completion's score (B, v, H); 0 for an empty completion."""
        width = self._head.layer.in_features + (self._head.layer.bias is not None)
        out_BvH = torch.zeros(
            self.rows, high - low, width, dtype=self._head.dtype, device=self._head.layer.weight.device
        )
        for part in self._parts:
            residual_RTv, hidden_RTH = self._residuals(part, low, high)
            out_BvH[part.rows_R] = residual_RTv.transpose(1, 2) @ hidden_RTH
        return out_BvH

    def directions(self, coefficients_KB: Tensor) -> list[Vector]:
        """For each k the sum over rows of coefficient times score. Raises UsageError if it is not finite."""
        vectors = [
            [torch.zeros(p.shape, dtype=self._head.dtype, device=p.device) for p in self._head.parameters.values()]
            for _ in coefficients_KB
        ]
        for low, high in self._engine.blocks(len(coefficients_KB)):
            for part in self._parts:
                residual_RTv, hidden_RTH = self._residuals(part, low, high)
                for vector, coefficients_B in zip(vectors, coefficients_KB, strict=True):
                    weights_R11 = coefficients_B[part.rows_R].to(residual_RTv)[:, None, None]
                    found_vH = (residual_RTv * weights_R11).flatten(0, 1).T @ hidden_RTH.flatten(0, 1)
                    vector[0][low:high] += found_vH[:, : self._head.layer.in_features]
                    if len(vector) > 1:
                        vector[1][low:high] += found_vH[:, -1]
        check_finite(vectors, list(self._head.parameters))
        return vectors

    def projections(self, directions: Sequence[Vector], scales: Sequence[Vector | None]) -> Tensor:
        """Each row's score along each direction, multiplied by each scale: float64 (scales, K, B) on the CPU."""
        out = torch.zeros(len(scales), len(directions), self.rows, dtype=torch.float64)
        joined, along = ([None if v is None else self._head.joined(v) for v in found] for found in (scales, directions))
        for low, high in self._engine.blocks(self.rows):
            block_KP = torch.stack([v[low:high].flatten() for v in along if v is not None])
            _add_projections(self.scores(low, high), block_KP, joined, (low, high), out)
        return _finite(out)


def make_head_engine(
    model: nn.Module, check_on: ProbeBatch, *, temperature: float = 1.0, max_positions: int | None = None
) -> HeadEngine:
    """The engine of a model whose logits on a completion of `check_on` show how they come from its head.

    `max_positions` bounds rows x tokens of one pass. Raises UsageError as `find_head` does.
    """
    device = next(model.parameters()).device
    row = max(range(len(check_on.completion_ids)), key=lambda i: len(check_on.completion_ids[i]))
    ids = [*check_on.prompt_ids[row], *check_on.completion_ids[row]][:64]
    head = find_head(model, torch.tensor([ids], device=device))
    return HeadEngine(Policy(model, head.parameters, temperature, max_positions or _MAX_POSITIONS), head)
