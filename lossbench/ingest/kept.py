"""Numbers by key for a whole log: a dict for what is being read, arrays for what was read before."""

import numpy as np

RECENT = 8192
"""Entries in the dict: more than a few blocks bring, few enough not to be felt in memory."""


class Kept:
    """`width` numbers per 64-bit key. In arrays an entry takes a tenth of what it takes in a dict."""

    def __init__(self, width: int) -> None:
        self._recent: dict[int, tuple[float, ...]] = {}
        self._keys_K = np.empty(0, dtype=np.int64)
        self._values_KW = np.empty((0, width))

    def entries(self, keys: list[int]) -> dict[int, tuple[float, ...]]:
        """A dict with the entries of `keys` that there are, and some others; what is written into it is kept."""
        if len(self._recent) > RECENT:
            self._settle()
        asked_N = np.asarray(keys, dtype=np.int64)
        places_N = np.searchsorted(self._keys_K, asked_N)
        inside_N = places_N < len(self._keys_K)
        inside_N[inside_N] = self._keys_K[places_N[inside_N]] == asked_N[inside_N]
        for key, place in zip(asked_N[inside_N].tolist(), places_N[inside_N].tolist(), strict=True):
            if key not in self._recent:
                self._recent[key] = tuple(self._values_KW[place].tolist())
        return self._recent

    def _settle(self) -> None:
        """Move the dict's entries into the arrays, where they replace those that they were made from."""
        keys_N = np.fromiter(self._recent, dtype=np.int64, count=len(self._recent))
        old_K = ~np.isin(self._keys_K, keys_N)
        values_NW = np.asarray(list(self._recent.values()), dtype=float)
        keys = np.concatenate([self._keys_K[old_K], keys_N])
        order = np.argsort(keys)
        self._keys_K = keys[order]
        self._values_KW = np.concatenate([self._values_KW[old_K], values_NW])[order]
        self._recent = {}
