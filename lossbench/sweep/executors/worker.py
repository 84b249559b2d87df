"""The process of one run, as an executor starts it: nothing heavy is imported before it has to be."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from lossbench.processes import die_with_parent
from lossbench.training.run_spec import OnStep, RunSpec

Execute = Callable[[RunSpec, Path, OnStep], None]


def work(
    spec_json: str, run_dir: str, pipe: Connection, gpus: tuple[str, ...], threads: int, execute: Execute | None
) -> None:
    """Make the run: output to its log; steps, and the reason of a failure, into the pipe.

    `execute` is `lossbench.training.run.execute_run` where it is None. Ends with exit code 1 where it raised.
    """
    # Ctrl-C reaches the whole process group; the sweep decides what becomes of its runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    log = os.open(Path(run_dir) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    pipe.send((0, None, None))  # it has begun
    import torch

    from lossbench.training.run import describe, execute_run

    torch.set_num_threads(threads)

    def on_step(step: int, reward_mean: float | None, length_mean: float | None) -> None:
        try:
            pipe.send((step, reward_mean, length_mean))
        except BrokenPipeError:
            raise SystemExit("the sweep that started this run is gone") from None

    try:
        (execute or execute_run)(RunSpec.model_validate_json(spec_json), Path(run_dir), on_step)
    except Exception as error:
        pipe.send(describe(error))
        # What room is left on a full disk is for the run's state.
        if not (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            traceback.print_exc()
        sys.exit(1)
