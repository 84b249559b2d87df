"""The task of a Slurm job on its node: one run in its folder, again after each requeue until the run is over."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lossbench.errors import UsageError, one_line
from lossbench.sweep.executors.remote import run_here
from lossbench.sweep.executors.slots import visible_gpus
from lossbench.sweep.folder import JOB_FILE, mark, run_dir, run_state
from lossbench.training.checkpoint import newest_checkpoint
from lossbench.training.run_spec import RunSpec

OUTPUT = ".slurm/{job}_0_log.out"  # of a job, among submitit's files in the sweep's folder
_MOST_REQUEUES = 1000  # a job that makes no progress ends by itself
SIGNAL_BEFORE_S = 60  # the time limit, Slurm tells the job
_SOON_S = 3
_WAIT_S = 60  # for a job that was cancelled and has not ended yet


def submit_array(specs: Sequence[RunSpec], folder: Path, options: dict[str, str], jobs: int, cluster: str) -> list[str]:
    """Submit the runs as an array of which `jobs` run at once; the ids of its jobs. Raises UsageError if refused."""
    from submitit import AutoExecutor
    from submitit.core.utils import FailedJobError

    limit_min = int(options["time"])
    executor = AutoExecutor((folder / OUTPUT).parent, cluster=cluster, slurm_max_num_timeout=_MOST_REQUEUES)
    executor.update_parameters(
        name="lossbench", timeout_min=limit_min, stderr_to_stdout=True, slurm_signal_delay_s=SIGNAL_BEFORE_S,
        slurm_array_parallelism=jobs, slurm_additional_parameters={"requeue": True, **options},
    )  # fmt: skip
    try:
        with executor.batch():
            submitted = [executor.submit(SlurmTask(spec, folder, limit_min)) for spec in specs]
    except (FailedJobError, OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"Slurm did not take the jobs: {one_line(error)}") from None
    return [job.job_id for job in submitted]


class SlurmTask:
    """A call makes the run, unless it is completed or another job makes it. submitit calls `checkpoint` and requeues
    the job where Slurm preempts it or its time limit is near."""

    def __init__(self, spec: RunSpec, folder: Path, limit_min: int) -> None:
        self.spec, self.folder, self.limit_min = spec.model_dump_json(), str(folder.resolve()), limit_min
        self._began = 0.0
        self._step_before: int | None = None

    def __call__(self) -> None:
        """Make the run; its end is in run.json, and job.json goes, whether it completed or failed."""
        signal.signal(signal.SIGTERM, _leave)  # submitit's handler would wait to be killed
        self._began = time.monotonic()
        spec, folder = RunSpec.model_validate_json(self.spec), Path(self.folder)
        run_id, job_file = spec.run_id, run_dir(folder, spec.run_id) / JOB_FILE
        try:
            # The name stands beside those of a sweep's own locks, which other sweeps look at.
            with FileLock(folder / f".lock-{run_id}-of-1", timeout=_WAIT_S):
                if run_state(folder, run_id)["status"] != "completed":
                    self._make(spec, folder)
                _wait_for(job_file)
                job_file.unlink(missing_ok=True)
        except Timeout:
            print(f"another job makes run {run_id}")

    def _make(self, spec: RunSpec, folder: Path) -> None:
        from submitit.core.utils import UncompletedJobError

        self._step_before = self._step(spec)
        gpus = tuple(visible_gpus(spec.settings.device))
        try:
            reason = run_here(spec, run_dir(folder, spec.run_id), gpus, lambda step: None)
            if reason and reason.startswith("killed"):
                time.sleep(_SOON_S)  # Slurm ends or signals all processes of a job, this one perhaps a moment later
        except SystemExit:
            mark(folder, spec.run_id, "interrupted", "its job was stopped or requeued", spec)
            raise
        except UncompletedJobError:
            reason = (
                f"the time limit of {self.limit_min} minutes came before a checkpoint: give --slurm time=MINUTES more, "
                "or --checkpoint-every"
            )
        if run_state(folder, spec.run_id)["status"] not in ("completed", "failed"):
            mark(folder, spec.run_id, "failed", reason or "it ended without completing", spec)

    def _step(self, spec: RunSpec) -> int | None:
        found = newest_checkpoint(run_dir(Path(self.folder), spec.run_id), spec)
        return found[0] if found else None

    def checkpoint(self) -> Any:
        """This task again; None, which ends the job, where its whole time was not enough for one more checkpoint."""
        from submitit.helpers import DelayedSubmission

        timed_out = time.monotonic() - self._began > 60 * self.limit_min - 2 * SIGNAL_BEFORE_S
        if timed_out and self._step(RunSpec.model_validate_json(self.spec)) == self._step_before:
            return None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the requeue sends one to a process that is leaving already
        return DelayedSubmission(self)


def _leave(*_: object) -> None:
    raise SystemExit("ended by Slurm")


def _wait_for(path: Path) -> None:
    """A run of no time can be over before the sweep has written down which job has it."""
    until = time.monotonic() + _WAIT_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.2)
