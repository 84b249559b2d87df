"""What every room needs that starts processes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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
