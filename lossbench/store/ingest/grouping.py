"""Numbers prompts, groups and samples of a log that names none of them, block by block."""

from collections import defaultdict

import numpy as np
import pyarrow as pa


class Grouping:
    """Prompts in order of appearance, groups within their step, samples within their group.

    A group is what the log names as one, else the rows of a step with the same prompt, `num_generations` of them at
    most. What earlier blocks began is continued.
    """

    def __init__(self, num_generations: int | None) -> None:
        """`num_generations`: samples per group, where known; without it a prompt drawn twice in a step is one group."""
        self._per_group = num_generations or np.iinfo(np.int64).max
        self._prompts: dict[int, int] = {}
        # By hash of the name: a log has one entry per group, and a hash is a fourth of a tuple's size.
        self._rows_of_key: dict[int, int] = defaultdict(int)
        self._numbers: dict[int, int] = {}
        self._groups_of_step: dict[int, int] = defaultdict(int)

    def columns(self, steps_N: np.ndarray, block: pa.Table) -> dict[str, pa.Array]:
        """Columns `prompt_id`, `group` and `sample` of a block (int64), as far as it names prompts or groups."""
        prompt_ids_N = self._prompt_ids(block) if "prompt" in block.column_names else None
        keys_N = _hashes(block["group"].cast(pa.string())) if "group" in block.column_names else prompt_ids_N
        if keys_N is None:
            return {}
        groups_N, samples_N = self._grouped(steps_N, keys_N)
        columns = {"group": pa.array(groups_N), "sample": pa.array(samples_N)}
        return columns if prompt_ids_N is None else {"prompt_id": pa.array(prompt_ids_N), **columns}

    def _prompt_ids(self, block: pa.Table) -> np.ndarray:
        keys_N = _hashes(block["prompt"])
        keys, codes_N = np.unique(keys_N, return_inverse=True)
        first = np.full(len(keys), len(keys_N))
        np.minimum.at(first, codes_N, np.arange(len(keys_N)))
        for key in keys[np.argsort(first)]:
            self._prompts.setdefault(int(key), len(self._prompts))
        return np.asarray([self._prompts[int(key)] for key in keys], dtype=np.int64)[codes_N]

    def _grouped(self, steps_N: np.ndarray, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import pandas as pd

        by_key = pd.DataFrame({"step": steps_N, "key": keys_N}).groupby(["step", "key"], sort=False)
        codes_N = by_key.ngroup().to_numpy()
        sizes = by_key.size().to_frame("rows").reset_index()
        pairs = list(zip(sizes["step"].tolist(), sizes["key"].tolist(), strict=True))
        before = np.asarray([self._rows_of_key[hash(pair)] for pair in pairs], dtype=np.int64)
        for pair, rows in zip(pairs, sizes["rows"].tolist(), strict=True):
            self._rows_of_key[hash(pair)] += rows
        places_N = by_key.cumcount().to_numpy() + before[codes_N]
        draws_N, samples_N = places_N // self._per_group, places_N % self._per_group
        drawn = pd.DataFrame({"code": codes_N, "draw": draws_N}).groupby(["code", "draw"], sort=False)
        names = drawn.size().to_frame("rows").reset_index()
        coded = zip(names["code"].tolist(), names["draw"].tolist(), strict=True)
        numbers = [self._group_number((*pairs[code], draw)) for code, draw in coded]
        return np.asarray(numbers, dtype=np.int64)[drawn.ngroup().to_numpy()], samples_N

    def _group_number(self, name: tuple[int, int, int]) -> int:
        """Number of the group that (step, key, draw) names, counted within its step."""
        if hash(name) not in self._numbers:
            self._numbers[hash(name)] = self._groups_of_step[name[0]]
            self._groups_of_step[name[0]] += 1
        return self._numbers[hash(name)]


def _hashes(column: pa.ChunkedArray) -> np.ndarray:
    """A 64-bit number per row, equal for equal texts, so that no text has to be kept in memory."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    keys = np.asarray([hash(text) for text in encoded.dictionary.to_pylist()], dtype=np.int64)
    return keys[np.asarray(encoded.indices)]
