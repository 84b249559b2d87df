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

from lossbench.errors import UsageError
from lossbench.store.read import read_json
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended, Progress, Resources
from lossbench.sweep.executors.remote import RemoteExecutor
from lossbench.sweep.executors.sbatch import check, slurm_options  # noqa: F401 - the registry calls check
from lossbench.sweep.executors.slurm_task import OUTPUT, submit_array
from lossbench.sweep.folder import JOB_FILE
from lossbench.training.run_spec import RunSpec

_ASK_EVERY_S = 5.0
_LOOKS = 2  # at a job that has ended: a file system may show its last files late
_FAILED = ("FAILED", "OUT_OF_MEMORY", "COMPLETED")
_OVER = (*_FAILED, "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED", "FORGOTTEN")


def connect(wanted: Resources) -> "SlurmExecutor":
    """An executor on the cluster of this login node; nothing is submitted yet."""
    return SlurmExecutor(slurm_options(wanted), wanted.jobs)


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
        time.sleep(timeout_s if self._asked_at else 0)  # the first call submits
        jobs = {run_id: job_of(run_dir) for run_id, run_dir in self._going.items()}
        yield from (Ended(run, None) for run, job in jobs.items() if not job and run not in self._new)  # see run.json
        if not self._new and time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return
        self._asked_at = time.monotonic()
        if (known := self._states(job for job in jobs.values() if job)) is None:
            return
        states = {run_id: known.get(job, "FORGOTTEN") for run_id, job in jobs.items() if job}
        if fresh := [run_id for run_id in self._new if states.get(run_id, "FORGOTTEN") in _OVER]:
            self._hand_over(fresh)
        self._new.clear()
        for run_id in [run_id for run_id in states if run_id not in fresh]:
            state, run_dir = states[run_id], self._going[run_id]
            self._looks[run_id] = self._looks[run_id] + 1 if state in _OVER else 0
            if state == "RUNNING":
                yield Progress(run_id, 0)
            elif self._looks[run_id] == _LOOKS:
                (run_dir / JOB_FILE).unlink(missing_ok=True)
                output = run_dir.parents[1] / OUTPUT.format(job=jobs[run_id])
                reason = f"Slurm job {jobs[run_id]} is {state.lower()}; its output: {output}"
                yield Ended(run_id, reason, interrupted=state not in _FAILED)

    def _hand_over(self, run_ids: list[str]) -> None:
        """Submit the runs and write down which job has which: Ctrl-C, of which sbatch would hear too, has to wait."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for run_id, job in zip(run_ids, self._submit_array(run_ids), strict=True):
                write_json(self._going[run_id] / JOB_FILE, {"executor": "slurm", "job": job})
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

    def _submit_array(self, run_ids: list[str]) -> list[str]:
        """The ids of the runs' jobs. Raises UsageError where Slurm does not take them."""
        folder, specs = self._going[run_ids[0]].parents[1], [self._new[run_id] for run_id in run_ids]
        return submit_array(specs, folder, self._options, self._jobs or len(specs), self.cluster)

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
