"""Request, result and damage count shared by the readers of other trainers' logs.

A format turns the files of one source into `IngestedRun`s: completions go into the staging tables under the names in
`ROW_FIELDS`, step metrics into `logs` under the schema's names. A new format is one file with a `Format`, and one row
in `lossbench/ingest/__init__.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.store.schema import TABLES

if TYPE_CHECKING:
    from lossbench.ingest.staging import Staging

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
_AXES = ("run_id", "mode", "loss_type", "agg_mode", "scale_rewards", "seed")
STEP_FIELDS = [column.name for column in TABLES["steps"] if column.name not in _AXES]
_COUNTS = ("generation", "tokens")  # whole numbers in the schema
TOKENS, CHARACTERS = "tokens", "characters"

_RUN_NAME = re.compile(r"(?P<mode>.+?)[-_.]s(?:eed)?[-_]?(?P<seed>\d+)(?:[-_.].*)?")

_EXAMPLES = 5  # of damage that are named
_LARGEST = 2**53  # up to which a float holds every whole number


@dataclass
class Damage:
    """Count of the lines and files that could not be read, with the places of the first few.

    What a part (a run's, a file's) counts, the whole that it is a part of counts too.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)
    whole: "Damage | None" = None

    def add(self, place: str, reason: str, count: int = 1) -> None:
        """Count one damaged line or file, or `count` of which this is the first."""
        self._take(count, [f"{place}: {one_line(reason)}"])
        if self.whole is not None:
            self.whole.add(place, reason, count)

    def part(self) -> "Damage":
        """A count of its own within this one."""
        return Damage(whole=self)

    def share(self, other: "Damage") -> None:
        """Count here what `other` counted, and not in the whole again: a file's damage is that of each of its runs."""
        self._take(other.count, other.examples)

    def _take(self, count: int, examples: list[str]) -> None:
        self.count += count
        self.examples += examples[: max(0, _EXAMPLES - len(self.examples))]


CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Completion texts -> tokens of each, special tokens left out."""


@dataclass(frozen=True)
class Reading:
    """Options for reading completions.

    `correct_above` makes a numeric verdict above it correct, or a reward where there is no verdict; one that is true or
    false stands.
    """

    count_tokens: CountTokens | None = None
    correct_above: float | None = None
    keep_text: bool = True


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
    tables: "Staging | None" = None

    def __post_init__(self) -> None:
        """Raise UsageError on a field that no table has."""
        valid = [*ROW_FIELDS, *RUN_FIELDS, *STEP_FIELDS]
        for name in self.columns:
            if name not in valid:
                raise UsageError(unknown("field in --map", name, valid))

    @property
    def staging(self) -> "Staging":
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


def number(value: Any) -> float | None:
    """`value` as a float, None where it is null, NaN, or no number."""
    if value is None:
        return None
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if result != result else result


def whole(value: Any) -> int | None:
    """`value` as a whole number, a fraction cut off; None where it is no number, or too large to be a count.

    >>> whole("7"), whole(7.5), whole("inf"), whole(None)
    (7, 7, None, None)
    """
    known = number(value)
    return None if known is None or abs(known) > _LARGEST else int(known)


def metric(name: str, value: Any) -> float | None:
    """A value of column `name` of `steps`, None where there is none."""
    return whole(value) if name in _COUNTS else number(value)


def listed(steps: Iterable[int]) -> str:
    """Steps in a note: the first few of them, and how many more there are.

    >>> listed([30, 10, 20]), listed(range(9))
    ('10, 20, 30', '0, 1, 2, 3, 4 and 4 more')
    """
    ordered = sorted(steps)
    return ", ".join(map(str, ordered[:5])) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


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
