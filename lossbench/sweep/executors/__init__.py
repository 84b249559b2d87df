"""Executors by name. To add one: write its module with `connect(wanted)`, then one row here."""

from importlib import import_module

from lossbench.errors import UsageError, unknown
from lossbench.sweep.executors.base import Executor, Resources

# Which of `Resources` belong to one executor alone.
EXECUTORS: dict[str, tuple[str, ...]] = {"local": (), "ray": ("address",), "slurm": ("slurm",)}


def make_executor(name: str, wanted: Resources) -> Executor:
    """The executor called `name` with what it may use. Raises UsageError for an unknown name, or for too much."""
    if name not in EXECUTORS:
        raise UsageError(unknown("executor", name, EXECUTORS))
    for owner, options in EXECUTORS.items():
        for option in options if owner != name else ():
            if getattr(wanted, option) is not None:
                raise UsageError(f"--{option} belongs to --executor {owner}")
    if wanted.jobs is not None and wanted.jobs < 1:
        raise UsageError(f"--jobs {wanted.jobs}: give 1 or more")
    return import_module(f"lossbench.sweep.executors.{name}").connect(wanted)
