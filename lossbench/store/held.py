"""Whether somebody works on a sweep's folder: locks as a reader sees them."""

import fcntl
from pathlib import Path
from typing import TextIO

LOCK_FILE = ".lock"


def is_being_worked_on(folder: Path) -> bool:
    """Whether a sweep, or a slice of one, is running in `folder` now."""
    return (folder / LOCK_FILE).exists() and is_held(folder / LOCK_FILE)


def is_held(path: Path) -> bool:
    """Whether some process holds a lock on `path`, alone or shared."""
    with path.open() as handle:
        return not try_lock(handle, fcntl.LOCK_EX)


def try_lock(handle: TextIO, kind: int) -> bool:
    """Take a lock of this kind (`fcntl.LOCK_EX`, `LOCK_SH`) if it is free; whether it was."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
