"""Limits on what one call takes on, so that a slip or a file from elsewhere cannot exhaust the machine."""

import os

from lossbench.errors import UsageError

_LIMITS = {"runs": 10_000, "rows": 200_000_000, "megabytes": 64}
"""Runs of a plan, rows of a table, and size of a JSON file; `LOSSBENCH_MAX_RUNS` and its like set others."""


def limit(what: str) -> int:
    """The limit on `what`, one of runs, rows and megabytes. Raises UsageError where its variable holds no number."""
    name = f"LOSSBENCH_MAX_{what.upper()}"
    text = os.environ.get(name, str(_LIMITS[what]))
    if not text.isdecimal():
        raise UsageError(f"{name}='{text}': give a whole number")
    return int(text)


def refuse_beyond(count: float, what: str, where: str) -> None:
    """Raise UsageError, naming the variable that allows more, where `count` is beyond the limit on `what`."""
    most = limit(what)
    if count > most:
        allow = f"set LOSSBENCH_MAX_{what.upper()} to allow more"
        raise UsageError(f"{where}: {count:.15g} {what} are beyond the limit of {most}; {allow}")
