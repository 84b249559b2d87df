"""`--report-to` reaches the trainer's loggers, whose files stay with the run."""

import pytest
from support.sweeps import quick_run

from lossbench.store.read import read_json
from lossbench.training.run import execute


def test_tensorboard_gets_the_rewards_in_the_runs_folder(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the `tensorboard` extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")  # put back afterwards: a run sets it for its own process
    monkeypatch.chdir(tmp_path)
    execute(quick_run(steps=2, report_to=["tensorboard"], checkpoint_every=1), tmp_path / "run")
    assert read_json(tmp_path / "run" / "run.json")["status"] == "completed"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    rewards = events.Scalars("train/reward")
    assert [event.step for event in rewards] == [1, 2]
    assert all(0 <= event.value <= 1 for event in rewards)
