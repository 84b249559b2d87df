"""The seam between the schedule and whatever runs the runs. A new executor is one file and one row in `EXECUTORS`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lossbench.training.run_spec import RunSpec


@dataclass(frozen=True)
class Resources:
    """What a sweep may use, as asked for; None leaves the choice to the executor."""

    jobs: int | None = None  # runs at once
    gpus_per_run: float | None = None
    processes: int = 1  # per run
    device: str = "auto"  # of the runs: auto, cpu, cuda
    address: str | None = None  # of a cluster


@dataclass(frozen=True)
class Progress:
    """A run made a step."""

    run_id: str
    step: int
    reward_mean: float | None
    length_mean: float | None


@dataclass(frozen=True)
class Ended:
    """A run is over: `reason` is None where it completed, else one line."""

    run_id: str
    reason: str | None


class Executor(Protocol):
    """Starts runs, tells of their progress, stops them. A run's files are in its folder when `Ended` is told."""

    slots: int  # runs at once

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Start a run without waiting for it."""
        ...

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """What happened since the last call; waits up to `timeout_s` for something to happen."""
        ...

    def stop(self) -> None:
        """End all runs that are going, within seconds, and leave no process behind."""
        ...
