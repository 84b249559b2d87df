"""Slices of a plan, for people with a scheduler of their own."""

import re
from collections.abc import Sequence

from lossbench.errors import UsageError
from lossbench.training.run_spec import RunSpec

Shard = tuple[int, int]
"""i and n of "slice i of n", from 1."""


def parse_shard(text: str | None) -> Shard | None:
    """`i/n` as two numbers; None for None. Raises UsageError.

    >>> parse_shard("1/4")
    (1, 4)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard '{text}': give i/n with 1 <= i <= n, such as 1/4")
    return int(match[1]), int(match[2])


def take_shard(runs: Sequence[RunSpec], shard: Shard | None) -> list[RunSpec]:
    """The slice of the plan: every n-th run from the i-th on; all of it for None."""
    return list(runs) if shard is None else list(runs[shard[0] - 1 :: shard[1]])
