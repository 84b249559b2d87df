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
    max_positions: float = np.inf,
) -> list[Tensor]:
    """The partition of rows into chunks of similar length with the least estimated cost of a forward-backward.

    A chunk of n rows of `lengths_B` completion tokens, padded to its longest, costs `overhead_positions + n *
    (prompt_tokens + longest)`. With rows sorted by length an optimal partition is made of contiguous pieces, found
    exactly by dynamic programming in O(B^2). `max_positions` bounds n * (prompt_tokens + longest), for memory; a single
    row may exceed it. Returns int64 row numbers on the CPU, one tensor per chunk, longest rows first.
    """
    lengths = torch.as_tensor(lengths_B, dtype=torch.int64).cpu().numpy()
    order = np.argsort(-lengths, kind="stable")
    widths = lengths[order] + prompt_tokens
    cuts = _cheapest_cuts(widths, overhead_positions, max_positions)
    return [torch.from_numpy(order[start:stop].copy()) for start, stop in pairwise(cuts)]


def _cheapest_cuts(widths: np.ndarray, overhead_positions: float, max_positions: float) -> list[int]:
    """Boundaries 0 = c_0 < ... < c_k = B of the cheapest contiguous partition of widths sorted from wide to narrow."""
    count = len(widths)
    cost = np.zeros(count + 1)
    first = np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        rows = stop - np.arange(stop)
        positions = rows * widths[:stop]
        total = cost[:stop] + overhead_positions + positions
        total[(positions > max_positions) & (rows > 1)] = np.inf
        first[stop] = int(total.argmin())
        cost[stop] = total[first[stop]]
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(first[cuts[-1]]))
    return cuts[::-1]
