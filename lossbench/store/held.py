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
    # Over NFS an exclusive lock needs a file open for writing, and a shared one a file open for reading.
    try:
        with path.open("r+") as handle:
            return not try_lock(handle, fcntl.LOCK_EX)
    except PermissionError:
        with path.open() as handle:
            return not try_lock(handle, fcntl.LOCK_SH)
    except OSError:  # a read-only disk: nobody works on it
        return False


def try_lock(handle: TextIO, kind: int) -> bool:
    """Take a lock of this kind (`fcntl.LOCK_EX`, `LOCK_SH`) if it is free; whether it was."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
