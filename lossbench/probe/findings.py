"""Findings of a probe: everything that is said of one probed policy, as plain records."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lossbench.loss.modes import Mode
from lossbench.probe.dose_response import (
    ALPHAS,
    DoseResponse,
    LengthFacts,
    Mechanism,
    dose_response,
    length_facts,
    mechanism,
)
from lossbench.probe.drift import Drift, DriftTable
from lossbench.probe.forecast import Forecast, forecast
from lossbench.probe.projections import Projections
from lossbench.probe.response import CurvePoint, Parts, Slopes, drift_parts, response_curves, sentence, slopes


@dataclass(frozen=True)
class Findings:
    """Lengths, drifts with their parts, response, dose, mechanism and forecasts of one policy at one training step.

    `parameters` says what was differentiated by. `forecasts` are empty without a size of training or the adam metric.
    """

    policy: str
    step: int
    parameters: str
    sentence: str
    pairs: int
    completions: int
    truncated_frac: float | None
    lengths: list[LengthFacts]
    drifts: list[Drift]
    parts: list[Parts]
    slopes: list[Slopes]
    curves: list[CurvePoint]
    doses: list[DoseResponse]
    mechanism: list[Mechanism]
    forecasts: list[Forecast]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def findings(
    probe: Projections, modes: Sequence[Mode], alphas: Sequence[float] = ALPHAS,
    training: dict[str, Any] | None = None, micro_batch_rows: int | None = None,
) -> Findings:  # fmt: skip
    """Analyse one probe for `modes`, without a model.

    `training` gives steps, rows_per_step, learning_rate and seeds of the run to forecast; `micro_batch_rows` cuts
    windows for micro-token-mean.
    """
    table = DriftTable(probe, micro_batch_rows)
    drifts = table.rows(modes)
    parts = [drift_parts(table, mode, metric) for metric in probe.metrics for mode in modes]
    return Findings(
        probe.policy, probe.step, probe.parameters, sentence(drifts, parts), len(probe.windows_of_pair()),
        len(probe.pool("lengths_N")), _truncated_frac(probe), length_facts(probe), drifts, parts,
        [slopes(probe, metric) for metric in probe.metrics],
        [point for metric in probe.metrics for point in response_curves(probe, metric)],
        [dose_response(table, name, metric, alphas) for name in ("incorrect", "correct") for metric in probe.metrics],
        [mechanism(probe, mode, micro_batch_rows) for mode in modes],
        [forecast(table, mode, **training) for mode in modes] if training and "adam" in probe.metrics else [],
    )  # fmt: skip


def _truncated_frac(probe: Projections) -> float | None:
    """The share of completions that did not end by themselves, of those of which it is known."""
    known = [bool(ended) for ended in probe.pool("terminated_N") if ended is not None]
    return 1 - sum(known) / len(known) if known else None
