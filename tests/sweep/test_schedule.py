"""What is run, in which order, and what is left alone: the schedule and the folder, with runs that only pretend."""

import pytest
from support.sweeps import Pretend, Watcher, bytes_below, planned, quick_recipe, statuses

from lossbench.errors import UsageError
from lossbench.store.read import load
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended
from lossbench.sweep.folder import check_folder, fresh_folder, mark, run_dir, run_state
from lossbench.sweep.plan import plan
from lossbench.sweep.schedule import left_to_do, outcome, run_all

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
    with pytest.raises(UsageError, match=r"mode 'grpo\[x\]', seed 0 with other settings of its own"):
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
