"""Executors by name. To add one: write its file, then one row here."""

from collections.abc import Callable

from lossbench.errors import UsageError, unknown
from lossbench.sweep.executors.base import Executor


def _local(jobs: int | None, address: str | None) -> Executor:
    from lossbench.sweep.executors.local import LocalExecutor

    if address is not None:
        raise UsageError("--address belongs to --executor ray")
    return LocalExecutor(jobs or default_jobs())


EXECUTORS: dict[str, Callable[[int | None, str | None], Executor]] = {"local": _local}


def make_executor(name: str, jobs: int | None = None, address: str | None = None) -> Executor:
    """The executor called `name` with `jobs` runs at once (default: one per core). Raises UsageError."""
    if name not in EXECUTORS:
        raise UsageError(unknown("executor", name, EXECUTORS))
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: give 1 or more")
    return EXECUTORS[name](jobs, address)


def default_jobs() -> int:
    """Cores this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
