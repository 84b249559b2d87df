"""What every reader of another trainer's log shares: its request, its result, and the count of what was damaged.

A reader turns files into `IngestedRun`s: blocks of completions under the names in `ROW_FIELDS`, and rows of step
metrics under the schema's names. A new format is one file with a `Format`, and one row in
`lossbench/store/ingest/__init__.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lossbench.errors import UsageError, unknown
from lossbench.store.schema import TABLES

ROW_FIELDS: dict[str, str] = {
    "step": "optimizer step that used the completion",
    "prompt": "prompt text",
    "completion": "completion text",
    "reward": "reward given to the trainer",
    "correct": "whether the answer is right (true/false, or a number that counts as right above 0.5)",
    "advantage": "advantage given to the completion",
    "length": "length in tokens",
    "terminated": "whether an EOS was produced",
    "group": "name of the group of samples of one prompt, drawn together",
}
"""Fields of a completion, as `--map field=column` names them."""

RUN_FIELDS = {"mode": "loss mode", "seed": "seed", "run": "name of the run", "metric": "name of a long table's metric",
              "value": "value of a long table's metric"}  # fmt: skip
STEP_FIELDS = [c.name for c in TABLES["steps"] if c.name not in ("run_id", "mode", "loss_type", "agg_mode", "seed")]

_RUN_NAME = re.compile(r"(?P<mode>.+?)[-_.]s(?:eed)?[-_]?(?P<seed>\d+)(?:[-_.].*)?")


@dataclass
class Damage:
    """Counts the lines and files that could not be read, and remembers where the first few were."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Count one damaged line or file."""
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(f"{place}: {reason}")


@dataclass
class Request:
    """What the caller said about the log. `columns` is `--map`: our field -> the log's column."""

    columns: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    seed: int | None = None
    num_generations: int | None = None
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        """Raise UsageError on a field that no table has."""
        valid = [*ROW_FIELDS, *RUN_FIELDS, *STEP_FIELDS]
        for name in self.columns:
            if name not in valid:
                raise UsageError(unknown("field in --map", name, valid))

    def column(self, name: str, usual: Iterable[str], available: Iterable[str], place: str) -> str | None:
        """The column of the log that holds field `name`: the mapped one, else the first usual one that exists.

        Raises UsageError where a mapped column does not exist.
        """
        present = list(available)
        asked = self.columns.get(name)
        if asked is not None:
            if asked not in present:
                raise UsageError(f"{place}: no column '{asked}' for --map {name}={asked}; it has {', '.join(present)}")
            return asked
        return next((column for column in usual if column in present), None)


Block = tuple[str, pa.Table]
"""("rollouts" or "evals", a table whose columns are some of `ROW_FIELDS`)."""


@dataclass
class IngestedRun:
    """One run found in a log. `blocks` is read once, in order; `logs` are step rows under the schema's names."""

    source: Path
    name: str
    blocks: Iterator[Block] = field(default_factory=lambda: iter(()))
    logs: list[dict[str, Any]] = field(default_factory=list)
    mode: str | None = None
    seed: int | None = None
    num_generations: int | None = None
    steps_planned: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A registry row.

    `found` names what makes a path look like one run of this format, or returns None; it reads a few lines at most.
    `read` yields the run at a path, or those in its subfolders.
    """

    summary: str
    found: Callable[[Path], str | None]
    read: Callable[[Path, Request], Iterator[IngestedRun]]


def run_folders(path: Path, found: Callable[[Path], str | None]) -> list[Path]:
    """`path` itself where it is a run, else its immediate subfolders that are, by name."""
    if found(path):
        return [path]
    if not path.is_dir():
        return []
    # A checkpoint belongs to the run above it, whichever trainer wrote that.
    folders = [f for f in path.iterdir() if f.is_dir() and not f.name.startswith("checkpoint-")]
    return sorted(folder for folder in folders if found(folder))


def mode_and_seed(name: str) -> tuple[str, int] | None:
    """Mode and seed from a run's name of the form `<mode>-s<seed>` or `<mode>_seed<seed>`.

    >>> mode_and_seed("dr_grpo-s3"), mode_and_seed("dapo_seed0_lr1e-6"), mode_and_seed("my run")
    (('dr_grpo', 3), ('dapo', 0), None)
    """
    match = _RUN_NAME.fullmatch(name)
    return (match["mode"], int(match["seed"])) if match else None


def number(value: Any) -> float | None:
    """`value` as a float, None where it is null, NaN, or no number."""
    if value is None or isinstance(value, bool):
        return None if value is None else float(value)
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return None if result != result else result


def renamed_log(
    row: Mapping[str, Any], step: int, usual: Mapping[str, tuple[str, ...]], columns: Mapping[str, str]
) -> dict[str, Any]:
    """A row of step metrics under the schema's names: `usual` names the log's keys, `columns` (--map) come first.

    A length of terminated completions is dropped where none terminated: TRL and ms-swift write 0 there.
    """
    renamed: dict[str, Any] = {"step": step}
    for ours, keys in usual.items():
        asked = columns.get("length" if ours == "length_mean" else ours, columns.get(ours))
        for key in (asked,) if asked else keys:
            value = number(row.get(key))
            if value is not None:
                renamed[ours] = value
                break
    if renamed.get("truncated_frac") == 1.0 or renamed.get("length_terminated") == 0.0:
        renamed.pop("length_terminated", None)
    return renamed
