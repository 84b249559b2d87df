"""The time left that a sweep shows."""

import pytest
from support.sweeps import quick_recipe

from lossbench.cli._progress import Clock
from lossbench.sweep.plan import plan


def test_time_left_counts_what_was_made_now_and_not_what_cannot_be_made_any_more(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("lossbench.cli._progress.time.monotonic", lambda: now[0])
    resumed, failing = plan(quick_recipe(steps=200))
    clock = Clock([resumed, failing])
    assert clock.left() == "-:--"
    now[0] += 10
    clock.progressed(resumed.run_id, 151)  # it went on from a checkpoint of step 150
    clock.progressed(failing.run_id, 1)
    # Two steps in 10 s, and 49 + 199 to go: 248 * 5 s
    assert clock.left() == "20:40"
    clock.ended(failing.run_id)
    assert clock.left() == "4:05"  # 49 * 5 s
    assert (clock.steps_done, clock.steps_total, clock.runs_ended) == (351, 400, 1)


@pytest.mark.parametrize("step", [1, 4])
def test_a_run_that_is_done_leaves_nothing(step):
    (run, _) = plan(quick_recipe(steps=4))
    clock = Clock([run])
    clock.progressed(run.run_id, step)
    clock.ended(run.run_id)
    assert clock.left() == "0:00" and clock.steps_done == 4
