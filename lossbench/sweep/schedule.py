"""Runs what is left of a plan, in plan order, as many at once as the executor has slots."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from lossbench.sweep.executors.base import Ended, Executor, Progress
from lossbench.sweep.folder import mark, run_dir, run_state
from lossbench.training.run_spec import RunSpec

_WAIT_S = 0.5


class Watch:
    """Callbacks of a sweep, in the order of their calls; here all of them do nothing."""

    wants_notes = False
    """Whether remarks that cost seconds to find are looked for."""

    def note(self, text: str) -> None:
        """One line that is worth knowing before the runs start."""

    def begun(self, folder: Path, mine: Sequence[RunSpec], left: Sequence[RunSpec], slots: int) -> None:
        """The runs `left` of `mine` are about to start, at most `slots` at once."""

    def warm_start(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Built-in policies are built while the context is open; it yields `on_step(done, total)`."""
        return nullcontext(lambda done, total: None)

    def started(self, spec: RunSpec) -> None:
        """A run begins."""

    def progressed(self, progress: Progress) -> None:
        """A run made a step."""

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        """A run is over; `reason` is None where it completed."""

    def over(self) -> None:
        """No more steps come, whether or not all runs were made."""


@dataclass(frozen=True)
class Outcome:
    """How many of the planned runs stand where in `folder` after a call."""

    folder: Path
    completed: int
    failed: int
    left: int


def left_to_do(folder: Path, runs: Sequence[RunSpec], *, retry_failed: bool = False) -> list[RunSpec]:
    """The runs of the plan that this call has to make: neither completed nor, unless asked for, failed."""
    skipped = {"completed"} if retry_failed else {"completed", "failed"}
    return [spec for spec in runs if run_state(folder, spec.run_id)["status"] not in skipped]


def run_all(
    folder: Path, runs: Sequence[RunSpec], executor: Executor, watch: Watch, *, fail_fast: bool = False
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
                watch.started(spec)
                try:
                    executor.start(spec, run_dir(folder, spec.run_id))
                except (OSError, EOFError) as error:  # no memory for another process, no room on the disk
                    failed |= _end(folder, spec, Ended(spec.run_id, f"could not start: {error}"), watch)
                else:
                    going[spec.run_id] = spec
            for event in executor.events(_WAIT_S):
                if isinstance(event, Ended):
                    spec = going.pop(event.run_id)
                    failed |= _end(folder, spec, event, watch)
                elif event.run_id in going:
                    watch.progressed(event)
    finally:
        with _undisturbed():
            executor.stop()
            for spec in going.values():
                if run_state(folder, spec.run_id)["status"] != "completed":
                    _record(folder, spec, "interrupted", "stopped with the sweep")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not keep the runs from being stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(folder: Path, spec: RunSpec, event: Ended, watch: Watch) -> bool:
    """Settle what the run's folder says; whether the run failed. A run that is recorded as completed is."""
    state = run_state(folder, spec.run_id)
    reason = None
    if state["status"] != "completed":
        reason = event.reason or state.get("reason") or "it ended without completing"
        if (state["status"], state.get("reason")) != ("failed", reason):
            reason = _record(folder, spec, "failed", reason)
    watch.ended(spec, reason, run_dir(folder, spec.run_id) / "log.txt")
    return reason is not None


def _record(folder: Path, spec: RunSpec, status: str, reason: str) -> str:
    """Write how the run ended into its run.json; returns `reason`, with more where the disk does not take it."""
    try:
        mark(folder, spec.run_id, status, reason, spec)
    except OSError as error:
        return f"{reason} (and it could not be recorded: {error})"
    return reason


def outcome(folder: Path, runs: Sequence[RunSpec]) -> Outcome:
    """Count where the planned runs stand."""
    counts = Counter(run_state(folder, spec.run_id)["status"] for spec in runs)
    left = len(runs) - counts["completed"] - counts["failed"]
    return Outcome(folder, counts["completed"], counts["failed"], left)
