"""Cutting a window by length: a partition, the cheapest one, within its bounds."""

from itertools import combinations, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from lossbench.sampling.length_chunks import length_chunks


def cost(chunks: list[torch.Tensor], lengths: list[int], overhead: float, prompt: int) -> float:
    return sum(overhead + len(rows) * (prompt + max(lengths[int(row)] for row in rows)) for rows in chunks)


@given(st.lists(st.integers(0, 30), max_size=7), st.sampled_from([0.0, 5.0, 40.0]), st.integers(0, 4))
def test_no_contiguous_partition_is_cheaper(lengths, overhead, prompt):
    chunks = length_chunks(lengths, overhead_positions=overhead, prompt_tokens=prompt)
    assert sorted(int(row) for rows in chunks for row in rows) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    others = []
    for cuts in range(len(lengths)):
        for inner in combinations(range(1, len(lengths)), cuts):
            pieces = [torch.tensor(order[a:b]) for a, b in pairwise((0, *inner, len(lengths)))]
            others.append(cost(pieces, lengths, overhead, prompt))
    assert cost(chunks, lengths, overhead, prompt) == min(others, default=0.0)


def test_by_hand():
    # One chunk of 4 x 10 costs 20 + 40; {10} and {2, 1, 1} cost 20 + 10 + 20 + 6 = 56.
    chunks = length_chunks(torch.tensor([1, 10, 2, 1]), overhead_positions=20)
    assert [rows.tolist() for rows in chunks] == [[1], [2, 0, 3]]
    # At 30 a chunk, one of 70 is cheaper than two of 76.
    assert [rows.tolist() for rows in length_chunks([1, 10, 2, 1], overhead_positions=30)] == [[1, 2, 0, 3]]
    assert length_chunks([]) == []


def test_bound_on_positions():
    lengths = [100] * 3 + [10] * 20
    chunks = length_chunks(lengths, max_positions=64, overhead_positions=1000, prompt_tokens=2)
    # A row of 102 positions stands alone; 5 rows of 12 make 60 positions, 6 would make 72.
    assert sorted(len(rows) for rows in chunks) == [1, 1, 1, 5, 5, 5, 5]
