"""Slices of a plan, slots of a machine, checkpoints that count, and mistakes in how to run."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.sweeps import Pretend, assert_readable, planned, quick_recipe, quick_run

from lossbench.errors import UsageError
from lossbench.store.read import load
from lossbench.sweep.executors.base import Ended, Resources
from lossbench.sweep.executors.local import LocalExecutor
from lossbench.sweep.executors.slots import plan_slots
from lossbench.sweep.folder import check_run_folders, run_dir
from lossbench.sweep.plan import parse_shard, plan, take_shard
from lossbench.training.checkpoint import checkpoint_steps, newest_checkpoint, seal
from lossbench.training.run_spec import Settings

FOUR = {"modes": ["grpo", "dr_grpo"], "seeds": [0, 1]}


def test_slices_cover_the_plan_once():
    runs = plan(quick_recipe(modes=["grpo", "dr_grpo", "dapo"], seeds=[0, 1, 2]))
    slices = [take_shard(runs, (i, 4)) for i in (1, 2, 3, 4)]
    assert sorted(spec.run_id for part in slices for spec in part) == sorted(spec.run_id for spec in runs)
    assert [len(part) for part in slices] == [3, 2, 2, 2]
    assert parse_shard(None) is None and parse_shard(" 2/3 ") == (2, 3)


@pytest.mark.parametrize("text", ["3/2", "0/2", "1/0", "2", "a/b", "-1/2", ""])
def test_what_is_not_a_slice_is_refused(text):
    with pytest.raises(UsageError, match="give i/n"):
        parse_shard(text)


def slots(gpus=0, cores=4, **wanted):
    return plan_slots(Resources(**wanted), [str(i) for i in range(gpus)], cores)


def test_without_gpus_a_slot_is_a_core_per_process():
    assert slots() == [()] * 4
    assert slots(processes=2) == [()] * 2
    assert slots(cores=1, processes=2) == [()]
    assert slots(jobs=7) == [()] * 7


def test_with_gpus_a_run_gets_one_each_or_the_stated_share():
    assert slots(gpus=2) == [("0",), ("1",)]
    assert slots(gpus=2, jobs=1) == [("0",)]
    assert slots(gpus=2, gpus_per_run=0.5) == [("0",), ("1",), ("0",), ("1",)]
    assert slots(gpus=1, gpus_per_run=0.3) == [("0",)] * 3  # 3 x 0.3 fit, 4 do not
    assert slots(gpus=5, gpus_per_run=2) == [("0", "1"), ("2", "3")]
    assert slots(gpus=4, processes=2) == [("0", "1"), ("2", "3")]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"gpus_per_run": 1}, "no GPU"),
        ({"device": "cuda"}, "no GPU"),
        ({"gpus": 2, "gpus_per_run": 3}, "there are only 2"),
        ({"gpus": 1, "processes": 2}, "there is only 1"),
        ({"gpus": 2, "gpus_per_run": 0.5, "processes": 2}, "need a GPU each"),
        ({"gpus": 2, "gpus_per_run": 1.5}, "whole number"),
        ({"gpus": 2, "gpus_per_run": 0.0}, "whole number"),
        ({"gpus": 2, "jobs": 3}, "room for 2 runs"),
    ],
)
def test_more_than_there_is_is_refused_by_name(wanted, says):
    with pytest.raises(UsageError, match=says):
        slots(**wanted)


def test_processes_that_would_change_the_window_are_refused():
    with pytest.raises(UsageError, match="does not divide a micro-batch of 8 rows"):
        plan(quick_recipe(), 3)
    with pytest.raises(UsageError, match="another experiment"):
        plan(quick_recipe(modes=["bnpo"]), 2)
    assert [spec.settings.rows_per_generation() for spec in plan(quick_recipe(), 2)] == [8, 8]


@pytest.mark.parametrize(
    ("every", "accumulation", "per_generation", "iterations", "step"),
    [
        (None, 1, 1, 1, None),
        (3, 1, 1, 1, 3),
        (1, 2, 4, 1, 2),  # a generation is 4 micro-batches, 2 windows
        (3, 2, 4, 2, 4),  # used twice: 8 micro-batches, 4 windows
        (1, 3, 2, 1, 2),  # 3 micro-batches a window, 2 a generation: 6 micro-batches end both
    ],
)
def test_checkpoints_lie_where_a_window_ends_and_a_generation_is_used_up(
    every, accumulation, per_generation, iterations, step
):
    settings = Settings(
        checkpoint_every=every, gradient_accumulation_steps=accumulation, steps_per_generation=per_generation,
        num_iterations=iterations,
    )  # fmt: skip
    assert checkpoint_steps(settings) == step


def test_only_a_sealed_checkpoint_counts_and_only_of_the_run_itself(tmp_path):
    runs = planned(tmp_path, quick_recipe())
    mine, other = runs
    folder = run_dir(tmp_path, mine.run_id)
    for step in (2, 4, 10):
        (folder / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    assert newest_checkpoint(folder, mine) is None
    seal(folder, 2, mine.run_id)
    seal(folder, 4, mine.run_id)
    assert newest_checkpoint(folder, mine) == (4, folder / "checkpoints" / "checkpoint-4")
    check_run_folders(tmp_path, runs)
    seal(folder, 10, other.run_id)
    with pytest.raises(UsageError, match="checkpoint of another plan"):
        check_run_folders(tmp_path, runs)


def test_sweep_json_is_written_again_only_where_the_plan_grew(tmp_path):
    recipe = quick_recipe()
    planned(tmp_path, recipe)
    before = (tmp_path / "sweep.json").stat().st_mtime_ns
    planned(tmp_path, recipe)
    assert (tmp_path / "sweep.json").stat().st_mtime_ns == before
    planned(tmp_path, quick_recipe(seeds=[0, 1]))
    assert len(json.loads((tmp_path / "sweep.json").read_text())["runs"]) == 4
    assert_readable(tmp_path)


def test_the_hash_in_a_runs_name_is_of_all_that_decides_it():
    assert quick_run().run_id == quick_run().run_id
    changed = [quick_run(learning_rate=2e-4), quick_run(seeds=[1]), quick_run(policy="selfcheck-null")]
    assert len({quick_run().run_id, *(spec.run_id for spec in changed)}) == 4


def test_slices_run_one_after_another_fill_one_folder(tmp_path, monkeypatch):
    from lossbench.sweep import run

    started = []

    def pretend(name, wanted):
        started.append(Pretend())
        return started[-1]

    monkeypatch.setattr("lossbench.sweep.run.make_executor", pretend)
    monkeypatch.setattr(run, "prepare_policies", lambda *_: None)
    recipe = quick_recipe(**FOUR)
    for shard in ("2/2", "1/2"):
        planned = run.plan_recipe(recipe, run.RunOptions(out=tmp_path / "sweep", shard=shard))
        assert run.run_planned(planned, run.Watch()).completed == 2
    runs = plan(recipe)
    assert [executor.started for executor in started] == [[s.run_id for s in runs[1::2]], [s.run_id for s in runs[::2]]]
    joined = load(tmp_path / "sweep")
    assert joined.run_ids == [spec.run_id for spec in runs]
    assert joined.runs["status"].tolist() == ["completed"] * 4


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"shard": "3/2"}, {"gpus_per_run": 64}, {"executor": "slurm"}])
def test_a_mistake_in_how_to_run_is_told_before_anything_is_written(tmp_path, wrong):
    from lossbench.sweep.run import RunOptions, plan_recipe, run_planned
    from lossbench.sweep.schedule import Watch

    with pytest.raises(UsageError) as refused:
        run_planned(plan_recipe(quick_recipe(), RunOptions(out=tmp_path / "sweep", **wrong)), Watch())
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "sweep").exists()


def test_equal_modes_are_found_once_and_then_remembered(tmp_path, monkeypatch):
    from lossbench.sweep.duplicates import duplicate_arms

    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    # One optimizer step per generation: every ratio is 1, and clip and sapo have one gradient.
    recipe = quick_recipe(modes=["grpo", "sapo", "dr_grpo"])
    found = duplicate_arms(recipe, plan(recipe))
    assert [(e.first, e.second, e.kind) for e in found] == [("grpo", "sapo", "same")]
    (kept,) = tmp_path.rglob("*.json")
    before = kept.stat().st_mtime_ns
    assert duplicate_arms(recipe, plan(recipe)) == found
    assert kept.stat().st_mtime_ns == before
    kept.write_text("{")
    assert duplicate_arms(recipe, plan(recipe)) == found
    other = quick_recipe(modes=["grpo", "sapo", "dr_grpo"], num_iterations=2)
    assert duplicate_arms(other, plan(other)) == []


def _note_libraries_of_the_server(spec, folder, on_step):
    """Keep what the process that this run was forked from has loaded."""
    (folder / "maps").write_text(Path(f"/proc/{os.getppid()}/maps").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="loaded libraries are read from /proc")
def test_runs_are_forked_from_a_server_that_has_imported_torch(tmp_path):
    executor = LocalExecutor([()], execute=_note_libraries_of_the_server)
    try:
        executor.start(quick_run(), tmp_path)
        while not any(isinstance(event, Ended) for event in executor.events(60)):
            pass
    finally:
        executor.stop()
    assert "libtorch" in (tmp_path / "maps").read_text()
