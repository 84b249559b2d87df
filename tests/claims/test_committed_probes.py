"""What the committed probes of the built-in policies must show, and the null control must not."""

from itertools import pairwise
from pathlib import Path

import pytest

from lossbench.loss.modes import parse_mode
from lossbench.probe.dose_response import dose_response
from lossbench.probe.drift import DriftTable
from lossbench.probe.projections import read_projections

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
SEQ_MEAN = parse_mode("grpo@seq-mean-token-mean/none")


def table(file: str) -> DriftTable:
    (probe,) = read_projections(REFERENCE / file)
    assert len(probe.windows) == 2 * 40 and all(len(window.lengths_N) == 128 for window in probe.windows)
    return DriftTable(probe)


@pytest.mark.parametrize("warm_start", [0, 1])
def test_the_bias_is_seen_without_training_and_falls_with_alpha(warm_start):
    found = table(f"dr_grpo/probe/selfcheck-s{warm_start}.parquet")
    drift = found.drift(SEQ_MEAN, "incorrect", "plain", "row-weight")
    assert drift.t is not None and drift.t >= 6
    dose = dose_response(found)
    assert all(a.drift.drift > b.drift.drift for a, b in pairwise(dose.points))  # type: ignore[operator]
    assert dose.zero == 1.0


def test_where_checks_carry_no_information_the_probe_sees_nothing():
    drift = table("null_probe/probe/selfcheck-null-s0.parquet").drift(SEQ_MEAN, "incorrect", "plain", "row-weight")
    assert drift.t is not None and abs(drift.t) < 2.5
