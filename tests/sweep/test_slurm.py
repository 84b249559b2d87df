"""The Slurm executor without a Slurm: submitit's executors in its place, and programs that only pretend."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.slurm import Here, pretend_program
from support.sweeps import Watcher, assert_readable, planned, quick_recipe, quick_run, statuses

from lossbench.errors import UsageError
from lossbench.store.write import part_path, write_json, write_table
from lossbench.sweep.executors import make_executor
from lossbench.sweep.executors.base import Ended, Progress, Resources
from lossbench.sweep.executors.sbatch import parse_options, sbatch_script
from lossbench.sweep.executors.slurm import SlurmExecutor, job_of
from lossbench.sweep.executors.slurm_task import SlurmTask
from lossbench.sweep.folder import JOB_FILE, check_jobs, run_dir, run_state
from lossbench.sweep.run import RunOptions, check_planned, plan_recipe
from lossbench.sweep.schedule import Watch, outcome, run_all
from lossbench.training.checkpoint import seal

pytest.importorskip("submitit", reason="needs the extra 'slurm'")
FOUR = {"modes": ["grpo", "dr_grpo"], "seeds": [0, 1]}


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Ask the queue at each poll, and give a task of this process back the signals it takes."""
    monkeypatch.setattr("lossbench.sweep.executors.slurm._ASK_EVERY_S", 0.0)
    monkeypatch.setattr("lossbench.sweep.schedule._WAIT_S", 0.02)
    monkeypatch.setattr("lossbench.sweep.executors.slurm_task._WAIT_S", 1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def runs_at_once(monkeypatch):
    """Runs that take no time; one whose label is `faulty` fails."""

    def run(spec, folder, gpus, on_step):
        if "faulty" in spec.arm:
            return "no luck"
        write_json(folder / "run.json", {"spec": spec.model_dump(mode="json"), "status": "completed"})
        return None

    monkeypatch.setattr("lossbench.sweep.executors.slurm_task.run_here", run)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "time limit in minutes"),
        ("partition=gpu", "time limit in minutes"),
        ("time=0", "time limit in minutes"),
        ("time=2h", "time limit in minutes"),
        ("time=5,partiton=gpu", "unknown Slurm option 'partiton': did you mean 'partition'?"),
        ("gpu", "give NAME=VALUE"),
        ("time=5,partition=", "give NAME=VALUE"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(text, says):
    with pytest.raises(UsageError, match=says) as refused:
        make_executor("slurm", Resources(slurm=text))
    assert "\n" not in str(refused.value)


def test_lists_and_dashes_in_options():
    assert parse_options("time=5,exclude=n1,n[3-4],mem-per-cpu=2G") == {
        "time": "5", "exclude": "n1,n[3-4]", "mem_per_cpu": "2G",
    }  # fmt: skip


def test_options_of_one_executor_are_refused_by_the_others():
    with pytest.raises(UsageError, match="--slurm belongs to --executor slurm"):
        make_executor("local", Resources(slurm="time=5"))
    with pytest.raises(UsageError, match="--address belongs to --executor ray"):
        make_executor("slurm", Resources(slurm="time=5", address="auto"))
    with pytest.raises(UsageError, match="whole GPUs"):
        make_executor("slurm", Resources(slurm="time=5", gpus_per_run=0.5))


def test_without_sbatch_on_the_path_nothing_is_written(tmp_path, monkeypatch):
    from lossbench.api import run_sweep

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no `sbatch` on the path") as refused:
        run_sweep(modes="grpo", executor="slurm", slurm="time=5", out=tmp_path / "sweep", steps=1)
    assert "\n" not in str(refused.value) and not (tmp_path / "sweep").exists()


def test_what_the_cluster_refuses_is_told_before_anything_is_submitted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pretend_program(tmp_path / "sinfo", "echo main; echo gpu")
    pretend_program(
        tmp_path / "sbatch", f'echo "$@" >> {tmp_path}/asked; echo "sbatch: error:\nno such account" >&2; exit 1'
    )
    with pytest.raises(UsageError, match="unknown partition 'gpus': did you mean 'gpu'\\? valid: main, gpu"):
        make_executor("slurm", Resources(slurm="time=5,partition=gpus"))
    assert not (tmp_path / "asked").exists()
    with pytest.raises(UsageError, match="Slurm refuses these options: sbatch: error: no such account"):
        make_executor("slurm", Resources(slurm="time=5,partition=gpu,account=x", processes=2, gpus_per_run=2))
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked == "--test-only --cpus-per-task=2 --time=5 --partition=gpu --account=x --gpus-per-node=2 --wrap=true"
    pretend_program(tmp_path / "sinfo", 'echo "Unable to contact slurm controller" >&2; exit 1')
    with pytest.raises(UsageError, match="sinfo: Unable to contact slurm controller"):
        make_executor("slurm", Resources(slurm="time=5"))


def test_more_runs_than_one_array_may_hold_are_refused_before_models_are_looked_at(tmp_path, monkeypatch):
    from lossbench.api import run_sweep

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pretend_program(tmp_path / "sinfo", "echo main")
    pretend_program(tmp_path / "sbatch", "exit 0")
    pretend_program(tmp_path / "scontrol", 'echo "MaxArraySize            = 3"; echo "MaxJobCount = 9"')
    looked = []
    monkeypatch.setattr("lossbench.sweep.run.preflight", lambda runs, **_: looked.append(len(runs)) or {})
    wanted = {"modes": "grpo,dr_grpo", "seeds": 2, "executor": "slurm", "out": tmp_path / "sweep", "steps": 1}
    with pytest.raises(UsageError, match=r"^4 runs are more than .* \(MaxArraySize 3\): submit fewer") as refused:
        run_sweep(**wanted, slurm="time=5")
    assert "\n" not in str(refused.value) and not (tmp_path / "sweep").exists()
    with pytest.raises(UsageError, match="unknown Slurm option 'partiton'"):
        run_sweep(**wanted, slurm="time=5,partiton=main")
    assert looked == []
    planned = plan_recipe(quick_recipe(**FOUR), RunOptions(executor="slurm", slurm="time=5", out=tmp_path / "sweep"))
    write_json(
        new_folder(run_dir(planned.folder, planned.runs[0].run_id)) / JOB_FILE, {"executor": "slurm", "job": "1"}
    )
    check_planned(planned, Watch(), fetch=True)  # one has a job already: an array of three
    assert looked == [4]
    equal = quick_recipe(modes=["grpo", "sapo"], seeds=[0, 1])  # one step a generation: sapo is grpo
    options = RunOptions(executor="slurm", slurm="time=5", out=tmp_path / "equal", skip_duplicates=True)
    left = check_planned(plan_recipe(equal, options), Watch(), fetch=True).mine  # four runs, two of them dropped
    assert [spec.arm for spec in left] == ["grpo", "grpo"]


def test_detach_and_shards_are_refused_where_they_mean_nothing(tmp_path, monkeypatch):
    from lossbench.api import run_sweep

    with pytest.raises(UsageError, match="--detach: runs of --executor local end with this command"):
        run_sweep(modes="grpo", out=tmp_path / "sweep", detach=True)
    monkeypatch.setattr("lossbench.sweep.run.make_executor", lambda name, wanted: SlurmExecutor({"time": "5"}))
    with pytest.raises(UsageError, match="--shard is for a scheduler of your own"):
        run_sweep(modes="grpo", out=tmp_path / "sweep", executor="slurm", shard="1/2")
    assert not (tmp_path / "sweep").exists()


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_runs_are_jobs_of_their_own_and_end_as_their_folders_say(tmp_path, runs_at_once):
    arms = [{"mode": "grpo"}, {"mode": "grpo", "label": "faulty", "set": {"steps": 3}}]
    runs = planned(tmp_path, quick_recipe(modes=None, arms=arms, seeds=[0, 1]))
    watcher, executor = Watcher(), Here("debug")
    run_all(tmp_path, runs, executor, watcher)
    assert [len(batch) for batch in executor.submitted] == [4]
    assert statuses(tmp_path, runs) == ["completed", "failed"] * 2
    assert [watcher.reasons[spec.run_id] for spec in runs] == [None, "no luck"] * 2
    assert not list(tmp_path.rglob(JOB_FILE))
    (tmp_path / "runs" / runs[1].run_id / "run.json").unlink()
    run_all(tmp_path, runs[:2], again := Here("debug"), watcher)
    assert run_state(tmp_path, runs[0].run_id)["status"] == "completed" and len(again.submitted[0]) == 2


@pytest.mark.slow
def test_a_real_run_in_a_process_that_submitit_starts(tmp_path):
    runs = planned(tmp_path, quick_recipe(modes=["grpo"], steps=2))
    watcher = Watcher()
    run_all(tmp_path, runs, Here("local"), watcher)
    assert watcher.reasons == {runs[0].run_id: None}
    assert_readable(tmp_path)


class Queue(SlurmExecutor):
    """A cluster in which jobs are in the states that a test gives them and never begin by themselves."""

    def __init__(self, array: int = 1) -> None:
        super().__init__({"time": "5"})
        self.array = array
        self.states: dict[str, str] | None = {}
        self.cancelled: list[tuple[str, ...]] = []
        self.batches: list[list[str]] = []

    def _submit_array(self, run_ids):
        self.batches.append(run_ids)
        jobs = [f"{self.array}_{place}" for place in range(len(run_ids))]
        assert self.states is not None
        self.states |= dict.fromkeys(jobs, "PENDING")
        return jobs

    def _states(self, jobs):
        return self.states

    def _scancel(self, *how):
        self.cancelled.append(how)


def started(folder, runs, queue):
    """The runs, submitted."""
    for spec in runs:
        queue.start(spec, run_dir(folder, spec.run_id))
    assert list(queue.events(0)) == []
    return queue


def test_the_same_plan_again_attaches_to_the_jobs_there_are_and_submits_the_rest(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    first = started(tmp_path, runs[:2], Queue())
    assert [job_of(run_dir(tmp_path, spec.run_id)) for spec in runs] == ["1_0", "1_1", None, None]
    again = Queue(array=2)
    again.states = {"1_0": "RUNNING", "1_1": "CANCELLED"}
    for spec in runs:
        again.start(spec, run_dir(tmp_path, spec.run_id))
    assert list(again.events(0)) == [Progress(runs[0].run_id, 0)]
    assert again.batches == [[spec.run_id for spec in runs[1:]]]
    assert first.detached and first.cancelled == []


def test_a_queue_that_does_not_answer_ends_no_run_and_submits_none_twice(tmp_path):
    (spec,) = planned(tmp_path, quick_recipe(modes=["grpo"]))
    queue = started(tmp_path, [spec], Queue())
    queue.states = None
    assert [list(queue.events(0)) for _ in range(4)] == [[]] * 4
    again = Queue()
    again.states = None
    again.start(spec, run_dir(tmp_path, spec.run_id))
    assert list(again.events(0)) == [] and again.batches == []


@pytest.mark.parametrize(
    ("state", "status"),
    [("CANCELLED", "interrupted"), ("TIMEOUT", "interrupted"), ("NODE_FAIL", "interrupted"), (None, "interrupted"),
     ("FAILED", "failed"), ("OUT_OF_MEMORY", "failed")],
)  # fmt: skip
def test_a_job_that_ended_without_a_word_of_its_run(tmp_path, state, status):
    (spec,) = planned(tmp_path, quick_recipe(modes=["grpo"]))
    watcher, queue = Watcher(), Queue()

    class Ends(Queue):
        def _states(self, jobs):
            return {"1_0": state} if state else {}

    run_all(tmp_path, [spec], Ends(), watcher)
    assert statuses(tmp_path, [spec]) == [status]
    assert watcher.reasons[spec.run_id].startswith(f"Slurm job 1_0 is {(state or 'forgotten').lower()}; its output: ")
    assert not list(tmp_path.rglob(JOB_FILE)) and queue.batches == []


def test_jobs_that_have_been_submitted_keep_other_executors_away(tmp_path):
    runs = planned(tmp_path, quick_recipe())
    started(tmp_path, runs[:1], Queue())
    check_jobs(tmp_path, runs, "slurm")
    with pytest.raises(UsageError, match=rf"run {runs[0].run_id} was handed to slurm as job 1_0: go on with"):
        check_jobs(tmp_path, runs, "local")


class Interrupts(Watcher):
    """Presses Ctrl-C at the first chance and answers the question as told."""

    def __init__(self, answer: bool) -> None:
        super().__init__()
        self.answer, self.asked = answer, 0

    def goes_on(self, runs: int) -> bool:
        self.asked += 1
        return self.answer


class Interrupted(Queue):
    def events(self, timeout_s):
        yield from super().events(timeout_s)
        raise KeyboardInterrupt


def test_ctrl_c_asks_once_and_leaves_the_jobs_or_cancels_them(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    for answer in (True, False):
        watcher, queue = Interrupts(answer), Interrupted()
        with pytest.raises(KeyboardInterrupt):
            run_all(tmp_path, runs, queue, watcher)
        assert watcher.asked == 1
        assert queue.cancelled == ([] if answer else [()])
        assert statuses(tmp_path, runs) == [("pending" if answer else "interrupted")] * 4
        assert outcome(tmp_path, runs).elsewhere == (4 if answer else 0)


def test_the_question_is_put_in_a_terminal_only_and_a_second_ctrl_c_means_no(monkeypatch):
    import typer

    from lossbench.cli import _progress

    asked = []

    def confirm(text, **_):
        asked.append(text)
        raise typer.Abort

    monkeypatch.setattr(_progress, "confirm", confirm)
    monkeypatch.setattr("sys.stdin", type("Pipe", (), {"isatty": lambda self: False})())
    assert _progress.Lines().goes_on(3) is True and asked == []
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert _progress.Lines().goes_on(3) is False
    assert asked == ["3 runs are submitted. Let them go on without this command?"]


def test_detached_runs_are_submitted_and_not_waited_for(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    watcher, queue = Interrupts(False), Queue()
    run_all(tmp_path, runs, queue, watcher, detach=True)
    assert queue.batches == [[spec.run_id for spec in runs]] and queue.cancelled == []
    assert outcome(tmp_path, runs).elsewhere == 4 and watcher.asked == 0


def test_fail_fast_takes_back_what_has_not_begun(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))

    class OneFails(Queue):
        def _scancel(self, *how):
            super()._scancel(*how)
            assert self.states is not None
            self.states |= dict.fromkeys([job for job, state in self.states.items() if state == "PENDING"], "CANCELLED")

        def _states(self, jobs):
            return self.states | {"1_0": "FAILED"} if self.states else self.states

    queue, watcher = OneFails(), Watcher()
    run_all(tmp_path, runs, queue, watcher, fail_fast=True)
    assert queue.cancelled[0] == ("--state=PENDING",)
    assert statuses(tmp_path, runs) == ["failed", "interrupted", "interrupted", "interrupted"]


def test_runs_that_wait_in_a_queue_are_not_shown_as_started(tmp_path):
    runs = planned(tmp_path, quick_recipe(**FOUR))
    shown = []

    class Shows(Watcher):
        def started(self, spec):
            shown.append(spec.run_id)

    queue = Queue()
    with pytest.raises(AssertionError):
        queue.states = {}

        def stop_later(jobs):
            if len(queue.batches) and shown:
                raise AssertionError
            return {"1_0": "PENDING", "1_1": "RUNNING", "1_2": "PENDING", "1_3": "PENDING"}

        queue._states = stop_later
        run_all(tmp_path, runs, queue, Shows())
    assert shown == [runs[1].run_id]


# ---- progress, and what a job does ----------------------------------------------------------------------------------


def write_step(folder: Path, step: int, reward: float) -> None:
    part = part_path(folder, "steps", step)
    part.parent.mkdir(parents=True, exist_ok=True)
    write_table(part, "steps", [{"step": step, "reward_mean": reward, "length_mean": 10.0 * step}])


def test_progress_is_the_newest_step_in_the_folder_also_after_a_new_beginning(tmp_path):
    (spec,) = planned(tmp_path, quick_recipe(modes=["grpo"]))
    folder = run_dir(tmp_path, spec.run_id)
    queue = started(tmp_path, [spec], Queue())
    for step in (1, 2):
        write_step(folder, step, 0.5)
    assert list(queue.events(0)) == [Progress(spec.run_id, 2, 0.5, 20.0)]
    assert list(queue.events(0)) == []
    write_step(folder, 3, 0.25)
    assert list(queue.events(0)) == [Progress(spec.run_id, 3, 0.25, 30.0)]
    for path in (folder / "parts").iterdir():  # requeued without a checkpoint
        path.unlink()
    assert list(queue.events(0)) == []
    write_step(folder, 1, 0.75)
    assert list(queue.events(0)) == [Progress(spec.run_id, 1, 0.75, 10.0)]
    (folder / JOB_FILE).unlink()
    assert list(queue.events(0)) == [Ended(spec.run_id, None)]


def test_a_completed_run_is_not_made_again_and_another_jobs_run_is_left_alone(tmp_path, monkeypatch):
    from filelock import FileLock

    spec = quick_run()
    folder = run_dir(tmp_path, spec.run_id)
    made = []
    monkeypatch.setattr(
        "lossbench.sweep.executors.slurm_task.run_here", lambda spec, folder, *_: made.append(folder) or "no luck"
    )
    write_json(new_folder(folder) / JOB_FILE, {"executor": "slurm", "job": "1"})
    with FileLock(tmp_path / f".lock-{spec.run_id}-of-1"):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        SlurmTask(spec, tmp_path, 5)()
        assert time.monotonic() - began >= 1 and made == [] and job_of(folder) == "1"
    SlurmTask(spec, tmp_path, 5)()
    assert (made, job_of(folder)) == ([folder], None)
    assert run_state(tmp_path, spec.run_id)["reason"] == "no luck"
    write_json(folder / "run.json", {"status": "completed"})
    write_json(folder / JOB_FILE, {"executor": "slurm", "job": "2"})
    SlurmTask(spec, tmp_path, 5)()
    assert made == [folder] and job_of(folder) is None


@pytest.mark.parametrize("by_slurm", [True, False])
def test_a_run_that_dies_with_its_job_is_interrupted_and_one_that_dies_alone_failed(tmp_path, monkeypatch, by_slurm):
    spec = quick_run()
    folder = run_dir(tmp_path, spec.run_id)
    write_json(new_folder(folder) / JOB_FILE, {"executor": "slurm", "job": "1"})

    def run(*_):
        if by_slurm:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return "killed by signal 15"

    monkeypatch.setattr("lossbench.sweep.executors.slurm_task.run_here", run)
    monkeypatch.setattr("lossbench.sweep.executors.slurm_task._SOON_S", 60 if by_slurm else 0)
    with pytest.raises(SystemExit) if by_slurm else nullcontext():
        SlurmTask(spec, tmp_path, 5)()
    assert run_state(tmp_path, spec.run_id)["status"] == ("interrupted" if by_slurm else "failed")
    assert job_of(folder) == ("1" if by_slurm else None)


def new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_job_is_requeued_unless_its_whole_time_brought_no_checkpoint(tmp_path, monkeypatch):
    from submitit.core.utils import UncompletedJobError

    spec = quick_run(checkpoint_every=1)
    folder = run_dir(tmp_path, spec.run_id)
    task = SlurmTask(spec, tmp_path, limit_min=5)
    seen = {}

    def run(*_):
        seen["preempted"] = task.checkpoint()
        monkeypatch.setattr("time.monotonic", lambda: 10_000.0)  # 300 s are over
        seen["timed out"] = task.checkpoint()
        (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
        seal(folder, 1, spec.run_id)
        seen["with a checkpoint"] = task.checkpoint()
        raise UncompletedJobError("as submitit does where it gets None")

    monkeypatch.setattr("lossbench.sweep.executors.slurm_task.run_here", run)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    write_json(new_folder(folder) / JOB_FILE, {"executor": "slurm", "job": "1"})
    task()
    assert seen["preempted"].function is task and seen["with a checkpoint"].function is task
    assert seen["timed out"] is None
    assert "the time limit of 5 minutes came before a checkpoint" in run_state(tmp_path, spec.run_id)["reason"]


def test_a_script_for_sbatch_runs_each_slice_once(tmp_path):
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--out", "a b"]
    text = sbatch_script({"time": "5", "nodelist": "n[1-2]"}, command, 3, 2, Path("results/x"))
    assert "#SBATCH --array=1-3%2" in text and "#SBATCH '--nodelist=n[1-2]'" in text and "#SBATCH --requeue" in text
    (tmp_path / "script.sh").write_text(text)
    said = [
        subprocess.run(
            ["bash", str(tmp_path / "script.sh")], capture_output=True, text=True, check=True,
            env={"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_COUNT": "3", "PATH": "/usr/bin:/bin"},
        ).stdout.strip()
        for i in (1, 2, 3)
    ]  # fmt: skip
    assert said == [str(["--out", "a b", "--shard", f"{i}/3"]) for i in (1, 2, 3)]


def test_the_script_holds_the_typed_command_without_what_belongs_to_this_call(tmp_path, monkeypatch, capsys):
    from lossbench.api import plan_sweep
    from lossbench.cli.sweep import _emit

    typed = "lossbench sweep --seeds 2 --executor slurm --slurm=time=5 --jobs 2 --fresh --dry-run --emit sbatch --out x"
    monkeypatch.setattr(sys, "argv", typed.split())
    planned = plan_sweep({"name": "quick"}, modes="grpo", seeds="2", slurm="time=5", jobs=2, out=tmp_path / "sweep")
    _emit(planned, "sbatch", dry_run=True)
    script = capsys.readouterr().out
    assert f"exec lossbench sweep --seeds 2 --out {tmp_path / 'sweep'} --shard $SLURM" in script
    assert "#SBATCH --array=1-2%2" in script and "#SBATCH --cpus-per-task=1" in script
    with pytest.raises(UsageError, match="valid: sbatch"):
        _emit(planned, "pbs", dry_run=True)
    with pytest.raises(UsageError, match="give --dry-run too"):
        _emit(planned, "sbatch", dry_run=False)
    assert not (tmp_path / "sweep").exists()
