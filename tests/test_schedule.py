"""What is run, in which order, and what is left alone: the schedule and the folder, with runs that only pretend."""

import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from sweep_kit import Pretend, Watcher, assert_readable, bytes_below, planned, quick_recipe, quick_run, statuses

from lossbench.errors import UsageError
from lossbench.store.read import load
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended, Resources
from lossbench.sweep.executors.slots import plan_slots
from lossbench.sweep.folder import check_checkpoints, check_folder, fresh_folder, mark, run_dir, run_state
from lossbench.sweep.grid import plan
from lossbench.sweep.lock import Lock, is_being_worked_on
from lossbench.sweep.schedule import left_to_do, outcome, run_all
from lossbench.sweep.shards import parse_shard, take_shard
from lossbench.sweep.status import run_rows
from lossbench.training.checkpoint import checkpoint_steps, newest_checkpoint, seal
from lossbench.training.spec import Settings

FOUR = {"modes": ["grpo", "dr_grpo"], "seeds": [0, 1]}


def test_runs_start_in_plan_order_seed_by_seed_and_never_more_than_the_slots(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    executor = Pretend(slots=3)
    run_all(tmp_path, runs, executor, Watcher())
    assert executor.started == [spec.run_id for spec in runs]
    assert [spec.seed for spec in runs] == [0, 0, 1, 1]
    assert executor.most_at_once == 3
    assert statuses(tmp_path, runs) == ["completed"] * 4


def test_a_completed_run_is_left_untouched_and_a_failed_one_waits_to_be_asked_for(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    broken = runs[1].run_id
    watcher = Watcher()
    run_all(tmp_path, runs, Pretend(ends=lambda s: "no luck" if s.run_id == broken else None), watcher)
    assert watcher.reasons[broken] == "no luck" and run_state(tmp_path, broken)["reason"] == "no luck"
    assert (outcome(tmp_path, runs).completed, outcome(tmp_path, runs).failed) == (3, 1)
    before = bytes_below(tmp_path)
    assert left_to_do(tmp_path, runs) == []
    again = left_to_do(tmp_path, runs, retry_failed=True)
    assert [spec.run_id for spec in again] == [broken]
    (run_dir(tmp_path, broken) / "run.json").unlink()
    run_dir(tmp_path, broken).rmdir()
    run_all(tmp_path, again, Pretend(), watcher)
    after = bytes_below(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} == {f"runs/{broken}/run.json"}
    assert statuses(tmp_path, runs) == ["completed"] * 4


def test_fail_fast_starts_nothing_more(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    executor = Pretend(slots=1, ends=lambda spec: "no luck")
    run_all(tmp_path, runs, executor, Watcher(), fail_fast=True)
    assert executor.started == [runs[0].run_id]
    assert (outcome(tmp_path, runs).failed, outcome(tmp_path, runs).left) == (1, 3)


def test_a_run_that_cannot_be_started_fails_and_the_others_go_on(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))

    class NoMemory(Pretend):
        def start(self, spec, run_dir):
            if spec.run_id == runs[0].run_id:
                raise OSError(12, "Cannot allocate memory")
            super().start(spec, run_dir)

    watcher = Watcher()
    run_all(tmp_path, runs, NoMemory(), watcher)
    assert "Cannot allocate memory" in watcher.reasons[runs[0].run_id]
    assert statuses(tmp_path, runs) == ["failed", "completed", "completed", "completed"]


def test_an_interrupt_stops_the_runs_and_marks_them_but_not_those_that_completed(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))

    class Interrupted(Pretend):
        def events(self, timeout_s):
            write_json(_made(self._going[0][1]) / "run.json", {"status": "completed"})
            raise KeyboardInterrupt

    executor = Interrupted(slots=2)
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, runs, executor, Watcher())
    assert executor.stopped == 1
    assert statuses(tmp_path, runs) == ["completed", "interrupted", "pending", "pending"]
    assert [spec.run_id for spec in left_to_do(tmp_path, runs)] == [spec.run_id for spec in runs[1:]]


def _made(folder):
    folder.mkdir(parents=True)
    return folder


def test_a_run_killed_after_it_was_recorded_as_completed_is_completed(tmp_path):
    runs = planned(tmp_path, quick_recipe())

    class KilledLate(Pretend):
        def events(self, timeout_s):
            for event in super().events(timeout_s):
                yield Ended(event.run_id, "killed by signal 9") if isinstance(event, Ended) else event

    watcher = Watcher()
    run_all(tmp_path, runs, KilledLate(), watcher)
    assert set(watcher.reasons.values()) == {None}
    assert statuses(tmp_path, runs) == ["completed"] * 2


def test_a_completed_run_whose_tables_are_gone_or_short_is_run_again(tmp_path):
    runs = planned(tmp_path, quick_recipe())
    for spec in runs:
        write_json(_made(run_dir(tmp_path, spec.run_id)) / "run.json", {"status": "completed", "tables": {"steps": 4}})
    assert statuses(tmp_path, runs) == ["interrupted"] * 2
    assert left_to_do(tmp_path, runs) == runs


def test_more_seeds_and_modes_extend_a_folder_and_another_plan_is_refused_key_by_key(tmp_path):
    first = quick_recipe()
    known = planned(tmp_path, first)
    wider = quick_recipe(modes=["grpo", "dr_grpo", "dapo"], seeds=[0, 1])
    check_folder(tmp_path, wider, plan(wider))
    runs = planned(tmp_path, wider)
    assert {spec.run_id for spec in known} < {spec.run_id for spec in runs}
    assert load(tmp_path).run_ids[:2] == [spec.run_id for spec in known]
    other = quick_recipe(learning_rate=1e-3, steps=5)
    with pytest.raises(UsageError, match=r"learning_rate: 0\.0001 there, 0\.001 here; steps: 4 there, 5 here"):
        check_folder(tmp_path, other, plan(other))
    with pytest.raises(UsageError, match="processes: null there, 2 here"):
        check_folder(tmp_path, first, plan(first, 2), 2)


