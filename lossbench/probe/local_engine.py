"""The fast engine: projections of completions' scores from each module's own inputs and output gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lossbench.probe.batches import Chunk, ProbeBatch
from lossbench.probe.module_products import Owner, Rows, Use, add_gradients, add_projections
from lossbench.probe.scores import Engine, ForwardEngine, Policy, Record, Vector, check_finite, origin

# Numbers that a record may keep (256 MB in float32); a larger batch is passed through the model again when needed.
_KEPT_NUMBERS = 1 << 26
_BYTES_PER_PASS = 4 << 30
_CHECK_ROWS = 4


class NotLocal(Exception):
    """A module's use of its parameters cannot be attributed to rows."""


@dataclass(frozen=True)
class _Tape:
    """Record of a backward pass: the row of each of n tokens, and every use of selected parameters."""

    rows: Rows
    uses: list[Use]

    def numbers(self) -> int:
        return sum(use.inputs_nX.numel() + use.grads_nY.numel() for use in self.uses)


def _joined(tapes: Sequence[_Tape]) -> list[_Tape]:
    """Several chunks' tapes as one: fewer, larger matrix products."""
    if not tapes:
        return []
    uses = [
        Use(parts[0].owner, torch.cat([p.inputs_nX for p in parts]), torch.cat([p.grads_nY for p in parts]))
        for parts in zip(*(tape.uses for tape in tapes), strict=True)
    ]
    return [_Tape(Rows(torch.cat([tape.rows.rows_n for tape in tapes])), uses)]


class LocalEngine(Engine):
    """See the head of `lossbench.probe.scores`."""

    name = "local"

    def __init__(self, policy: Policy) -> None:
        self.policy, self.parameters = policy, policy.parameters
        self.numbers_per_token = 0.0  # of a tape; known from the first one on
        place_of = {id(p): place for place, p in enumerate(policy.parameters.values())}
        self._owners: list[Owner] = []
        for module in policy.model.modules():
            own = [(name, place_of[id(p)]) for name, p in module.named_parameters(recurse=False) if id(p) in place_of]
            if own:
                names, places = zip(*own, strict=True)
                self._owners.append(Owner(module, names, places))

    def record(self, batch: ProbeBatch) -> Record:
        """A record of `batch`. Raises NotLocal where a module's tokens cannot be told apart by row."""
        return _LocalRecord(self, batch)

    def tape(self, chunk: Chunk) -> _Tape:
        """One forward pass over the chunk and one backward pass to the outputs of the modules, not to their weights."""
        calls: list[tuple[Owner, Tensor, Tensor]] = []
        with self.policy.ready():
            handles = [self._listen(owner, calls) for owner in self._owners]
            try:
                total = self.policy.logps(chunk).sum()
            finally:
                for handle in handles:
                    handle.remove()
            grads = list(torch.autograd.grad(total, [output for _, _, output in calls], allow_unused=True))
        told_RS = chunk.real_RS[:, 1:]  # a position matters where the token after it is told
        rows_n = chunk.rows_R.to(told_RS.device)[:, None].expand(told_RS.shape)[told_RS]
        uses = []
        while calls:  # emptied as it is copied: the whole pass and its copy would be twice the memory
            (owner, inputs, output), grad = calls.pop(), grads.pop()
            if inputs.shape[:2] != told_RS.shape or output.shape[:2] != told_RS.shape:
                raise NotLocal(f"{type(owner.module).__name__} does not keep rows and positions apart")
            if grad is not None:
                uses.append(Use(owner, inputs.detach()[told_RS], grad[told_RS]))
        tape = _Tape(Rows(rows_n), uses[::-1])
        self.numbers_per_token = tape.numbers() / max(1, len(rows_n))
        return tape

    @staticmethod
    def _listen(owner: Owner, calls: list[tuple[Owner, Tensor, Tensor]]) -> Any:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = [*args, *kwargs.values()]
            if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(output, Tensor):
                raise NotLocal(f"{type(module).__name__} takes or gives more than one tensor")
            calls.append((owner, given[0], output))

        return owner.module.register_forward_hook(note, with_kwargs=True)


