"""Runs what is left of a plan, in plan order, as many at once as the executor has slots."""

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from lossbench.processes import on_signal
from lossbench.sweep.executors.base import Ended, Executor, Progress
from lossbench.sweep.folder import JOB_FILE, mark, run_dir, run_state
from lossbench.training.run_spec import RunSpec

_WAIT_S = 0.5


class Watch:
    """Callbacks of a sweep, in the order of their calls; here all of them do nothing."""

    wants_notes = False
    """Whether remarks that cost seconds to find are looked for."""

    def note(self, text: str) -> None:
        """One line that is worth knowing before the runs start."""

    def begun(self, folder: Path, mine: Sequence[RunSpec], left: Sequence[RunSpec], slots: int | None) -> None:
        """The runs `left` of `mine` are about to start, at most `slots` at once; None: as a queue lets them."""

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

    def goes_on(self, runs: int) -> bool:
        """Asked once when a sweep is interrupted whose `runs` can go on without it: whether they do."""
        return True


@dataclass(frozen=True)
class Outcome:
    """Counts of the planned runs in `folder` by status, after a call."""

    folder: Path
    completed: int
    failed: int
    left: int
    elsewhere: int  # that jobs of a cluster have now


def left_to_do(folder: Path, runs: Sequence[RunSpec], *, retry_failed: bool = False) -> list[RunSpec]:
    """The runs of the plan that this call has to make: neither completed nor, unless asked for, failed."""
    skipped = {"completed"} if retry_failed else {"completed", "failed"}
    return [spec for spec in runs if run_state(folder, spec.run_id)["status"] not in skipped]


def run_all(
    folder: Path, runs: Sequence[RunSpec], executor: Executor, watch: Watch,
    *, fail_fast: bool = False, detach: bool = False,
) -> None:  # fmt: skip
    """Run all of `runs`; a run that fails is recorded and the others go on, unless `fail_fast`.

    On an interrupt the runs that were going are stopped and marked as interrupted, unless they go on elsewhere, and the
    interrupt is passed on. With `detach`, runs that go on elsewhere are not waited for.
    """
    waiting = list(runs)[::-1]
    going: dict[str, RunSpec] = {}
    begun: set[str] = set()
    failed = False

    def begin(spec: RunSpec) -> None:
        if spec.run_id not in begun:
            begun.add(spec.run_id)
            watch.started(spec)

    try:
        while going or (waiting and not (failed and fail_fast)):
            while waiting and (executor.slots is None or len(going) < executor.slots) and not (failed and fail_fast):
                spec = waiting.pop()
                try:
                    executor.start(spec, run_dir(folder, spec.run_id))
                except (OSError, EOFError) as error:  # no memory for another process, no room on the disk
                    begin(spec)
                    failed |= _end(folder, spec, Ended(spec.run_id, f"could not start: {error}"), watch)
                else:
                    going[spec.run_id] = spec
            if failed and fail_fast:
                executor.withdraw()
            for event in executor.events(_WAIT_S):
                if event.run_id in going:
                    begin(going[event.run_id])
                if isinstance(event, Ended):
                    failed |= _end(folder, going.pop(event.run_id), event, watch)
                elif event.run_id in going and event.step:
                    watch.progressed(event)
            if detach and executor.detached and not waiting:
                break
    except KeyboardInterrupt:
        executor.detached = executor.detached and (detach or not going or watch.goes_on(len(going)))
        raise
    finally:
        with on_signal(signal.SIGINT, signal.SIG_IGN):  # a second Ctrl-C must not keep the runs from being stopped
            executor.stop()
            for spec in () if executor.detached else going.values():
                if run_state(folder, spec.run_id)["status"] != "completed":
                    _record(folder, spec, "interrupted", "stopped with the sweep")


def _end(folder: Path, spec: RunSpec, event: Ended, watch: Watch) -> bool:
    """Settle what the run's folder says; whether the run failed. A run that is recorded as completed is."""
    state = run_state(folder, spec.run_id)
    reason = None
    if state["status"] != "completed":
        reason = event.reason or state.get("reason") or "it ended without completing"
        status = "interrupted" if event.interrupted else "failed"
        if (state["status"], state.get("reason")) != (status, reason):
            reason = _record(folder, spec, status, reason)
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
    counts: Counter[str] = Counter()
    for spec in runs:
        status = run_state(folder, spec.run_id)["status"]
        over = status in ("completed", "failed")
        counts[status if over else "elsewhere" if (run_dir(folder, spec.run_id) / JOB_FILE).exists() else "left"] += 1
    return Outcome(folder, *(counts[name] for name in ("completed", "failed", "left", "elsewhere")))
