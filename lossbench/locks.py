"""Who works on a sweep's folder. The kernel lets go of a lock when the process that holds it dies.

A sweep holds the folder alone. Slices of one plan (`--shard i/n`) share it, each slice held once, all of the same n.
"""

import fcntl
import time
from pathlib import Path
from typing import TextIO

from lossbench.errors import UsageError
from lossbench.store.held import LOCK_FILE, is_held, try_lock

_TRIES, _BETWEEN_TRIES_S = 3, 0.05


class Lock:
    """Holds `folder` against other sweeps while it is entered. Raises UsageError where another one holds it."""

    def __init__(self, folder: Path, shard: tuple[int, int] | None = None, plan: str = "") -> None:
        """`shard`: slice i of n of the plan that `plan` names; slices of another plan could hold the same runs."""
        self.folder = folder
        self.shard = shard
        self.plan = plan
        self._held: list[TextIO] = []

    def __enter__(self) -> "Lock":
        try:
            if self.shard is None:
                self._hold(LOCK_FILE, fcntl.LOCK_EX)
                return self
            i, n = self.shard
            self._hold(LOCK_FILE, fcntl.LOCK_SH)
            cut = f"{LOCK_FILE}-of-{n}{self.plan}"
            for other in self.folder.glob(f"{LOCK_FILE}-of-*"):
                if other.name != cut and is_held(other):
                    raise self._refusal()
            self._hold(cut, fcntl.LOCK_SH)
            self._hold(f"{LOCK_FILE}-{i}-of-{n}", fcntl.LOCK_EX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _hold(self, name: str, kind: int) -> None:
        handle = (self.folder / name).open("a+")
        self._held.append(handle)
        for _ in range(_TRIES):
            if try_lock(handle, kind):
                return
            time.sleep(_BETWEEN_TRIES_S)  # someone may only have looked whether it is held
        raise self._refusal()

    def _refusal(self) -> UsageError:
        what = "a sweep" if self.shard is None else f"a sweep that would share runs with slice {self.shard[0]}"
        return UsageError(f"{what} is running in '{self.folder}' already: wait for it, or give another --out")

    def __exit__(self, *_: object) -> None:
        for handle in self._held:
            handle.close()
        self._held.clear()
