"""A probe's file as arrays: for each batch its completions and their projections on length directions."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.errors import UsageError
from lossbench.store.read import read_facts, read_table


@dataclass(frozen=True)
class Window:
    """The completions of one batch, as one optimizer step would see them; arrays (N,).

    `projections` maps (metric, direction) to (N,) numbers; a direction that the other batch did not have is absent.
    """

    pair: int
    half: int
    lengths_N: np.ndarray
    groups_N: np.ndarray
    rewards_N: np.ndarray
    correct_N: np.ndarray
    terminated_N: np.ndarray
    projections: dict[tuple[str, str], np.ndarray]


@dataclass
class Projections:
    """A probe of one frozen policy at one training step: windows in order of pair and half."""

    policy: str
    step: int
    windows: list[Window]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def horizon(self) -> float:
        """The constant H of the sum-norm modes, in tokens; it cancels from every matched figure."""
        return float(self.facts.get("horizon") or max(float(w.lengths_N.max(initial=1)) for w in self.windows))

    @property
    def parameters(self) -> str:
        """The parameters differentiated by: "head", "all", or parts of names."""
        named = ", ".join(self.facts.get("settings", {}).get("params") or ["all"])
        return f"{named} (tied: the head's use only)" if named == "head" and self.facts.get("tied") else named

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that the probe has."""
        return list(dict.fromkeys(metric for w in self.windows for metric, _ in w.projections))

    def windows_of_pair(self) -> list[np.ndarray]:
        """For each pair the numbers of its windows, in order of pairs."""
        pairs_W = np.array([window.pair for window in self.windows])
        return [np.flatnonzero(pairs_W == pair) for pair in np.unique(pairs_W)]

    def pool(self, name: str) -> np.ndarray:
        """One column of all windows, end to end: "lengths_N", "correct_N", ..."""
        return np.concatenate([getattr(w, name) for w in self.windows])


def read_projections(path: Path) -> list[Projections]:
    """The probes in a file of table `probe`, by policy and step. Raises UsageError where the file is not one."""
    table = read_table(path, "probe")
    if not table.num_rows:
        raise UsageError(f"{path}: holds no completion")
    return projections_of(table.to_pandas(), read_facts(path))


def projections_of(frame: Any, facts: dict[str, Any] | None = None) -> list[Projections]:
    """The probes in a data frame with the columns of table `probe`."""
    # Plain arrays of our own: slices of a data frame are slow, and what arrow hands over cannot be written to.
    columns = {name: frame[name].to_numpy(copy=True) for name in ("pair", "half", *_COLUMNS)}
    blocks = list(zip(frame["metric"].astype(str), frame["direction"].astype(str), strict=True))
    names = list(dict.fromkeys(blocks))
    place = {name: i for i, name in enumerate(names)}
    columns["block"] = np.array([place[block] for block in blocks])
    probes = []
    for (policy, step), rows in frame.groupby(["policy", "step"], sort=False, observed=True).indices.items():
        part = {name: column[rows] for name, column in columns.items()}
        batch = part["pair"] * 2 + part["half"]
        windows = [_window({n: c[batch == number] for n, c in part.items()}, names) for number in np.unique(batch)]
        probes.append(Projections(str(policy), int(step), windows, facts or {}))
    return probes


_COLUMNS = ("length_tokens", "group", "reward", "correct", "terminated", "projection")


def _window(rows: dict[str, np.ndarray], names: list[tuple[str, str]]) -> Window:
    first = rows["block"] == rows["block"][0]
    projections = {names[i]: rows["projection"][rows["block"] == i].astype(float) for i in np.unique(rows["block"])}
    return Window(
        int(rows["pair"][0]),
        int(rows["half"][0]),
        rows["length_tokens"][first].astype(np.int64),
        rows["group"][first].astype(np.int64),
        rows["reward"][first].astype(float),
        rows["correct"][first].astype(bool),
        rows["terminated"][first],
        {name: values for name, values in projections.items() if not np.isnan(values).any()},
    )
