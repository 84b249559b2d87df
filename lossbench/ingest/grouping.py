"""Numbers prompts, groups and samples of a log that names none of them, block by block."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from lossbench.ingest.kept import Kept


class Grouping:
    """Prompts in order of appearance, groups within their step, samples within their group.

    A group is what the log names as one, else the rows of a step with the same prompt, `num_generations` of them at
    most. What earlier blocks began is continued.
    """

    def __init__(self, num_generations: int | None) -> None:
        """`num_generations`: samples per group, where known; without it a prompt drawn twice in a step is one group."""
        self._per_group = num_generations or np.iinfo(np.int64).max
        self._prompts: dict[int, int] = {}
        self._rows_of_key = Kept(1)  # by the pair of step and key
        self._numbers = Kept(1)  # of groups, by that pair and the draw
        self._groups_of_step: dict[int, int] = defaultdict(int)

    def columns(self, steps_N: np.ndarray, block: pa.Table) -> dict[str, pa.Array]:
        """Columns `prompt_id`, `group` and `sample` of a block (int64), as far as it names prompts or groups.

        Null in the rows that name none.
        """
        named = [name for name in ("prompt", "group") if name in block.column_names]
        hashed = {name: _hashes(block[name].cast(pa.string())) for name in named}
        columns: dict[str, pa.Array] = {}
        if "prompt" in hashed:
            keys_N, named_N = hashed["prompt"]
            columns["prompt_id"] = _nullable(self._prompt_ids(keys_N[named_N]), named_N)
        if hashed:
            keys_N, named_N = _group_keys(hashed)
            groups, samples = self._grouped(steps_N[named_N], keys_N[named_N])
            columns |= {"group": _nullable(groups, named_N), "sample": _nullable(samples, named_N)}
        return columns

    def _prompt_ids(self, keys_N: np.ndarray) -> np.ndarray:
        keys, first, codes_N = np.unique(keys_N, return_index=True, return_inverse=True)
        for key in keys[np.argsort(first)].tolist():
            self._prompts.setdefault(key, len(self._prompts))
        return np.asarray([self._prompts[key] for key in keys.tolist()], dtype=np.int64)[codes_N]

    def _grouped(self, steps_N: np.ndarray, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Group within its step and sample within its group of each row, in order of appearance."""
        names_N = mixed(steps_N, keys_N)
        names_K, codes_N, sizes_K = np.unique(names_N, return_inverse=True, return_counts=True)
        names = names_K.tolist()
        rows_of_key = self._rows_of_key.entries(names)
        before_K = np.asarray([rows_of_key.get(name, (0,))[0] for name in names], dtype=np.int64)
        rows_of_key.update(zip(names, zip((before_K + sizes_K).tolist()), strict=True))
        draws_N, samples_N = np.divmod(before_K[codes_N] + _place_among_equals(codes_N, sizes_K), self._per_group)
        return self._group_numbers(steps_N, mixed(names_N, draws_N)), samples_N

    def _group_numbers(self, steps_N: np.ndarray, names_N: np.ndarray) -> np.ndarray:
        """Numbers of the groups that rows name, counted within their steps."""
        names_G, first_G, codes_N = np.unique(names_N, return_index=True, return_inverse=True)
        names, steps = names_G.tolist(), steps_N[first_G].tolist()
        numbers = self._numbers.entries(names)
        for group in np.argsort(first_G).tolist():
            if names[group] not in numbers:
                numbers[names[group]] = (self._groups_of_step[steps[group]],)
                self._groups_of_step[steps[group]] += 1
        return np.asarray([numbers[name][0] for name in names], dtype=np.int64)[codes_N]


def mixed(first_N: np.ndarray, second_N: np.ndarray) -> np.ndarray:
    """A 64-bit number (N,) per pair of 64-bit numbers; another pair's is the same in one case of 2^64.

    The mixing is that of SplitMix64 (Steele, Lea and Flood 2014).
    """
    mixed_N = first_N.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + second_N.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed_N = (mixed_N ^ (mixed_N >> np.uint64(shift))) * np.uint64(factor)
    return (mixed_N ^ (mixed_N >> np.uint64(31))).view(np.int64)


def _place_among_equals(codes_N: np.ndarray, sizes_K: np.ndarray) -> np.ndarray:
    """How many earlier rows have the same code."""
    places_N = np.empty(len(codes_N), dtype=np.int64)
    places_N[np.argsort(codes_N, kind="stable")] = np.arange(len(codes_N)) - np.repeat(
        np.cumsum(sizes_K) - sizes_K, sizes_K
    )
    return places_N


def _group_keys(hashed: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """What tells the groups apart in each row, and whether the row has it: the group's name, else the prompt."""
    rows = len(next(iter(hashed.values()))[0])
    keys_N, named_N = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
    for salt, name in enumerate(("prompt", "group")):  # a group may be named like a prompt
        if name in hashed:
            hashes_N, present_N = hashed[name]
            keys_N = np.where(present_N, mixed(hashes_N, np.full(rows, salt)), keys_N)
            named_N |= present_N
    return keys_N, named_N


def _nullable(values_M: np.ndarray, named_N: np.ndarray) -> pa.Array:
    """A column (N,) of the values of the rows that are named, null in the others."""
    values_N = np.zeros(len(named_N), dtype=np.int64)
    values_N[named_N] = values_M
    return pa.array(values_N, mask=~named_N)


def _hashes(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """A 64-bit number per row, equal for equal texts, so that no text has to be kept in memory; and where text is."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    keys = np.asarray([hash(text) for text in encoded.dictionary.to_pylist()], dtype=np.int64)
    return keys[np.asarray(encoded.indices)], np.asarray(column.is_valid())
