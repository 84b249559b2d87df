"""Runs on this machine: a process each, forked from a server that has imported torch and TRL once."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from lossbench.sweep.executors.base import Ended, Progress
from lossbench.training.spec import RunSpec

_STOP_GRACE_S = 2.0


class LocalExecutor:
    """`jobs` runs at once, `threads` threads each."""

    def __init__(self, jobs: int, threads: int = 1) -> None:
        self.slots = jobs
        self.threads = threads
        # Read by the libraries when the server imports them; a run must not take its neighbours' cores.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["lossbench.training.run"])
        self._running: dict[str, tuple[ForkServerProcess, Connection]] = {}

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Fork a process for the run; its output goes to the run's log.txt."""
        ours, theirs = self._context.Pipe(duplex=False)
        run_dir.mkdir(parents=True, exist_ok=True)
        process = self._context.Process(
            target=_work, args=(spec.model_dump_json(), str(run_dir), theirs, self.threads), name=spec.run_id
        )
        process.start()
        theirs.close()
        self._running[spec.run_id] = (process, ours)

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Progress and ends since the last call."""
        ready = set(wait([pipe for _, pipe in self._running.values()], timeout_s))
        for run_id, (process, pipe) in list(self._running.items()):
            if pipe in ready:
                yield from self._read(run_id, process, pipe)

    def _read(self, run_id: str, process: ForkServerProcess, pipe: Connection) -> Iterable[Progress | Ended]:
        """Empty the pipe; its end is the run's end."""
        try:
            while pipe.poll():
                yield Progress(run_id, *pipe.recv())
        except EOFError:
            process.join()
            pipe.close()
            del self._running[run_id]
            yield Ended(run_id, _reason(process.exitcode))

    def stop(self) -> None:
        """Terminate all runs; kill those that do not go."""
        for process, _ in self._running.values():
            process.terminate()
        for process, pipe in self._running.values():
            process.join(_STOP_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._running.clear()


def _reason(exit_code: int | None) -> str | None:
    if exit_code == 0:
        return None
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


def _work(spec_json: str, run_dir: str, pipe: Connection, threads: int) -> None:
    """The run's process: output to its log, progress into the pipe."""
    import signal

    # Ctrl-C reaches the whole process group; the driver decides what becomes of the runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(Path(run_dir) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch

    from lossbench.training.run import execute

    torch.set_num_threads(threads)

    def on_step(step: int, reward_mean: float | None, length_mean: float | None) -> None:
        try:
            pipe.send((step, reward_mean, length_mean))
        except BrokenPipeError:
            raise SystemExit("the sweep that started this run is gone") from None

    try:
        execute(RunSpec.model_validate_json(spec_json), Path(run_dir), on_step)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
