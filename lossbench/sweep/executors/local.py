"""Runs on this machine: a process each, forked from a server that has imported torch and TRL once."""

import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from lossbench.processes import cores, main_hidden
from lossbench.sweep.executors.base import Ended, Executor, Progress, Resources
from lossbench.sweep.executors.slots import plan_slots, visible_gpus
from lossbench.sweep.executors.worker import Execute, work
from lossbench.training.run_spec import RunSpec

_STOP_GRACE_S = 2.0
_SERVER = "lossbench.sweep.executors.fork_server"


@dataclass
class _Going:
    """A run that is going on: its process, the pipe it tells through, its slot, and the fault it told of."""

    process: ForkServerProcess
    pipe: Connection
    slot: tuple[str, ...]
    fault: str | None = None


def connect(wanted: Resources) -> "LocalExecutor":
    """An executor on this machine. Raises UsageError where more is asked for than it has."""
    return LocalExecutor(plan_slots(wanted, visible_gpus(wanted.device), cores()))


class LocalExecutor(Executor):
    """As many runs at once as there are `slots`, each on the GPUs of its slot, with `threads` threads.

    `execute` makes a run in its process; the default is `lossbench.training.run.execute_run`.
    """

    def __init__(self, slots: Sequence[tuple[str, ...]], threads: int = 1, execute: Execute | None = None) -> None:
        self.slots = len(slots)
        self.threads = threads
        self._free = list(slots)[::-1]
        self._execute = execute
        # Read by the libraries when the server imports them; a run must not take its neighbours' cores.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        # A server that has touched CUDA could not fork runs that use it; this way of counting GPUs does not touch it.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_SERVER])
        self._going: dict[str, _Going] = {}

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Fork a process for the run; its output goes to the run's log.txt. Raises OSError where that cannot be."""
        run_dir.mkdir(parents=True, exist_ok=True)
        slot = self._free[-1]
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (spec.model_dump_json(), str(run_dir), theirs, slot, self.threads, self._execute)
        _start_server()
        process = self._context.Process(target=work, args=arguments, name=spec.run_id)
        with main_hidden():
            process.start()
        theirs.close()
        self._free.pop()
        self._going[spec.run_id] = _Going(process, ours, slot)

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Begins, steps and ends since the last call."""
        ready = set(wait([going.pipe for going in self._going.values()], timeout_s))
        for run_id, going in list(self._going.items()):
            if going.pipe in ready:
                yield from self._read(run_id, going)

    def _read(self, run_id: str, going: _Going) -> Iterable[Progress | Ended]:
        """Empty the pipe; its end is the run's end."""
        try:
            while going.pipe.poll():
                message = going.pipe.recv()
                if isinstance(message, str):
                    going.fault = message
                else:
                    yield Progress(run_id, *message)
        except (EOFError, OSError):  # OSError: it was killed in the middle of a message
            going.process.join()
            going.pipe.close()
            del self._going[run_id]
            self._free.append(going.slot)
            yield Ended(run_id, going.fault or _reason(going.process.exitcode))

    def stop(self) -> None:
        """Terminate all runs; kill those that do not go."""
        for going in self._going.values():
            going.process.terminate()
        for going in self._going.values():
            going.process.join(_STOP_GRACE_S)
            if going.process.is_alive():
                going.process.kill()
                going.process.join()
            going.pipe.close()
            self._free.append(going.slot)
        self._going.clear()


def _start_server() -> None:
    """Start the fork server, unless it is there, such that Ctrl-C does not reach it: the mask is inherited."""
    _start_tracker()  # lifts the mask when it has to start its own process, so it goes first
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start_tracker() -> None:
    """Start what clears away the semaphores of a run that is stopped (progress bars hold some), without a word."""
    before = os.environ.get("PYTHONWARNINGS", "")
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning"
    try:
        resource_tracker.ensure_running()
    finally:
        os.environ["PYTHONWARNINGS"] = before


def _reason(exit_code: int | None) -> str | None:
    if exit_code == 0:
        return None
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"