def test_one_arm_and_seed_is_one_run(tmp_path):
    def recipe(rate):
        return quick_recipe(modes=None, arms=[{"mode": "grpo", "label": "x", "set": {"learning_rate": rate}}])

    runs = planned(tmp_path, recipe(1e-3))
    with pytest.raises(UsageError, match=r"arm 'grpo\[x\]', seed 0 with other settings of its own"):
        check_folder(tmp_path, recipe(1e-4), plan(recipe(1e-4)))
    mark(tmp_path, runs[0].run_id, "failed", "no luck", runs[0])
    with pytest.raises(UsageError, match=r"learning_rate: 0\.001 there, 0\.0001 here"):
        check_folder(tmp_path, recipe(1e-4), plan(recipe(1e-4)))


def test_fresh_takes_a_new_folder_and_deletes_nothing(tmp_path):
    folder = tmp_path / "sweep"
    assert fresh_folder(folder) == folder
    planned(folder, quick_recipe())
    assert fresh_folder(folder) == tmp_path / "sweep-2"
    assert (folder / "sweep.json").exists()


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="not empty and not a sweep"):
        check_folder(tmp_path, quick_recipe(), [])
    (tmp_path / "sweep.json").write_text('{"kind": "ingested"}')
    with pytest.raises(UsageError, match="another trainer"):
        check_folder(tmp_path, quick_recipe(), [])


# ---- locks ----------------------------------------------------------------------------------------------------------


def test_a_second_sweep_on_one_folder_is_refused_until_the_first_is_done(tmp_path):
    with Lock(tmp_path):
        assert is_being_worked_on(tmp_path)
        with pytest.raises(UsageError, match="is running in"), Lock(tmp_path):
            pass
        with pytest.raises(UsageError, match="is running in"), Lock(tmp_path, (1, 2)):
            pass
    assert not is_being_worked_on(tmp_path)
    with Lock(tmp_path):
        pass


def test_slices_of_one_plan_share_a_folder_but_not_a_slice_nor_another_cut(tmp_path):
    with Lock(tmp_path, (1, 2)), Lock(tmp_path, (2, 2)):
        assert is_being_worked_on(tmp_path)
        for refused in ((1, 2), (1, 3), None):
            with pytest.raises(UsageError), Lock(tmp_path, refused):
                pass
    with Lock(tmp_path, (1, 3)):
        pass


def test_a_dead_process_does_not_keep_the_lock_nor_do_its_children(tmp_path):
    code = (
        "import subprocess, sys, time; from pathlib import Path; from lossbench.sweep.lock import Lock\n"
        f"with Lock(Path({str(tmp_path)!r})):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "    print(child.pid, flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert is_being_worked_on(tmp_path)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it is still there
        with Lock(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_looking_at_the_lock_does_not_turn_a_sweep_away(tmp_path):
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert is_being_worked_on(tmp_path)
    assert not is_being_worked_on(tmp_path)


def test_a_run_whose_sweep_was_killed_is_listed_as_interrupted(tmp_path):
    runs = planned(tmp_path, quick_recipe())
    mark(tmp_path, runs[0].run_id, "running", None, runs[0])
    rows = run_rows(load(tmp_path))
    assert [row["status"] for row in rows] == ["interrupted", "pending"]
    assert rows[0]["reason"] == "its sweep is gone" and rows[0]["log"].endswith("log.txt")
    with Lock(tmp_path):
        assert [row["status"] for row in run_rows(load(tmp_path))] == ["running", "pending"]
    assert left_to_do(tmp_path, runs) == runs


# ---- slices, slots, checkpoints -------------------------------------------------------------------------------------


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
        ({"jobs": 0}, "--jobs 0"),
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
    check_checkpoints(tmp_path, runs)
    seal(folder, 10, other.run_id)
    with pytest.raises(UsageError, match="checkpoint of another plan"):
        check_checkpoints(tmp_path, runs)


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
    from lossbench.cli import _launch
    from lossbench.cli._options import Launch

    started = []

    def pretend(name, wanted):
        started.append(Pretend())
        return started[-1]

    monkeypatch.setattr("lossbench.sweep.executors.make_executor", pretend)
    monkeypatch.setattr(_launch, "_prepare_policies", lambda runs, quiet, workers: None)
    recipe = quick_recipe(**FOUR)
    for shard in ("2/2", "1/2"):
        _launch.launch(recipe, Launch(out=tmp_path / "sweep", shard=shard, quiet=True))
    runs = plan(recipe)
    assert [executor.started for executor in started] == [[s.run_id for s in runs[1::2]], [s.run_id for s in runs[::2]]]
    joined = load(tmp_path / "sweep")
    assert joined.run_ids == [spec.run_id for spec in runs]
    assert joined.runs["status"].tolist() == ["completed"] * 4


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"shard": "3/2"}, {"gpus_per_run": 64}, {"executor": "slurm"}])
def test_a_mistake_in_how_to_run_is_told_before_anything_is_written(tmp_path, wrong):
    from lossbench.cli._launch import launch
    from lossbench.cli._options import Launch

    with pytest.raises(UsageError) as refused:
        launch(quick_recipe(), Launch(out=tmp_path / "sweep", quiet=True, **wrong))
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
