"""Executors by name. To add one: write its module with `connect(wanted)`, then one row here."""

from importlib import import_module
from typing import NamedTuple

from lossbench.errors import UsageError, unknown
from lossbench.sweep.executors.base import Executor, Resources


class Kind(NamedTuple):
    """Facts about an executor, known before it is imported."""

    here: bool = False  # whether its runs are made on this machine
    detached: bool = False  # whether its runs can go on when the sweep ends; its module then has `check` too
    options: tuple[str, ...] = ()  # fields of `Resources` that it alone takes


EXECUTORS = {
    "local": Kind(here=True),
    "ray": Kind(options=("address",)),
    "slurm": Kind(detached=True, options=("slurm",)),
}


def kind_of(name: str) -> Kind:
    """The executor called `name`. Raises UsageError if none exists."""
    if name not in EXECUTORS:
        raise UsageError(unknown("executor", name, EXECUTORS))
    return EXECUTORS[name]


def check_executor(name: str, wanted: Resources, runs: int = 1) -> None:
    """Raise UsageError for an unknown name, for another's options, or for what its `check` finds for so many runs."""
    kind_of(name)
    for owner, kind in EXECUTORS.items():
        for option in kind.options if owner != name else ():
            if getattr(wanted, option) is not None:
                raise UsageError(f"--{option} belongs to --executor {owner}")
    if wanted.jobs is not None and wanted.jobs < 1:
        raise UsageError(f"--jobs {wanted.jobs}: give 1 or more")
    if kind_of(name).detached:
        import_module(f"lossbench.sweep.executors.{name}").check(wanted, runs)


def make_executor(name: str, wanted: Resources) -> Executor:
    """The executor called `name` with what it may use. Raises UsageError as `check_executor`, or for too much."""
    check_executor(name, wanted)
    return import_module(f"lossbench.sweep.executors.{name}").connect(wanted)
