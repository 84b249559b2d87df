"""Executors by name. To add one: write its file, then one row here."""

from collections.abc import Callable

from lossbench.errors import UsageError, unknown
from lossbench.sweep.executors.base import Executor, Resources


def _local(wanted: Resources) -> Executor:
    from lossbench.sweep.executors.local import LocalExecutor
    from lossbench.sweep.executors.slots import local_slots

    if wanted.address is not None:
        raise UsageError("--address belongs to --executor ray")
    return LocalExecutor(local_slots(wanted))


def _ray(wanted: Resources) -> Executor:
    from lossbench.sweep.executors.ray import connect

    return connect(wanted)


EXECUTORS: dict[str, Callable[[Resources], Executor]] = {"local": _local, "ray": _ray}


def make_executor(name: str, wanted: Resources) -> Executor:
    """The executor called `name` with what it may use. Raises UsageError for an unknown name, or for too much."""
    if name not in EXECUTORS:
        raise UsageError(unknown("executor", name, EXECUTORS))
    if wanted.jobs is not None and wanted.jobs < 1:
        raise UsageError(f"--jobs {wanted.jobs}: give 1 or more")
    return EXECUTORS[name](wanted)
