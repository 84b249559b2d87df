"""Processes: cores, starting them, and ending them with their parent."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

_PR_SET_PDEATHSIG = 1
_Result = TypeVar("_Result")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep new processes from importing the program that starts them, of which they need nothing.

    A script without a `__main__` guard would otherwise be run again in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def in_child(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Run a module's function in a process of its own, which loads libraries that this one can do without."""
    with main_hidden(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def on_signal(number: int, handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Have `handler` answer a signal for a while; in a thread, where none can be set, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that happens.

    Elsewhere than on Linux nothing is done: there a run notices that its sweep is gone at its next step.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
