"""Run by torchrun: one optimizer step of each mode on two ranks, at two sizes of micro-batch; rank 0 saves it."""

import os
import sys
from pathlib import Path

import torch

from support.trainer import train

if __name__ == "__main__":
    root, out, *modes = sys.argv[1:]
    rank = int(os.environ["RANK"])
    for number, mode in enumerate(modes):
        for rows in (4, 8):
            step = train(root, mode=mode, per_device_train_batch_size=rows, gradient_accumulation_steps=8 // rows)
            if rank == 0:
                torch.save(step.gradients[0], Path(out) / f"{number}-{rows}.pt")
    torch.distributed.destroy_process_group()
