"""Runs as the tasks of one Slurm job array, by submitit. Login and compute nodes share the sweep's folder.

While a job may work on a run, `job.json` in the run's folder names it; the job removes the file when it is done. What
Slurm knows comes from `squeue`, which needs no accounting storage.
"""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lossbench.errors import UsageError, one_line
from lossbench.store.read import read_json
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended, Progress, Resources
from lossbench.sweep.executors.remote import RemoteExecutor
from lossbench.sweep.executors.sbatch import check_options, parse_options
from lossbench.sweep.executors.slurm_task import SIGNAL_BEFORE_S, SlurmTask
from lossbench.sweep.folder import JOB_FILE
from lossbench.training.run_spec import RunSpec

_ASK_EVERY_S = 5.0
_LOOKS = 2  # at a job that has ended: a file system may show its last files late
_FAILED = ("FAILED", "OUT_OF_MEMORY", "COMPLETED")
_OVER = (*_FAILED, "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED", "FORGOTTEN")
_MOST_REQUEUES = 1000  # a job that makes no progress ends by itself
_FILES = ".slurm"  # submitit's, in the sweep's folder


def connect(wanted: Resources) -> "SlurmExecutor":
    """An executor on the cluster of this login node; nothing is submitted yet. Raises UsageError for bad options."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UsageError("--executor slurm needs the extra 'slurm': pip install 'lossbench[slurm]'") from None
    options = {"cpus_per_task": str(wanted.processes), **parse_options(wanted.slurm)}
    if wanted.gpus_per_run is not None:
        if wanted.gpus_per_run != int(wanted.gpus_per_run):
            raise UsageError(f"--gpus-per-run {wanted.gpus_per_run:g}: Slurm gives a job whole GPUs")
        options["gpus_per_node"] = str(int(wanted.gpus_per_run))
    check_options(options)
    return SlurmExecutor(options, wanted.jobs)


class SlurmExecutor(RemoteExecutor):
    """Submits all runs as one array of which `jobs` run at once, or attaches to the jobs that have them already."""

    slots = None
    detached = True
    cluster = "slurm"  # as submitit calls it

    def __init__(self, options: dict[str, str], jobs: int | None = None) -> None:
        super().__init__()
        self._options, self._jobs = options, jobs
        self._new: dict[str, RunSpec] = {}
        self._asked_at = 0.0
        self._looks: Counter[str] = Counter()

    def _submit(self, spec: RunSpec, run_dir: Path) -> None:
        self._new[spec.run_id] = spec

    def _poll(self, timeout_s: float) -> Iterable[Progress | Ended]:
        if self._new:
            self._attach_or_submit()
        time.sleep(timeout_s)
        jobs = {run_id: job_of(run_dir) for run_id, run_dir in self._going.items() if run_id not in self._new}
        yield from (Ended(run_id, None) for run_id, job in jobs.items() if job is None)  # run.json says how
        if time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return
        self._asked_at = time.monotonic()
        states = self._states(job for job in jobs.values() if job)
        for run_id, job in jobs.items():
            if states is None:
                break
            state = states.get(job, "FORGOTTEN") if job else None
            self._looks[run_id] = self._looks[run_id] + 1 if state in _OVER else 0
            if state == "RUNNING":
                yield Progress(run_id, 0)
            elif self._looks[run_id] == _LOOKS:
                (self._going[run_id] / JOB_FILE).unlink(missing_ok=True)
                output = self._going[run_id].parents[1] / _FILES / f"{job}_0_log.out"
                reason = f"Slurm job {job} is {str(state).lower()}; its output: {output}"
                yield Ended(run_id, reason, interrupted=state not in _FAILED)

    def _attach_or_submit(self) -> None:
        """Leave runs alone that have a job in the queue; submit the others as one array."""
        jobs = {run_id: job_of(self._going[run_id]) for run_id in self._new}
        states = self._states(job for job in jobs.values() if job)
        if states is None:
            return
        fresh = [run_id for run_id, job in jobs.items() if not job or states.get(job, "FORGOTTEN") in _OVER]
        # Ctrl-C, of which sbatch would hear too, has to wait until what was submitted is written down.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for run_id, job in zip(fresh, self._submit_array(fresh) if fresh else (), strict=True):
                write_json(self._going[run_id] / JOB_FILE, {"executor": "slurm", "job": job})
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        self._new.clear()

    def _submit_array(self, run_ids: list[str]) -> list[str]:
        """The ids of the runs' jobs. Raises UsageError where Slurm does not take them."""
        from submitit import AutoExecutor
        from submitit.core.utils import FailedJobError

        folder, limit_min = self._going[run_ids[0]].parents[1], int(self._options["time"])
        executor = AutoExecutor(folder / _FILES, cluster=self.cluster, slurm_max_num_timeout=_MOST_REQUEUES)
        executor.update_parameters(
            name="lossbench", timeout_min=limit_min, stderr_to_stdout=True, slurm_signal_delay_s=SIGNAL_BEFORE_S,
            slurm_array_parallelism=self._jobs or len(run_ids),
            slurm_additional_parameters={"requeue": True, **self._options},
        )  # fmt: skip
        try:
            with executor.batch():
                jobs = [executor.submit(SlurmTask(self._new[run_id], folder, limit_min)) for run_id in run_ids]
        except (FailedJobError, OSError, subprocess.CalledProcessError) as error:
            raise UsageError(f"Slurm did not take the jobs: {one_line(error)}") from None
        return [job.job_id for job in jobs]

    def _states(self, jobs: Iterable[str]) -> dict[str, str] | None:
        """The state of each job that Slurm remembers; None where it does not answer."""
        ids = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
        if not ids:
            return {}
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={ids}"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode:
            return {} if "Invalid job id" in asked.stderr else None
        return dict(line.split() for line in asked.stdout.splitlines())

    def withdraw(self) -> None:
        """Cancel the jobs that have not begun."""
        self._scancel("--state=PENDING")

    def _cancel(self) -> None:
        self._scancel()
        for run_dir in self._going.values():
            (run_dir / JOB_FILE).unlink(missing_ok=True)

    def _scancel(self, *how: str) -> None:
        if jobs := [job for run_dir in self._going.values() if (job := job_of(run_dir))]:
            subprocess.run(["scancel", *how, *jobs], capture_output=True, check=False)


def job_of(run_dir: Path) -> str | None:
    """The Slurm job that may work on the run; None where none does."""
    with suppress(UsageError):
        return read_json(run_dir / JOB_FILE)["job"]
    return None
