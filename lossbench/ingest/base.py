"""Request, result and format: what the readers of other trainers' logs share.

A format turns the files of one source into `IngestedRun`s: completions go into the staging tables under the names in
`ROW_FIELDS`, step metrics into `logs` under the schema's names.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.ingest.fields import ROW_FIELDS, Damage
from lossbench.ingest.run_config import config_of
from lossbench.ingest.staging import Staging
from lossbench.loss.modes import PRESETS
from lossbench.store.schema import TABLES

RUN_FIELDS = ("mode", "seed", "run", "metric", "value")  # the last two: of a table with a row per metric
_AXES = ("run_id", "mode", "loss_type", "agg_mode", "scale_rewards", "advantage_name", "seed")
STEP_FIELDS = [column.name for column in TABLES["steps"] if column.name not in _AXES]

_RUN_NAME = re.compile(r"(?P<mode>.+?)[-_.]s(?:eed)?[-_]?(?P<seed>\d+)(?:[-_.].*)?")


@dataclass
class Request:
    """The caller's statements about the log. `columns` is `--map`: field -> the log's column.

    `modes`: by a run's name, or the mode that the log gives it, its mode (or `MODE-s<seed>`; empty: left out). `runs`:
    names of the runs to read, all where empty. `top` is the path that was named. `used` collects those fields of
    `columns` that the log had a column for.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    seed: int | None = None
    num_generations: int | None = None
    modes: Mapping[str, str] = field(default_factory=dict)
    runs: Collection[str] = ()
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    forced_tokens: int = 0
    damage: Damage = field(default_factory=Damage)
    used: set[str] = field(default_factory=set)
    top: Path = Path()
    staging: Staging = field(init=False)

    def __post_init__(self) -> None:
        """Raise UsageError on a field that no table has."""
        valid = dict.fromkeys([*ROW_FIELDS, *RUN_FIELDS, *STEP_FIELDS])
        for name in self.columns.keys() - valid:
            raise UsageError(unknown("field in --map", name, valid))

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

    def fields(self, usual: Mapping[str, Iterable[str]], available: Iterable[str], place: str) -> dict[str, str]:
        """Field -> the column of the log that holds it, for those of `usual` that have one."""
        present = list(available)
        found = {ours: self.column(ours, names, present, place) for ours, names in usual.items()}
        return {ours: name for ours, name in found.items() if name is not None}


@dataclass
class IngestedRun:
    """One run found in a log: `logs` are step rows under the schema's names, `keys` name its staged completions.

    `logged_rewards`: by step, the mean reward that the trainer logged for the completions sampled for it. `read`: field
    -> the column that it was read from; `seen`: every column of the log.
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
    read: dict[str, str] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)

    def saw(self, read: Mapping[str, str], columns: Iterable[str]) -> None:
        """Note which fields were read from which column of all the log's `columns`."""
        self.read |= read
        self.seen.update(dict.fromkeys(columns))


@dataclass(frozen=True)
class Format:
    """A registry row.

    `files` are those that make a path (a file or folder) a source of this format; a few lines of each are read at most.
    `read` gives the runs of one source. `any_table`: a path that another format recognises is not of this one.
    """

    name: str
    summary: str
    files: Callable[[Path], Iterable[Path]]
    read: Callable[[Path, Request], Iterable[IngestedRun]]
    any_table: bool = False

    def found(self, path: Path) -> str | None:
        """Name of the first of the files, None without one."""
        for file in self.files(path):
            return path.name if file == path else str(file.relative_to(path))
        return None


def files_that(fit: Callable[[Path], bool], in_folders: bool = True) -> Callable[[Path], Iterable[Path]]:
    """`Format.files` of a format known file by file: the file, or those in a folder, in the order of their names."""

    def files(path: Path) -> Iterable[Path]:
        inside = sorted(path.iterdir()) if in_folders and path.is_dir() else [path]
        return (file for file in inside if file.is_file() and fit(file))

    return files


def one_run(fill: Callable[[Path, IngestedRun, Request], None]) -> Callable[[Path, Request], Iterable[IngestedRun]]:
    """`Format.read` of a format whose sources hold one run each, which `fill` reads."""

    def read(path: Path, request: Request) -> Iterable[IngestedRun]:
        run = named_run(path, request)
        fill(path, run, request)
        return [run]

    return read


def mode_and_seed(name: str) -> tuple[str, int] | None:
    """Mode and seed from a run's name of the form `<mode>-s<seed>` or `<mode>_seed<seed>`.

    >>> mode_and_seed("dr_grpo-s3"), mode_and_seed("dapo_seed0_lr1e-6"), mode_and_seed("my run")
    (('dr_grpo', 3), ('dapo', 0), None)
    """
    match = _RUN_NAME.fullmatch(name)
    return (match["mode"], int(match["seed"])) if match else None


def folded(mode: str) -> str:
    """The preset that a name spells in another way, else the name.

    >>> folded("Dr. GRPO"), folded("DAPO"), folded("grpo@token-mean/none")
    ('dr_grpo', 'dapo', 'grpo@token-mean/none')
    """
    spelled = {re.sub(r"[^a-z]", "", preset): preset for preset in PRESETS}
    return spelled.get(re.sub(r"[^a-z]", "", mode.lower()), mode)


def naming(source: Path, top: Path) -> tuple[str, str | None, int | None]:
    """(name, mode, seed) of the run at `source`: those of the nearest file or folder that says mode and seed.

    Folders above `top`, which the user named, do not count; where none says both, the nearest that says a mode.
    """
    paths = [source, *source.parents]
    paths = paths[: paths.index(top) + 1 + top.is_file()] if top in paths else paths[:1]
    names = [path.stem if path.is_file() else path.name for path in paths]
    said = [(name, *found) for name in names if (found := mode_and_seed(name))]
    if both := [(name, mode, seed) for name, mode, seed in said if folded(mode) in PRESETS] or said:
        return both[0]
    for name in names:
        for part in re.split(r"[-_. ]", name):
            if folded(part) in PRESETS:
                return name, folded(part), None
    return names[0], None, None


def named_run(source: Path, request: Request) -> IngestedRun:
    """A run that is called as its file or folder is, with the mode of its configuration, else that of its name."""
    name, mode, seed = naming(source, request.top)
    run = IngestedRun(source, name, [str(source)], mode=mode, seed=seed, damage=request.damage.part())
    # Settings above a folder that is named for a mode may be those of all its neighbours.
    if found := config_of(source, above=0 if mode else 3):
        run.mode, its_seed, file = found
        run.seed = its_seed if seed is None else seed
        run.notes.append(f"mode {run.mode} is that of {file.name}")
    return run
