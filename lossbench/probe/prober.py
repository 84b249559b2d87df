"""The probe: pairs of frozen rollout batches in, each completion's projections on length directions out.

A direction of length is the gradient of the mean length of a class of completions (incorrect, correct, all), estimated
on one batch of a pair as h = 1/(n-1) sum_i (L_i - mean L) grad log pi(o_i): the score-function estimate, with n/(n-1)
because the mean comes from the same rows. The completions of the other batch are projected on it. The gradient of any
mode on that batch is a weighted sum of the same scores, so what a mode does to the length is a weighted sum of the
projections (`lossbench.probe.drift`), and a further mode costs no pass through the model. Each batch serves both
ways. Random directions z give gradient norms: E (g.z)^2 = |g|^2.

Two metrics: `plain`, the step is the gradient; `adam`, the step is the gradient divided by the root of its second
moments, which come from a few frozen batches of their own and are floored at 1 % of each tensor's mean.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch

from lossbench.errors import UsageError, unknown
from lossbench.loss.advantages import advantages
from lossbench.probe.batches import MOMENT_STREAM, PAIR_STREAM, BatchSource, PolicySource, ProbeBatch, Sampling
from lossbench.probe.head_engine import HEAD, make_head_engine
from lossbench.probe.local_engine import make_engine
from lossbench.probe.parameters import select_parameters
from lossbench.probe.scores import Engine, Vector

Metric = Literal["plain", "adam"]
METRICS: tuple[Metric, ...] = get_args(Metric)
ALL = "all"
DIRECTIONS = ("incorrect", "correct", "all")
MOMENT_FLOOR = 0.01
"""Second moments are not let below this share of their tensor's mean."""


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of a probe; the defaults are the ones that its figures are stated for.

    `params` are "head" (`lossbench.probe.head_engine`), "all" trainable parameters, or parts of names
    (`select_parameters`); without them all.
    """

    sampling: Sampling = field(default_factory=Sampling)
    pairs: int = 40
    metrics: tuple[Metric, ...] = METRICS
    random_directions: int = 2
    moment_batches: int = 8
    params: tuple[str, ...] = ()
    max_positions: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts below 1 and unknown metrics."""
        for name in ("pairs", "random_directions", "moment_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: give 1 or more")
        if not self.metrics:
            raise UsageError(f"no metric: valid are {', '.join(METRICS)}")
        for metric in self.metrics:
            if metric not in METRICS:
                raise UsageError(unknown("metric", metric, METRICS))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the file's metadata."""
        return asdict(self)


