"""The error a user can fix, and the one-line wording that all of them share."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """Something the user asked for cannot be done as asked: one line, exit code 2, no traceback."""


def one_line(error: object, most: int = 200) -> str:
    """Message of a library's exception as one line of at most `most` characters.

    >>> one_line(OSError("cannot read\\n  the file"))
    'cannot read the file'
    """
    return " ".join(str(error).split())[:most]


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """One line saying that `name` is not a `kind`, with the nearest valid name and all of them.

    >>> unknown("mode", "grp", ["grpo", "dapo"])
    "unknown mode 'grp': did you mean 'grpo'? valid: grpo, dapo"
    """
    names = list(valid)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{name}':{hint} valid: {', '.join(names)}"
