"""Slices of a plan, for people with a scheduler of their own."""

import re
from collections.abc import Sequence

from lossbench.errors import UsageError
from lossbench.training.spec import RunSpec


def take_shard(runs: Sequence[RunSpec], shard: str | None) -> list[RunSpec]:
    """The i-th of n slices of the plan, every n-th run from the i-th on; all of it for None. Raises UsageError."""
    if shard is None:
        return list(runs)
    match = re.fullmatch(r"(\d+)/(\d+)", shard.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard '{shard}': give i/n with 1 <= i <= n, such as 1/4")
    return list(runs[int(match[1]) - 1 :: int(match[2])])
