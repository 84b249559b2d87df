"""Runs what is left of a plan, in plan order, as many at once as the executor has slots."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lossbench.sweep.executors.base import Ended, Executor, Progress
from lossbench.sweep.folder import mark, run_dir, run_state
from lossbench.training.spec import RunSpec

_WAIT_S = 0.5


class Display(Protocol):
    """Whoever watches: told of starts, steps and ends."""

    def started(self, spec: RunSpec) -> None:
        """A run begins."""
        ...

    def progressed(self, progress: Progress) -> None:
        """A run made a step."""
        ...

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        """A run is over; `reason` is None where it completed."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How many of the planned runs stand where after this call."""

    completed: int
    failed: int
    left: int


def left_to_do(folder: Path, runs: Sequence[RunSpec], *, retry_failed: bool = False) -> list[RunSpec]:
    """The runs of the plan that this call has to make: neither completed nor, unless asked for, failed."""
    skipped = {"completed"} if retry_failed else {"completed", "failed"}
    return [spec for spec in runs if run_state(folder, spec.run_id)["status"] not in skipped]


def run_all(
    folder: Path, runs: Sequence[RunSpec], executor: Executor, display: Display, *, fail_fast: bool = False
) -> None:
    """Run all of `runs`; a run that fails is recorded and the others go on, unless `fail_fast`.

    On an interrupt the runs that were going are stopped and marked as interrupted, and the interrupt is passed on.
    """
    waiting = list(runs)[::-1]
    going: dict[str, RunSpec] = {}
    failed = False
    try:
        while going or (waiting and not (failed and fail_fast)):
            while waiting and len(going) < executor.slots and not (failed and fail_fast):
                spec = waiting.pop()
                executor.start(spec, run_dir(folder, spec.run_id))
                going[spec.run_id] = spec
                display.started(spec)
            for event in executor.events(_WAIT_S):
                if isinstance(event, Ended):
                    spec = going.pop(event.run_id)
                    failed |= _end(folder, spec, event, display)
                else:
                    display.progressed(event)
    finally:
        executor.stop()
        for spec in going.values():
            mark(folder, spec.run_id, "interrupted", "stopped with the sweep", spec)


def _end(folder: Path, spec: RunSpec, event: Ended, display: Display) -> bool:
    """Settle what the run's folder says; whether the run failed."""
    state = run_state(folder, spec.run_id)
    reason = event.reason
    if reason is None and state["status"] != "completed":
        reason = state.get("reason") or "it ended without completing"
    if reason is not None:
        if state["status"] != "failed":
            mark(folder, spec.run_id, "failed", reason, spec)
        reason = run_state(folder, spec.run_id).get("reason") or reason
    display.ended(spec, reason, run_dir(folder, spec.run_id) / "log.txt")
    return reason is not None


def outcome(folder: Path, runs: Sequence[RunSpec]) -> Outcome:
    """Count where the planned runs stand."""
    counts = Counter(run_state(folder, spec.run_id)["status"] for spec in runs)
    return Outcome(counts["completed"], counts["failed"], len(runs) - counts["completed"] - counts["failed"])