class _LocalRecord:
    def __init__(self, engine: LocalEngine, batch: ProbeBatch) -> None:
        self._engine, self._rows = engine, len(batch.completion_ids)
        self._chunks = engine.policy.chunks(batch)
        self._kept = self._keep()

    def _keep(self) -> list[_Tape] | None:
        """The whole batch's tape, or None where it is too large to keep."""
        tokens = sum(int(chunk.real_RS[:, 1:].sum()) for chunk in self._chunks)
        if tokens * self._engine.numbers_per_token > _KEPT_NUMBERS:
            return None
        tapes, numbers = [], 0
        for chunk in self._chunks:
            tapes.append(self._engine.tape(chunk))
            numbers += tapes[-1].numbers()
            if numbers > _KEPT_NUMBERS:
                return None
        return _joined(tapes)

    def _uses(self) -> Iterator[tuple[Use, Rows]]:
        """Every use of selected parameters; of a tape that is not kept nothing is left when the next pass begins."""
        if self._kept is not None:
            yield from ((use, tape.rows) for tape in self._kept for use in tape.uses)
            return
        for chunk in self._chunks:
            tape = self._engine.tape(chunk)
            while tape.uses:  # from the last module, whose outputs are the widest, to the first
                yield tape.uses.pop(), tape.rows

    def directions(self, coefficients_KB: Tensor) -> list[Vector]:
        vectors = [origin(self._engine.parameters) for _ in coefficients_KB]
        with self._engine.policy.ready():
            for use, rows in self._uses():
                add_gradients(use, rows, coefficients_KB, vectors)
        check_finite(vectors, list(self._engine.parameters))
        return vectors

    def projections(self, directions: Sequence[Vector], scales: Sequence[Vector | None]) -> Tensor:
        out = torch.zeros(len(scales), len(directions), self._rows, dtype=torch.float64)
        with self._engine.policy.ready():
            for use, rows in self._uses():
                add_projections(use, rows, directions, scales, out)
        return out


def default_max_positions(model: Any) -> int:
    """Positions of one pass that fit in about 4 GiB, from the sizes that the model's configuration names."""
    config = getattr(model, "config", None)
    sizes = [getattr(config, name, None) or 0 for name in ("vocab_size", "hidden_size", "num_hidden_layers")]
    vocabulary, hidden, layers = sizes
    # logits, their softmax and gradient; about 24 hidden-size numbers per layer kept for the backward pass
    return max(1, int(_BYTES_PER_PASS / (4 * (3 * vocabulary + 24 * hidden * layers) + 1)))


def make_engine(
    model: nn.Module, parameters: dict[str, nn.Parameter], check_on: ProbeBatch, *, temperature: float = 1.0,
    max_positions: int | None = None,
) -> Engine:  # fmt: skip
    """The fast engine where it gives the policy's ordinary gradient on a few rows of `check_on`, else the reference.

    `max_positions` bounds rows x tokens of one pass. Raises UsageError for gradients that are not finite.
    """
    policy = Policy(model, parameters, temperature, max_positions or default_max_positions(model))
    reference, local = ForwardEngine(policy), LocalEngine(policy)
    try:
        return local if _agree(local, reference, first_rows(check_on, _CHECK_ROWS)) else reference
    except NotLocal:
        return reference


def first_rows(batch: ProbeBatch, count: int) -> ProbeBatch:
    """The first `count` rows of a batch."""
    return ProbeBatch(**{name: values[:count] for name, values in vars(batch).items()})


def _agree(local: LocalEngine, reference: ForwardEngine, batch: ProbeBatch) -> bool:
    """Whether sum_i u_i <score_i, z> of the fast engine is the ordinary <sum_i u_i score_i, z>, for random u and z."""
    generator = torch.Generator().manual_seed(0)
    coefficients_1B = torch.randn(1, len(batch.completion_ids), generator=generator)
    parameters = local.parameters.values()
    z = [torch.randn(p.shape, generator=generator).to(p.device) for p in parameters]
    gradient = reference.record(batch).directions(coefficients_1B)[0]
    expected = float(sum((g * v).double().sum() for g, v in zip(gradient, z, strict=True)))
    record = local.record(batch)
    terms_B = record.projections([z], [None])[0, 0] * coefficients_1B[0]
    mine = record.directions(coefficients_1B)[0]
    gap = sum(float((a - b).square().sum()) for a, b in zip(mine, gradient, strict=True)) ** 0.5
    size = sum(float(g.square().sum()) for g in gradient) ** 0.5
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters)
    tolerance = 0.05 if half else 1e-3
    sums_agree = abs(float(terms_B.sum()) - expected) <= tolerance * max(float(terms_B.abs().sum()), size)
    return sums_agree and gap <= tolerance * size