class Prober:
    """A frozen policy ready to be probed: its engine and, for the adam metric, its second moments."""

    def __init__(self, model: Any, source: BatchSource, settings: ProbeSettings) -> None:
        self.source, self.settings = source, settings
        bounds: dict[str, Any] = {"temperature": settings.sampling.temperature, "max_positions": settings.max_positions}
        self.engine: Engine
        if settings.params == (HEAD,):
            self.engine = make_head_engine(model, source(MOMENT_STREAM, 0), **bounds)
        else:
            parameters = select_parameters(model, () if settings.params == (ALL,) else settings.params)
            self.engine = make_engine(model, parameters, source(MOMENT_STREAM, 0), **bounds)
        self._scales = [None if metric == "plain" else self._inverse_roots() for metric in settings.metrics]

    def _inverse_roots(self) -> Vector:
        """1 / root of the second moments of the gradient of plain summed policy gradient over frozen batches."""
        totals: Vector = []
        count = self.settings.moment_batches
        for number in range(count):
            batch = self.source(MOMENT_STREAM, number)
            coefficients_1B = centred_rewards(batch)[None] / len(batch.reward)
            (gradient,) = self.engine.record(batch).directions(coefficients_1B)
            squares = [g.square_().div_(count) for g in gradient]
            totals = [a.add_(b) for a, b in zip(totals, squares, strict=True)] if totals else squares
        if not any(bool(total.any()) for total in totals):
            raise UsageError(
                f"no group of {count} batches has rewards that differ: every mode's gradient is 0, so no loss could "
                "move the length; use an easier or a harder task, or a larger num_generations"
            )
        return [total.clamp_(min=max(float(total.mean()) * MOMENT_FLOOR, 1e-30)).rsqrt_() for total in totals]

    def pair(self, number: int, step: int = 0) -> dict[str, list[Any]]:
        """Columns of the `probe` table for one pair of batches (`policy` is left to the caller)."""
        batches = [self.source(PAIR_STREAM, 2 * number + half) for half in (0, 1)]
        lengths = [{name: c for name, c in length_coefficients(b).items() if c is not None} for b in batches]
        # Half 0 is projected on the directions of half 1, and the other way round.
        names = [[*lengths[1 - half], *self._random_names] for half in (0, 1)]
        found = self.engine.cross(
            [self.engine.record(batch) for batch in batches],
            [torch.stack([*found.values()]) if found else torch.zeros(0, len(b.reward))
             for found, b in zip(lengths, batches, strict=True)],
            [self._generator(2 * number + half) for half in (0, 1)],
            self.settings.random_directions,
            self._scales,
        )  # fmt: skip
        columns: dict[str, list[Any]] = {}
        for half, projections_MKB in enumerate(found):
            part = self._columns(batches[half], names[half], np.asarray(projections_MKB), number, half, step)
            for name, values in part.items():
                columns.setdefault(name, []).extend(values)
        return columns

    @property
    def _random_names(self) -> list[str]:
        return [f"random-{k}" for k in range(self.settings.random_directions)]

    def _generator(self, number: int) -> torch.Generator:
        seed = np.random.SeedSequence([self.settings.sampling.seed, number]).generate_state(1)[0]
        return torch.Generator().manual_seed(int(seed))

    def _columns(
        self, batch: ProbeBatch, names: list[str], projections: np.ndarray, pair: int, half: int, step: int
    ) -> dict[str, list[Any]]:
        """The half's part of the table, by metric, direction and completion; null where a direction is not there."""
        every = [*DIRECTIONS, *self._random_names]
        rows = len(batch.reward)
        blocks = [(m, metric, name) for m, metric in enumerate(self.settings.metrics) for name in every]
        values: list[float | None] = []
        for m, _, name in blocks:
            values += projections[m, names.index(name)].tolist() if name in names else [None] * rows
        completion = {
            "prompt_id": batch.prompt_id, "group": batch.group, "sample": batch.sample,
            "length_tokens": batch.lengths_B.tolist(), "terminated": batch.terminated, "reward": batch.reward,
            "correct": batch.correct,
        }  # fmt: skip
        constant = {"step": step, "pair": pair, "half": half}
        return {
            **{name: [value] * (rows * len(blocks)) for name, value in constant.items()},
            **{name: list(column) * len(blocks) for name, column in completion.items()},
            "direction": [name for _, _, name in blocks for _ in range(rows)],
            "metric": [metric for _, metric, _ in blocks for _ in range(rows)],
            "projection": values,
        }


def centred_rewards(batch: ProbeBatch) -> torch.Tensor:
    """Reward minus the group's mean, float64 (B)."""
    return torch.from_numpy(advantages(batch.reward, batch.group, "none"))


def length_coefficients(batch: ProbeBatch) -> dict[str, torch.Tensor | None]:
    """For each class of completions the coefficients (L_i - mean L) / (n - 1) of its rows, 0 elsewhere, float64 (B).

    None for a class with fewer than two completions, whose mean length has no estimate of a gradient.
    """
    lengths_B = batch.lengths_B.double()
    correct_B = torch.tensor(batch.correct)
    classes = {"incorrect": ~correct_B, "correct": correct_B, "all": torch.ones_like(correct_B)}
    return {name: _centred_lengths(lengths_B, inside_B) for name, inside_B in classes.items()}


def _centred_lengths(lengths_B: torch.Tensor, inside_B: torch.Tensor) -> torch.Tensor | None:
    count = int(inside_B.sum())
    if count < 2:
        return None
    return torch.where(inside_B, lengths_B - lengths_B[inside_B].mean(), 0.0) / (count - 1)


def probe_now(
    model: Any, tokenizer: Any, task: Any, settings: ProbeSettings, *, policy: str, step: int
) -> dict[str, list[Any]]:
    """All columns of the `probe` table for the model as it is: what a training run calls between two steps.

    Weights, gradients, modes and global random numbers are left as they were. Raises UsageError where the policy cannot
    be probed (no EOS, logits or gradients that are not finite, rewards that never differ).
    """
    prober = Prober(model, PolicySource(model, tokenizer, task, settings.sampling), settings)
    columns = joined([prober.pair(number, step) for number in range(settings.pairs)])
    return {"policy": [policy] * len(columns["pair"]), **columns}


def joined(parts: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Columns of several pairs as one table."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]} if parts else {}
