"""The seam between the schedule and whatever runs the runs. A new executor is one file and one row in `EXECUTORS`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lossbench.training.run_spec import RunSpec


@dataclass(frozen=True)
class Resources:
    """Resources of a sweep, as asked for; None leaves the choice to the executor."""

    jobs: int | None = None  # runs at once
    gpus_per_run: float | None = None
    processes: int = 1  # per run
    device: str = "auto"  # of the runs: auto, cpu, cuda
    address: str | None = None  # of a cluster
    slurm: str | None = None  # options of sbatch: NAME=VALUE,NAME=VALUE


@dataclass(frozen=True)
class Progress:
    """A run made a step; step 0: it began."""

    run_id: str
    step: int
    reward_mean: float | None = None
    length_mean: float | None = None


@dataclass(frozen=True)
class Ended:
    """A run is over: `reason` is None where it completed, else one line."""

    run_id: str
    reason: str | None
    interrupted: bool = False  # cancelled or lost rather than failed: the same command continues it


class Executor(Protocol):
    """Starts runs, tells of their progress, stops them. A run's files are in its folder when `Ended` is told."""

    slots: int | None  # runs at once; None: a queue takes them all
    detached: bool = False  # whether runs go on when the sweep that started them ends

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Start a run without waiting for it."""
        ...

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Events since the last call; waits up to `timeout_s` for something to happen."""
        ...

    def withdraw(self) -> None:
        """Take back runs that wait in a queue; `events` tells of them as interrupted."""

    def stop(self) -> None:
        """End all runs that are going, within seconds, and leave no process behind; `detached` ones go on."""
        ...
