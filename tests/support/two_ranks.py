"""One optimizer step of each mode on two ranks; as a script, rank 0 saves the gradients."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from support.trainer import train


def gradients_of_two_ranks(root: str, modes: list[str], rows: tuple[int, ...]) -> dict[tuple[str, int], torch.Tensor]:
    """The gradient of each mode's first step by rows of a rank's micro-batch, of two gloo processes with 16 rows."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", __spec__.name, root, out, ",".join(modes), ",".join(map(str, rows))]
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
        ranks = [
            subprocess.Popen(command, env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"
        ]
        try:
            assert [process.wait(timeout=300) for process in ranks] == [0, 0]
        finally:
            for process in ranks:
                process.kill()
        return {
            (mode, size): torch.load(Path(out) / f"{number}-{size}.pt")
            for number, mode in enumerate(modes)
            for size in rows
        }


def _rank(root: str, out: str, modes: str, rows: str) -> None:
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=2)
    for number, mode in enumerate(modes.split(",")):
        for size in map(int, rows.split(",")):
            step = train(root, mode=mode, per_device_train_batch_size=size, gradient_accumulation_steps=8 // size)
            if rank == 0:
                torch.save(step.gradients[0], Path(out) / f"{number}-{size}.pt")
    torch.distributed.barrier()
    os._exit(0)  # destructors of trainers may wait for the group of a process that is gone


if __name__ == "__main__":
    _rank(*sys.argv[1:])
