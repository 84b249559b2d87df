"""Runs that stop in the middle and go on: the result is that of the run that was never stopped."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from support.sweeps import (
    MOMENTS,
    Watcher,
    assert_readable,
    assert_same_tables,
    bytes_below,
    killed_run,
    planned,
    quick_recipe,
    quick_run,
    statuses,
    tables,
)

from lossbench.policies.tiny import TinyPolicy
from lossbench.policies.warmstart import ensure_policy, policy_path
from lossbench.sweep.executors.local import LocalExecutor
from lossbench.sweep.folder import run_dir, run_state
from lossbench.sweep.schedule import left_to_do, run_all

# 40 prompts per generation of the hundred there are: the first pass over them ends within the third generation, and the
# third pass begins with the sixth.
LONG = {
    "modes": ["dapo"], "seeds": [1], "steps": 8, "per_device_train_batch_size": 80, "max_completion_length": 24,
    "eval_samples": 1, "eval_every": 3, "checkpoint_every": 2,
}  # fmt: skip
TWO_STEPS_PER_GENERATION = {
    "modes": ["bnpo"], "per_device_train_batch_size": 20, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
    "num_iterations": 2, "steps": 14, "checkpoint_every": 6, "beta": 0.1,
}  # fmt: skip


class Stopped(BaseException):
    """Not an exception that anything on the way would take for its own."""


def run_until(step: int | None, spec, folder: Path) -> None:
    """Make the run in this process, or its steps up to `step`."""
    from lossbench.training.run import execute

    def on_step(done: int, *_: object) -> None:
        if done == step:
            raise Stopped

    execute(spec, run_dir(folder, spec.run_id), on_step)


@pytest.mark.parametrize(
    ("changes", "stop_at", "from_step"),
    [
        (LONG, 7, 6),
        pytest.param({**LONG, **TWO_STEPS_PER_GENERATION}, 11, 8, marks=pytest.mark.slow),
        pytest.param({**LONG, "sampler": "generate"}, 7, 6, marks=pytest.mark.slow),
    ],
    ids=["one step per generation", "generations used twice, by two windows each", "generate"],
)
def test_a_run_stopped_in_the_third_pass_over_the_prompts_ends_as_if_it_had_not_been(
    tmp_path, changes, stop_at, from_step
):
    spec = quick_run(**changes)
    run_until(None, spec, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_until(stop_at, spec, tmp_path / "stopped")
    run_until(None, spec, tmp_path / "stopped")
    assert run_state(tmp_path / "stopped", spec.run_id)["resumed_from_step"] == from_step
    assert_same_tables(tmp_path / "whole", tmp_path / "stopped", spec)
    found = tables(tmp_path / "stopped", spec)
    assert found["steps"]["step"].tolist() == list(range(1, spec.settings.steps + 1))
    rows = found["rollouts"].sort_values(["generation", "group", "sample"])
    assert len(rows) == spec.settings.generations() * spec.settings.rows_per_generation()
    assert not rows.duplicated(["generation", "group", "sample"]).any()
    resumed = rows[rows["generation"] > rows.loc[rows["step"] <= from_step, "generation"].max()]
    first_pass = rows.drop_duplicates(["generation", "group"]).head(100)
    assert len(set(first_pass["prompt_id"])) == 100, "a pass visits every prompt"
    assert resumed["prompt_id"].tolist()[:20] != rows["prompt_id"].tolist()[:20], "not the first pass once more"
    assert sorted(path.name for path in run_dir(tmp_path / "stopped", spec.run_id).iterdir()) == [
        "evals.parquet", "rollouts.parquet", "run.json", "steps.parquet",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `test_killed`, not killed."""
    folder = tmp_path_factory.mktemp("reference")
    recipe = quick_recipe(**KILLED)
    run_all(folder, planned(folder, recipe), LocalExecutor([()]), Watcher())
    return folder


KILLED = {"modes": ["grpo"], "eval_samples": 1, "checkpoint_every": 1}
FAST_MOMENTS = ("writing a part file", "before a checkpoint is sealed")


@pytest.mark.parametrize(
    "moment", [m if m in FAST_MOMENTS else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS]
)
def test_a_worker_killed_at_any_moment_loses_nothing_that_was_finished(tmp_path, reference, moment):
    runs = planned(tmp_path, quick_recipe(**KILLED))
    (tmp_path / "moment.json").write_text(json.dumps(moment))
    watcher = Watcher()
    run_all(tmp_path, runs, LocalExecutor([()], execute=killed_run), watcher)
    assert not (tmp_path / "moment.json").exists()
    assert_readable(tmp_path)
    recorded_before = moment in ("before the parts are dropped", "before the checkpoints are dropped")
    assert watcher.reasons == {runs[0].run_id: None if recorded_before else "killed by signal 9"}
    assert statuses(tmp_path, runs) == ["completed" if recorded_before else "failed"]
    assert left_to_do(tmp_path, runs) == []
    run_all(tmp_path, left_to_do(tmp_path, runs, retry_failed=True), LocalExecutor([()], execute=killed_run), watcher)
    assert statuses(tmp_path, runs) == ["completed"]
    assert_readable(tmp_path)
    assert_same_tables(reference, tmp_path, runs[0])
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_warm_start_killed_in_the_middle_is_built_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    policy = TinyPolicy(
        hidden_size=8, layers=1, heads=2, short_steps=2, long_steps=1, warmstart_batch=4, least_knowledge=0.0
    )
    child = os.fork()
    if child == 0:
        try:
            ensure_policy(policy, lambda done, total: os.kill(os.getpid(), 9) if done == 2 else None)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert not policy_path(policy).exists()
    path = ensure_policy(policy)
    assert (path / "model.safetensors").stat().st_size > 0
    assert [entry.name for entry in path.parent.iterdir() if entry.is_dir()] == [path.name]


def test_the_same_sweep_again_changes_no_byte(tmp_path):
    runs = planned(tmp_path, quick_recipe(steps=2))
    run_all(tmp_path, runs, LocalExecutor([(), ()]), Watcher())
    assert statuses(tmp_path, runs) == ["completed"] * 2
    before = bytes_below(tmp_path)
    more = planned(tmp_path, quick_recipe(steps=2, modes=["grpo", "dr_grpo", "dapo"]))
    run_all(tmp_path, left_to_do(tmp_path, more), LocalExecutor([(), ()]), Watcher())
    after = bytes_below(tmp_path)
    assert statuses(tmp_path, more) == ["completed"] * 3
    assert {name for name in before if before[name] != after[name]} == {"sweep.json"}


def test_a_run_without_a_checkpoint_starts_over(tmp_path):
    spec = quick_run()
    with pytest.raises(Stopped):
        run_until(3, spec, tmp_path)
    state = run_state(tmp_path, spec.run_id)
    assert (state["status"], state["reason"]) == ("failed", "Stopped:")
    assert pd.concat(pd.read_parquet(p) for p in run_dir(tmp_path, spec.run_id).glob("parts/steps-*")).shape[0] == 3
    run_until(None, spec, tmp_path)
    assert run_state(tmp_path, spec.run_id)["resumed_from_step"] is None
    assert tables(tmp_path, spec)["steps"]["step"].tolist() == [1, 2, 3, 4]
