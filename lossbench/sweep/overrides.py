"""A recipe with what a call changes in it: the keyword arguments of `run_sweep`, the options of the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.sweep.recipe import AXES, Recipe, apply_assignments, make_recipe, recipe_keys, refuse_trust
from lossbench.sweep.run import RunOptions

_LISTS = ("modes", *AXES, "report_to")


def resolve(
    recipe: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], assignments: Sequence[str] = ()
) -> tuple[Recipe, RunOptions]:
    """The recipe (a built-in name, a TOML file, or its keys) with `overrides`, then `key=value` assignments on top.

    Overrides are keys of a recipe and fields of `RunOptions`; None leaves a key as it is. `model` is another name of
    `policy`, `dataset` and `verifier` stand for the task of that name, and lists may be comma-separated text. Raises
    UsageError.
    """
    where = recipe.get("name", "recipe") if isinstance(recipe, Mapping) else str(recipe)
    keys = dict(recipe) if isinstance(recipe, Mapping) else recipe_keys(where)
    refuse_trust(keys, where)
    given = {key: value for key, value in overrides.items() if value is not None}
    options = {field.name: given.pop(field.name) for field in fields(RunOptions) if field.name in given}
    if "out" in options:
        options["out"] = Path(options["out"])
    given |= {key: _list(key, given[key]) for key in _LISTS if key in given}
    if isinstance(given.get("lora"), str):
        from lossbench.policies.adapters import parse_lora

        given["lora"] = parse_lora(given["lora"])
    if "model" in given:
        given["policy"] = given.pop("model")
    given |= dataset_task(given.pop("dataset", None), given.pop("verifier", None), given.get("task"))
    named = [key for key in ("modes", *AXES) if key in given]
    if "modes" in named and len(named) > 1:
        raise UsageError("--modes excludes --loss-types, --agg-modes and --scale-rewards: give one or the other")
    # Modes or axes that are given replace the recipe's modes, axes and arms, and with them its baseline.
    for key in ("modes", "arms", "baseline", *AXES) if named else ():
        keys.pop(key, None)
    return make_recipe(apply_assignments({**keys, **given}, list(assignments)), where), RunOptions(**options)


def _list(key: str, value: Any) -> Any:
    """`a,b` as a list; other values as they are."""
    if not isinstance(value, str):
        return value
    items = [item.strip() for item in value.split(",")]
    if not all(items):
        raise UsageError(f"--{key.replace('_', '-')} '{value}' holds an empty name; give a list such as a,b")
    return items


def dataset_task(dataset: str | None, verifier: str | None, task: str | None) -> dict[str, Any]:
    """`dataset` and `verifier` as the keys of the task they stand for; {} without. Raises UsageError."""
    if dataset is None:
        if verifier is not None:
            raise UsageError("--verifier judges the answers of a --dataset: give both")
        return {}
    if task is not None:
        raise UsageError("--dataset is a task of its own: give --task or --dataset, not both")
    return {"task": "dataset", "task_params": {"path": dataset, **({"verifier": verifier} if verifier else {})}}
