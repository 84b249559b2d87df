"""Locks on folders and files, by `filelock`: the system releases a lock when the process that holds it ends.

A sweep holds its folder alone. Slices of one plan (`--shard i/n`) share it, each slice held once, all of the same n.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lossbench.errors import UsageError

LOCK_FILE = ".lock"
GATE = ".lock-gate"  # held while a folder's locks are compared and one is taken
_BRIEFLY_S = 0.15  # someone may hold a lock for an instant, only to see whether it is free


@contextmanager
def exclusive(path: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold the lock file `path`: wait for its holder or, where a `refusal` is given, raise UsageError with it."""
    from filelock import FileLock, Timeout

    try:
        held = FileLock(path).acquire(timeout=-1 if refusal is None else _BRIEFLY_S)
    except Timeout:
        raise UsageError(str(refusal)) from None
    with held:
        yield


@contextmanager
def sweep_lock(folder: Path, shard: tuple[int, int] | None = None, plan: str = "") -> Iterator[None]:
    """Hold `folder` for a sweep. Raises UsageError where another one that could make the same runs holds it.

    `shard` is slice i of n of the plan that `plan` names; slices of another plan could hold the same runs.
    """
    what = "a sweep" if shard is None else f"a sweep that would share runs with slice {shard[0]}"
    refusal = f"{what} is running in '{folder}' already: wait for it, or give another --out"
    cut = None if shard is None else f"-of-{shard[1]}{plan}"
    mine = folder / (LOCK_FILE if shard is None else f"{LOCK_FILE}-{shard[0]}{cut}")
    with ExitStack() as held:
        with exclusive(folder / GATE):
            for other in _lock_files(folder):
                if other != mine and not (cut and other.name.endswith(cut)) and _is_held(other):
                    raise UsageError(refusal)
            held.enter_context(exclusive(mine, refusal))
        yield


def is_being_worked_on(folder: Path) -> bool:
    """Whether a sweep, a slice of one or an import of logs is running in `folder` now."""
    return any(_is_held(path) for path in _lock_files(folder))


def _lock_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"{LOCK_FILE}*") if path.name != GATE and path.is_file()]


def _is_held(path: Path) -> bool:
    """Whether some process holds the lock; needs no permission to write, and does not stand in another reader's way."""
    if sys.platform == "win32":
        from filelock import FileLock, Timeout

        try:
            FileLock(path, timeout=0).acquire().lock.release()
        except Timeout:
            return True
        except OSError:
            pass
        return False
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # released and removed, or a link
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(descriptor)
    return False
