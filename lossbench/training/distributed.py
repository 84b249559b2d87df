"""One run on several processes: the same `RunSpec`, the same files, gradients averaged by gloo or NCCL."""

import os
import signal
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed
from torch.multiprocessing.spawn import ProcessRaisedException, start_processes

from lossbench.errors import UsageError
from lossbench.policies.hardware import choose_device
from lossbench.training.run import execute
from lossbench.training.run_spec import OnStep, RunSpec

_PEER_TIMEOUT = timedelta(hours=2)  # the other ranks wait for the main one while it evaluates


def execute_run(spec: RunSpec, run_dir: Path, on_step: OnStep | None = None) -> None:
    """`execute`, on as many processes as the run asks for. Raises RuntimeError where one of them failed."""
    if spec.processes == 1:
        execute(spec, run_dir, on_step)
        return
    with tempfile.TemporaryDirectory() as folder:
        # A file to meet at: a free port could be taken by another run between its choice and its use.
        arguments = (spec, run_dir, on_step, f"{folder}/meeting")
        try:
            start_processes(_rank, arguments, nprocs=spec.processes, start_method="fork")
        except ProcessRaisedException as error:
            print(error, flush=True)
            last_line = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"process {error.error_index} of the run failed: {last_line}") from None


def _rank(rank: int, spec: RunSpec, run_dir: Path, on_step: OnStep | None, meeting: str) -> None:
    """One of the run's processes; accelerate finds its place in the environment."""
    from lossbench.processes import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spec.processes, "LOCAL_WORLD_SIZE": spec.processes}
    os.environ.update({name: str(value) for name, value in place.items()})
    on_gpu = choose_device(spec.settings.device) != "cpu"
    if on_gpu:
        if torch.cuda.device_count() < spec.processes:
            raise UsageError(
                f"{spec.processes} processes need a GPU each, and the run sees {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=spec.processes,
        timeout=_PEER_TIMEOUT,
    )  # fmt: skip
    try:
        execute(spec, run_dir, on_step)
    finally:
        torch.distributed.destroy_process_group()
