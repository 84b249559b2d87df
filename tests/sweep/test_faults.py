"""What goes wrong around a sweep: full and read-only disks, rewards that raise, Ctrl-C, a killed driver."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from support.sweeps import QUICK_FLAGS, assert_readable, bytes_below, quick_recipe, statuses

import lossbench
from lossbench.cli.sweep import make_runs, resume_command
from lossbench.errors import UsageError
from lossbench.locks import is_being_worked_on, sweep_lock
from lossbench.sweep.plan import plan
from lossbench.sweep.run import RunOptions, plan_recipe
from lossbench.sweep.status import run_rows

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="sessions are read from /proc")
GONE_WITHIN_S = 5.0


def mounted(folder: Path, *options: str) -> None:
    """Mount a small disk in memory at `folder`, or say by name why this machine cannot."""
    folder.mkdir(exist_ok=True)
    if shutil.which("mount") is None or sys.platform != "linux":
        pytest.skip("a small disk cannot be staged here: no `mount` for tmpfs")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be staged here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    folder = tmp_path / "disk"
    mounted(folder, "-o", "size=512k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def sweep(folder: Path, *, retry_failed: bool = False, **changes) -> int:
    """Run the quick recipe in `folder`, quietly; the exit code."""
    try:
        make_runs(plan_recipe(quick_recipe(**changes), RunOptions(1, out=folder, retry_failed=retry_failed)), True)
    except typer.Exit as error:
        return error.exit_code
    return 0


def test_a_full_disk_costs_the_run_that_met_it_and_nothing_else(disk, capfd):
    folder = disk / "sweep"
    assert sweep(folder, modes=["grpo"], steps=2) == 0
    finished = bytes_below(folder / "runs")
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free
    filler.write_bytes(b"\0" * (free - 24 * 1024))
    assert sweep(folder, steps=2) == 1
    assert "--retry-failed" in capfd.readouterr().err
    assert {name: data for name, data in bytes_below(folder / "runs").items() if name in finished} == finished
    assert_readable(folder)
    runs = plan(quick_recipe(steps=2))
    assert statuses(folder, runs) == ["completed", "failed"]
    assert "No space left" in run_rows(lossbench.load(folder))[1]["reason"]
    filler.unlink()
    assert sweep(folder, steps=2, retry_failed=True) == 0
    assert statuses(folder, runs) == ["completed", "completed"]
    assert_readable(folder)


def test_a_read_only_disk_is_refused_in_one_line_and_can_still_be_read(disk):
    folder = disk / "sweep"
    assert sweep(folder, modes=["grpo"], steps=2) == 0
    before = bytes_below(disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(UsageError, match="is not writable"):
        sweep(folder, steps=2)
    with pytest.raises(UsageError, match="is not writable"):
        sweep(disk / "other", steps=2)
    assert [row["status"] for row in run_rows(lossbench.load(folder))] == ["completed"]
    assert bytes_below(disk) == before


TASK = """
from lossbench.tasks.selfcheck import SelfCheck

class Faulty(SelfCheck):
    name = "faulty"
    calls = 0

    def reward(self, correct, terminated, length_tokens):
        Faulty.calls += 1
        if Faulty.calls > 20:
            raise ZeroDivisionError("no\\nsuch reward")
        return super().reward(correct, terminated, length_tokens)
