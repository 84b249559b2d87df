"""Recipes: sweeps as TOML files, checked key by key before anything starts."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lossbench.errors import UsageError, unknown
from lossbench.limits import refuse_beyond
from lossbench.text import path_component
from lossbench.training.hashed_fields import hashed_fields
from lossbench.training.run_spec import Settings

_SEEDS_END = 2**32  # NumPy's generators take no more
AXES = ("loss_types", "agg_modes", "scale_rewards", "advantages")  # of a grid
_ONLY_BY_CALL = {"trust_remote_code": "--set trust_remote_code=true", "report_to": "--report-to"}


class Arm(BaseModel):
    """One arm that is more than a mode: it may start from its own policy, or change settings, under its own label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: str
    policy: str | None = None
    label: str | None = None  # default: the policy's name; the arm is then called mode[label]
    set: dict[str, Any] = Field(default_factory=dict)


class Recipe(Settings):
    """A sweep: modes (or the axes of a grid, or arms) x seeds, and the settings that all of its runs share."""

    name: str = "sweep"
    description: str = ""

    modes: list[str] | None = None
    loss_types: list[str] | None = None
    agg_modes: list[str] | None = None
    scale_rewards: list[str] | None = None
    advantages: list[str] | None = None
    arms: list[Arm] = Field(default_factory=list)

    seeds: list[int] = Field(default_factory=lambda: [0, 1])
    policy: str = "selfcheck"  # a built-in policy's name or a model reference
    policy_seeds: list[int] = Field(default_factory=lambda: [0])
    seeds_per_policy: int = Field(4, ge=1)  # seeds 0-3 start from the first policy seed, 4-7 from the next, and so on

    baseline: str = "grpo"
    claims: list[str] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return path_component(value, "name")

    @field_validator("seeds", mode="before")
    @classmethod
    def _parse_seeds(cls, value: Any) -> Any:
        return parse_seeds(value) if isinstance(value, str | int) and not isinstance(value, bool) else value

    @field_validator("seeds", "policy_seeds")
    @classmethod
    def _check_seeds(cls, value: list[int]) -> list[int]:
        if not value:
            raise ValueError("no seed: give a count such as 4, or a list such as 0,3 or 2-5")
        if any(not 0 <= seed < _SEEDS_END for seed in value):
            raise ValueError(f"seeds are numbers from 0 to {_SEEDS_END - 1}")
        if twice := sorted(seed for seed, count in Counter(value).items() if count > 1):
            raise ValueError(f"given twice: {', '.join(map(str, twice))}")
        return value

    @model_validator(mode="after")
    def _check_batches(self) -> "Recipe":
        rows, group = self.rows_per_generation(), self.num_generations
        if rows % group:
            raise ValueError(
                f"per_device_train_batch_size x micro-batches per generation is {rows} completions, which groups of "
                f"num_generations {group} do not divide; give a multiple of {group}"
            )
        if self.modes is not None and any(self.axes):
            raise ValueError("modes excludes loss_types, agg_modes, scale_rewards and advantages: give one kind")
        return self

    @property
    def axes(self) -> list[list[str] | None]:
        """The axes of the grid, in the order of `AXES`."""
        return [getattr(self, name) for name in AXES]

    def shared(self) -> dict[str, Any]:
        """Everything that all runs of the sweep share: all keys except arms, seeds, claims and texts."""
        apart = ("name", "description", "modes", *AXES, "arms", "seeds", "claims", "baseline")
        return hashed_fields(self, exclude=set(apart))

    def settings(self, changes: Mapping[str, Any] | None = None) -> Settings:
        """The settings of a run, with an arm's own changes."""
        shared = {name: getattr(self, name) for name in Settings.model_fields}
        return Settings(**{**shared, **(changes or {})})

    def policy_seed(self, seed: int) -> int:
        """The warm start's seed for the run with this seed."""
        return self.policy_seeds[seed // self.seeds_per_policy % len(self.policy_seeds)]


def parse_seeds(text: str | int) -> list[int]:
    """Seeds from a count ("4" is 0 to 3), a list ("0,3") or ranges ("2-5", "7-7").

    >>> parse_seeds("4"), parse_seeds("0,3"), parse_seeds("2-4,7-7")
    ([0, 1, 2, 3], [0, 3], [2, 3, 4, 7])
    """
    text = str(text).strip()
    if re.fullmatch(r"\d+", text):
        return list(_seeds(0, int(text[:20])))
    seeds: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if match is None:
            raise ValueError(f"'{text}' is not a count (4), a list (0,3) or a range (2-5)")
        first, last = int(match[1][:20]), int((match[2] or match[1])[:20])
        if last < first:
            raise ValueError(f"range '{item}' runs backwards")
        seeds.extend(_seeds(first, last + 1))
    return seeds


def _seeds(first: int, end: int) -> range:
    """`first` to `end` - 1; refused, before they fill the memory, where there are more than a plan may have runs."""
    refuse_beyond(end - first, "runs", "seeds")
    return range(first, end)


def recipe_dir() -> Path:
    """The folder of the recipes that ship with lossbench, in a wheel or in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def recipe_names() -> list[str]:
    """Names of the recipes that ship with lossbench."""
    return sorted(path.stem for path in recipe_dir().glob("*.toml"))


def recipe_path(name: str) -> Path:
    """The file of a built-in recipe or of a path. Raises UsageError with the valid names."""
    built_in = recipe_dir() / f"{name.replace('-', '_')}.toml"
    if "/" not in name and built_in.is_file():
        return built_in
    path = Path(name)
    if path.is_file():
        return path
    raise UsageError(f"{unknown('recipe', name, recipe_names())}; or the path of a TOML file")


def recipe_keys(name: str) -> dict[str, Any]:
    """The keys of the recipe `name` (built in, or a path), its own name among them. Raises UsageError."""
    path = recipe_path(name)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark first
        return {"name": path.stem, **tomllib.loads(text)}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML ({error})") from None


def refuse_trust(keys: Mapping[str, Any], where: str) -> None:
    """Raise UsageError where a recipe, which may be someone else's, would run a model's code or upload logs."""
    arms = keys.get("arms")
    settings = [arm.get("set") for arm in arms if isinstance(arm, Mapping)] if isinstance(arms, list) else []
    for table in [keys, *(changes for changes in settings if isinstance(changes, Mapping))]:
        for key, option in _ONLY_BY_CALL.items():
            if table.get(key):
                raise UsageError(
                    f"recipe '{where}': {key} is not for a recipe to decide: give {option} with the command"
                )


def load_recipe(name: str) -> Recipe:
    """The recipe `name` (built in, or a path). Raises UsageError that names the fault."""
    return make_recipe(recipe_keys(name), name)


def make_recipe(keys: Mapping[str, Any], where: str) -> Recipe:
    """A checked recipe from plain keys. Raises UsageError: one line that names the key and what is valid."""
    try:
        return Recipe(**keys)
    except ValidationError as error:
        raise UsageError(f"recipe '{where}': {describe(error, Recipe)}") from None


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """The first of pydantic's complaints as one line."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return unknown("key", key, model.model_fields)
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = repr(first["input"])
    return f"{key} = {given if len(given) <= 80 else f'{given[:80]}…'}: {message}" if key else message


def parse_assignment(text: str) -> tuple[str, Any]:
    """A `key=value` of `--set`: the value is TOML where it parses as such, else a string.

    >>> parse_assignment("learning_rate=1e-6"), parse_assignment("task=arithmetic")
    (('learning_rate', 1e-06), ('task', 'arithmetic'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set '{text}': write key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def apply_assignments(keys: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`keys` with `--set` assignments; a dotted key reaches into a table."""
    for assignment in assignments:
        name, value = parse_assignment(assignment)
        *tables, last = name.split(".")
        place = keys
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise UsageError(f"--set '{assignment}': '{table}' is not a table")
        place[last] = value
    return keys
