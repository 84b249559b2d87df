"""Probes of a run while it trains: what they write, what the report makes of them, what they cost a step."""

import time
from types import SimpleNamespace

import pytest
from support.hazard_policy import EVEN_TASK
from support.sweeps import quick_run
from support.trainer import model_folder
from typer.testing import CliRunner

from lossbench.claims.probe_evidence import probe_section
from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.metrics.length import run_metrics
from lossbench.policies.load import load_policy
from lossbench.probe.realised import trained_drifts
from lossbench.store.read import load
from lossbench.tasks import make_task
from lossbench.training.evaluate import probe
from lossbench.training.run import Measured


@pytest.fixture
def task() -> str:
    return EVEN_TASK


def test_a_sweep_can_be_probed_while_it_trains(tmp_path, task):
    out = tmp_path / "sweep"
    small = {"steps": 6, "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 6,
             "eval_samples": 0}  # fmt: skip
    flags = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    model = model_folder(str(tmp_path))
    result = CliRunner().invoke(
        app, ["sweep", "--modes", "grpo,dr_grpo", "--seeds", "1", "--model", model, "--task", task, "--jobs", "1",
              "--probe-every", "3", "--out", str(out), "--quiet", *flags],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    sweep = load(out)
    for run_id in sweep.run_ids:
        frame = sweep.run_table(run_id, "probe").to_pandas()
        # 8 pairs x 2 halves x 16 completions x 5 directions x 2 metrics, of the first policy and after 3 of 6 steps
        assert frame.groupby("step").size().to_dict() == {0: 2560, 3: 2560}
    found = trained_drifts(sweep)
    assert [(point.step, point.step_end) for point in found] == [(0, 3), (3, 6)] * 2
    section = probe_section(sweep, run_metrics(sweep))
    assert section is not None and section.agreement is not None and section.agreement.units == 2


def test_the_time_of_a_probe_is_not_the_steps(task, tmp_path):
    spec = quick_run(probe_every=1, per_device_train_batch_size=16, num_generations=4)
    policy = load_policy(model_folder(str(tmp_path)), device="cpu", dtype="float32")
    left_out: list[float] = []
    began = time.perf_counter()
    appended: list[int] = []
    Measured(
        SimpleNamespace(leave_out=left_out.append),  # type: ignore[arg-type]
        1,
        lambda step: probe(spec, policy, make_task(task, {}), step),
        lambda step, rows: appended.append(len(rows)),
    ).at(1)
    assert appended[0] > 0 and 0 < left_out[0] <= time.perf_counter() - began


@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=5"])
def test_a_distribution_that_is_not_the_policys_own_is_refused_by_the_plan(setting):
    result = CliRunner().invoke(app, ["sweep", "--probe-every", "3", "--set", setting, "--dry-run"])
    assert isinstance(result.exception, UsageError)
    assert "probe_every = 3" in str(result.exception) and "valid with top_p 1 and top_k 0" in str(result.exception)
