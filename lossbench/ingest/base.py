"""Request, result and damage count shared by the readers of other trainers' logs.

A format turns the files of one source into `IngestedRun`s: completions go into the staging tables under the names in
`ROW_FIELDS`, step metrics into `logs` under the schema's names. A new format is one file with a `Format`, and one row
in `lossbench/ingest/__init__.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.ingest.fields import ROW_FIELDS, Damage, number, whole
from lossbench.ingest.staging import Staging
from lossbench.store.schema import TABLES

RUN_FIELDS = {"mode": "loss mode", "seed": "seed", "run": "name of the run", "metric": "name of a long table's metric",
              "value": "value of a long table's metric"}  # fmt: skip
_AXES = ("run_id", "mode", "loss_type", "agg_mode", "scale_rewards", "advantage_name", "seed")
STEP_FIELDS = [column.name for column in TABLES["steps"] if column.name not in _AXES]
_COUNTS = ("generation", "tokens")  # whole numbers in the schema

_RUN_NAME = re.compile(r"(?P<mode>.+?)[-_.]s(?:eed)?[-_]?(?P<seed>\d+)(?:[-_.].*)?")


@dataclass
class Request:
    """What the caller said about the log. `columns` is `--map`: field -> the log's column.

    `used` collects those fields of `columns` that the log had a column for.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    seed: int | None = None
    num_generations: int | None = None
    damage: Damage = field(default_factory=Damage)
    used: set[str] = field(default_factory=set)
    tables: Staging | None = None

    def __post_init__(self) -> None:
        """Raise UsageError on a field that no table has."""
        valid = [*ROW_FIELDS, *RUN_FIELDS, *STEP_FIELDS]
        for name in self.columns:
            if name not in valid:
                raise UsageError(unknown("field in --map", name, valid))

    @property
    def staging(self) -> Staging:
        """The tables that completions are put into."""
        if self.tables is None:
            raise ValueError("a log is read with no staging tables")
        return self.tables

    def part(self) -> "Request":
        """The same request with a count of damage of its own: for one run."""
        return replace(self, damage=self.damage.part())

    def column(self, name: str, usual: Iterable[str], available: Iterable[str], place: str) -> str | None:
        """The column of the log that holds field `name`: the mapped one, else the first usual one that exists.

        Raises UsageError where a mapped column does not exist.
        """
        return next(iter(self.every_column(name, usual, available, place)), None)

    def every_column(self, name: str, usual: Iterable[str], available: Iterable[str], place: str) -> list[str]:
        """The columns that may hold field `name`, best first: the mapped one alone, else the usual ones that exist."""
        present = list(available)
        asked = self.columns.get(name)
        if asked is None:
            return [column for column in usual if column in present]
        if asked not in present:
            has = one_line(", ".join(present), 500)
            raise UsageError(f"{place}: no column '{asked}' for --map {name}={asked}; it has {has}")
        self.used.add(name)
        return [asked]


@dataclass
class IngestedRun:
    """One run found in a log: `logs` are step rows under the schema's names, `keys` name its staged completions.

    `logged_rewards`: by step, the mean reward that the trainer logged for the completions sampled for it.
    """

    source: Path
    name: str
    keys: list[str] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    mode: str | None = None
    seed: int | None = None
    num_generations: int | None = None
    steps_planned: int | None = None
    logged_rewards: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)


@dataclass(frozen=True)
class Format:
    """A registry row.

    `found` names what makes a path look like a source of this format, or returns None; it reads a few lines at most.
    `read` yields the runs of one source. `any_table`: a path that another format recognises is not of this one.
    """

    summary: str
    found: Callable[[Path], str | None]
    read: Callable[[Path, Request], Iterator[IngestedRun]]
    any_table: bool = False


def mode_and_seed(name: str) -> tuple[str, int] | None:
    """Mode and seed from a run's name of the form `<mode>-s<seed>` or `<mode>_seed<seed>`.

    >>> mode_and_seed("dr_grpo-s3"), mode_and_seed("dapo_seed0_lr1e-6"), mode_and_seed("my run")
    (('dr_grpo', 3), ('dapo', 0), None)
    """
    match = _RUN_NAME.fullmatch(name)
    return (match["mode"], int(match["seed"])) if match else None


def named_run(source: Path, request: Request) -> IngestedRun:
    """A run that is called as its file or folder is, with the mode and seed of that name."""
    name = source.stem if source.is_file() else source.name
    mode, seed = mode_and_seed(name) or (None, None)
    return IngestedRun(source, name, [str(source)], mode=mode, seed=seed, damage=request.damage)


def metric(name: str, value: Any) -> float | None:
    """A value of column `name` of `steps`, None where there is none."""
    return whole(value) if name in _COUNTS else number(value)


def renamed_log(
    row: Mapping[str, Any], step: int, usual: Mapping[str, tuple[str, ...]], request: Request
) -> dict[str, Any]:
    """A row of step metrics under the schema's names: `usual` names the log's keys, --map comes first.

    A length of terminated completions is dropped where none terminated: TRL and ms-swift write 0 there.
    """
    renamed: dict[str, Any] = {"step": step}
    mapped = [name for name in request.columns if name in STEP_FIELDS and name != "step"]
    for ours in dict.fromkeys([*usual, *mapped]):
        for asked, key in _keys(ours, usual.get(ours, ()), request.columns):
            if asked and key in row:
                request.used.add(asked)
            value = metric(ours, row.get(key))
            if value is not None:
                renamed[ours] = value
                break
    if renamed.get("truncated_frac") == 1.0 or renamed.get("length_terminated") == 0.0:
        renamed.pop("length_terminated", None)
    return renamed


def _keys(ours: str, usual: tuple[str, ...], columns: Mapping[str, str]) -> list[tuple[str | None, str]]:
    """(field of --map that asks for it, key of the log) in the order to look for a metric."""
    keys: list[tuple[str | None, str]] = [(None, key) for key in usual]
    if ours in columns:
        return [(ours, columns[ours])]
    # A column of completions' lengths need not be a metric: the trainer's own mean is.
    return [("length", columns["length"]), *keys] if ours == "length_mean" and "length" in columns else keys
