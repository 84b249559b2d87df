"""One sweep at a time works on a folder, or slices of one that do not meet."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest
from support.sweeps import planned, quick_recipe

from lossbench.errors import UsageError
from lossbench.locks import is_being_worked_on, sweep_lock
from lossbench.store.read import load
from lossbench.sweep.folder import mark
from lossbench.sweep.schedule import left_to_do
from lossbench.sweep.status import run_rows


def test_a_second_sweep_on_one_folder_is_refused_until_the_first_is_done(tmp_path):
    with sweep_lock(tmp_path):
        assert is_being_worked_on(tmp_path)
        with pytest.raises(UsageError, match="is running in"), sweep_lock(tmp_path):
            pass
        with pytest.raises(UsageError, match="is running in"), sweep_lock(tmp_path, (1, 2)):
            pass
    assert not is_being_worked_on(tmp_path)
    with sweep_lock(tmp_path):
        pass


def test_slices_of_one_plan_share_a_folder_but_not_a_slice_nor_another_cut(tmp_path):
    with sweep_lock(tmp_path, (1, 2)), sweep_lock(tmp_path, (2, 2)):
        assert is_being_worked_on(tmp_path)
        for refused in ((1, 2), (1, 3), None):
            with pytest.raises(UsageError), sweep_lock(tmp_path, refused):
                pass
        with pytest.raises(UsageError), sweep_lock(tmp_path, (1, 2), "other-plan"):
            pass
    with sweep_lock(tmp_path, (1, 3)):
        pass


def test_a_dead_process_does_not_keep_the_lock_nor_do_its_children(tmp_path):
    code = (
        "import subprocess, sys, time; from pathlib import Path; from lossbench.locks import sweep_lock\n"
        f"with sweep_lock(Path({str(tmp_path)!r})):\n"
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
        with sweep_lock(tmp_path):
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
    with sweep_lock(tmp_path):
        assert [row["status"] for row in run_rows(load(tmp_path))] == ["running", "pending"]
    assert left_to_do(tmp_path, runs) == runs


def test_a_lock_that_may_only_be_read_can_still_be_seen(tmp_path, monkeypatch):
    opened = os.open

    def refuse_writing(path, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *args, **options)

    with sweep_lock(tmp_path):
        monkeypatch.setattr(os, "open", refuse_writing)
        assert is_being_worked_on(tmp_path)
        monkeypatch.undo()
    monkeypatch.setattr(os, "open", refuse_writing)
    assert not is_being_worked_on(tmp_path)


def test_a_lock_that_is_a_link_or_a_pipe_harms_nothing(tmp_path):
    (tmp_path / "canary").write_text("sings")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".lock").symlink_to(tmp_path / "canary")
    assert not is_being_worked_on(tmp_path / "linked")
    with pytest.raises(OSError), sweep_lock(tmp_path / "linked"):
        pass
    assert (tmp_path / "canary").read_text() == "sings"
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / ".lock")
    assert not is_being_worked_on(tmp_path / "piped")
