"""Executors by name. To add one: write its module with `connect(wanted)`, then one row here."""

from importlib import import_module
from typing import NamedTuple

from lossbench.errors import UsageError, unknown
from lossbench.sweep.executors.base import Executor, Resources


class Kind(NamedTuple):
    """Facts about an executor, known before it is imported."""

    here: bool = False  # whether its runs are made on this machine
    options: tuple[str, ...] = ()  # fields of `Resources` that it alone takes


EXECUTORS = {"local": Kind(here=True), "ray": Kind(options=("address",)), "slurm": Kind(options=("slurm",))}


def kind_of(name: str) -> Kind:
    """The executor called `name`. Raises UsageError if none exists."""
    if name not in EXECUTORS:
        raise UsageError(unknown("executor", name, EXECUTORS))
    return EXECUTORS[name]


def make_executor(name: str, wanted: Resources) -> Executor:
    """The executor called `name` with what it may use. Raises UsageError for an unknown name, or for too much."""
    kind_of(name)
    for owner, kind in EXECUTORS.items():
        for option in kind.options if owner != name else ():
            if getattr(wanted, option) is not None:
                raise UsageError(f"--{option} belongs to --executor {owner}")
    if wanted.jobs is not None and wanted.jobs < 1:
        raise UsageError(f"--jobs {wanted.jobs}: give 1 or more")
    return import_module(f"lossbench.sweep.executors.{name}").connect(wanted)
