"""The task of a Slurm job on its node: one run in its folder, again after each requeue until the run is over."""

import signal
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lossbench.sweep.executors.remote import run_here
from lossbench.sweep.executors.slots import visible_gpus
from lossbench.sweep.folder import JOB_FILE, mark, run_dir, run_state
from lossbench.training.checkpoint import newest_checkpoint
from lossbench.training.run_spec import RunSpec

SIGNAL_BEFORE_S = 60  # the time limit, Slurm tells the job
_SOON_S = 3
_WAIT_S = 60  # for a job that was cancelled and has not ended yet


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
        gpus = () if spec.settings.device == "cpu" else tuple(visible_gpus())
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
        return DelayedSubmission(self)


def _leave(*_: object) -> None:
    raise SystemExit("ended by Slurm")


def _wait_for(path: Path) -> None:
    """A run of no time can be over before the sweep has written down which job has it."""
    until = time.monotonic() + _WAIT_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.2)