"""


def test_a_reward_that_raises_fails_its_run_with_the_reason_and_the_others_go_on(tmp_path):
    task = tmp_path / "mytask.py"
    task.write_text(TASK)
    arms = [
        {"mode": "grpo", "label": "faulty", "set": {"task": f"{task}:Faulty"}},
        {"mode": "grpo"},
    ]
    assert sweep(tmp_path / "sweep", modes=None, arms=arms) == 1
    rows = run_rows(lossbench.load(tmp_path / "sweep"))
    assert [row["status"] for row in rows] == ["failed", "completed"]
    assert rows[0]["reason"] == "ZeroDivisionError: no such reward"
    assert rows[0]["step"] == 2  # 8 rewards a step: the 21st is in the third
    assert "Traceback" in Path(rows[0]["log"]).read_text()
    assert_readable(tmp_path / "sweep")


# ---- the driver as a process of its own -----------------------------------------------------------------------------


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `lossbench sweep` in a session of its own, with steps that last for minutes."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        words = ["sweep", "--modes", "grpo,dr_grpo", "--seeds", "1", "--steps", "5000", *QUICK_FLAGS, *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "lossbench", *words, "--out", str(tmp_path / "sweep")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path,
            # Tests that run in the background of a script inherit SIGINT ignored, and so would their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(owner) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def gone(leader: int) -> bool:
    """Whether the session is empty within the time that an interrupt may take."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while session(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def steps_made(folder: Path) -> bool:
    """Whether both runs have made a step."""
    return len({path.parent for path in folder.glob("runs/*/parts/steps-*.parquet")}) == 2


@ON_LINUX
def test_ctrl_c_ends_a_sweep_at_once_and_says_how_to_go_on(driver, tmp_path):
    folder = tmp_path / "sweep"
    process = driver()
    wait_for(lambda: steps_made(folder))
    with pytest.raises(UsageError, match="is running in"), sweep_lock(folder):
        pass
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < GONE_WITHIN_S
    assert process.returncode == 130
    last = stderr.strip().splitlines()[-1]
    assert last.startswith("interrupted; finished runs are safe. To go on: ")
    assert last.endswith(f"sweep --modes grpo,dr_grpo --seeds 1 --steps 5000 {' '.join(QUICK_FLAGS)} --out {folder}")
    assert "Traceback" not in stderr and "resource_tracker" not in stderr
    assert gone(process.pid), "a child process was left"
    assert [row["status"] for row in run_rows(lossbench.load(folder))] == ["interrupted"] * 2
    assert_readable(folder)


@ON_LINUX
def test_ctrl_c_while_the_fork_server_still_imports(driver, tmp_path):
    process = driver()
    wait_for(lambda: is_being_worked_on(tmp_path / "sweep") if (tmp_path / "sweep").exists() else False)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    assert gone(process.pid), "a child process was left"


@ON_LINUX
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_driver_takes_its_runs_along_and_frees_the_folder(driver, tmp_path, processes):
    folder = tmp_path / "sweep"
    process = driver("--jobs", "2", "--nproc-per-run", str(processes))
    wait_for(lambda: steps_made(folder))
    process.kill()
    process.wait()
    assert gone(process.pid), "a run outlived its sweep"
    assert not is_being_worked_on(folder)
    assert [row["status"] for row in run_rows(lossbench.load(folder))] == ["interrupted"] * 2
    assert_readable(folder)


@ON_LINUX
@pytest.mark.slow
def test_sigterm_ends_a_sweep_as_ctrl_c_does(driver, tmp_path):
    process = driver()
    wait_for(lambda: steps_made(tmp_path / "sweep"))
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "To go on: " in stderr
    assert gone(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 4.0])
def test_a_killed_report_harms_nothing_and_the_next_one_is_whole(tmp_path, after_s):
    folder = tmp_path / "sweep"
    assert sweep(folder, steps=2) == 0
    before = bytes_below(folder)
    command = [sys.executable, "-m", "lossbench", "report", str(folder)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    first.kill()
    first.wait()
    after = bytes_below(folder)
    assert {name: after[name] for name in before} == before
    assert_readable(folder)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in second.stderr
    assert (folder / "report" / "index.html").read_text().rstrip().endswith("</html>")


def test_an_interrupted_fresh_sweep_goes_on_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lossbench", "sweep", "--fresh", "--out", "a b", "--seeds", "2"])
    assert resume_command(Path("a b-2"), True) == "lossbench sweep --seeds 2 --out 'a b-2'"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lossbench", "sweep", "--seeds", "2"])
    assert resume_command(Path("results/x"), False, "--retry-failed") == "lossbench sweep --seeds 2 --retry-failed"
