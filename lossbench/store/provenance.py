"""Provenance of a result: package versions, git state, machine, command."""

import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "lossbench", "torch", "transformers", "trl", "accelerate", "datasets", "numpy", "pandas", "pyarrow", "scipy",
)  # fmt: skip


def versions() -> dict[str, str | None]:
    """Installed versions of the packages that decide the numbers, and Python's; null where a package is absent."""
    found: dict[str, str | None] = {"python": platform.python_version(), **dict.fromkeys(_PACKAGES)}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the lossbench checkout and whether it has uncommitted changes; null where this is no checkout."""
    git = partial(subprocess.run, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=True)
    try:
        commit, changes = git(["git", "rev-parse", "HEAD"]).stdout, git(["git", "status", "--porcelain"]).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}


def machine() -> dict[str, Any]:
    """Processor family, operating system and core count: what a wall time depends on."""
    return {"platform": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}


def command_line() -> str:
    """The command as it was typed, without the path of the executable.

    >>> sys.argv = ["/somewhere/lossbench/__main__.py", "sweep", "quick"]
    >>> command_line()
    'python -m lossbench sweep quick'
    """
    program = Path(sys.argv[0])
    typed = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*typed, *sys.argv[1:]])
