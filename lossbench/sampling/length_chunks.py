"""Cutting a window of rows by length, so that the training pass spends little on padding."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

# Fixed cost of one more forward-backward, in positions: on one CPU thread the built-in policy takes about 6 ms for a
# chunk however small, and 0.03 ms for each position.
OVERHEAD_POSITIONS = 220.0


def length_chunks(
    lengths_B: Tensor | Sequence[int],
    *,
    prompt_tokens: int = 0,
    overhead_positions: float = OVERHEAD_POSITIONS,
    max_positions: int | None = None,
    max_rows: int | None = None,
) -> list[Tensor]:
    """The partition of rows into chunks of similar length with the least estimated cost of a forward-backward.

    A chunk of n rows padded to its longest costs `overhead_positions + n * (prompt_tokens + longest)`. With rows sorted
    by length an optimal partition is made of contiguous pieces, found exactly by dynamic programming in O(B^2).

    Args:
        lengths_B: completion tokens per row (B), >= 0.
        prompt_tokens: prompt positions that every row carries besides.
        overhead_positions: fixed cost of a chunk, in units of one position; 0 makes a chunk per distinct length.
        max_positions: bound on n * (prompt_tokens + longest) of a chunk, for memory; a single row may exceed it.
        max_rows: bound on the rows of a chunk.

    Returns:
        int64 row numbers on the CPU, one tensor per chunk, longest rows first; together each row exactly once.

    Raises:
        ValueError: a length or `overhead_positions` is negative, or a bound is below 1.
    """
    lengths = np.asarray(lengths_B.tolist() if isinstance(lengths_B, Tensor) else lengths_B, dtype=np.int64)
    if lengths.ndim != 1 or (lengths < 0).any():
        shortest = lengths.min(initial=0)
        raise ValueError(f"lengths_B has shape {lengths.shape} and minimum {shortest}: give (B,) lengths >= 0")
    if overhead_positions < 0 or prompt_tokens < 0:
        raise ValueError(f"overhead_positions ({overhead_positions}) and prompt_tokens ({prompt_tokens}) must be >= 0")
    if (max_positions is not None and max_positions < 1) or (max_rows is not None and max_rows < 1):
        raise ValueError(f"max_positions ({max_positions}) and max_rows ({max_rows}) must be >= 1")
    order = np.argsort(-lengths, kind="stable")
    widths = lengths[order] + prompt_tokens
    cuts = _cheapest_cuts(widths, overhead_positions, max_positions, max_rows)
    return [torch.from_numpy(order[start:stop].copy()) for start, stop in pairwise(cuts)]


def _cheapest_cuts(
    widths: np.ndarray, overhead_positions: float, max_positions: int | None, max_rows: int | None
) -> list[int]:
    """Boundaries 0 = c_0 < ... < c_k = B of the cheapest contiguous partition of widths sorted from wide to narrow."""
    count = len(widths)
    cost = np.zeros(count + 1)
    first = np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        rows = stop - np.arange(stop)
        positions = rows * widths[:stop]
        total = cost[:stop] + overhead_positions + positions
        if max_positions is not None:
            total[(positions > max_positions) & (rows > 1)] = np.inf
        if max_rows is not None:
            total[rows > max_rows] = np.inf
        first[stop] = int(total.argmin())
        cost[stop] = total[first[stop]]
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(first[cuts[-1]]))
    return cuts[::-1]
