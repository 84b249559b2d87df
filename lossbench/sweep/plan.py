"""From a recipe to its runs: a pure function, seed-major, so that a stopped sweep is balanced."""

import math
import re
from collections.abc import Sequence

from pydantic import ValidationError

from lossbench.errors import UsageError, unknown
from lossbench.limits import refuse_beyond
from lossbench.loss.modes import Mode, grid_modes, parse_mode, parse_modes
from lossbench.policies import BUILT_IN
from lossbench.sweep.recipe import Arm, Recipe, describe
from lossbench.training.run_spec import RunSpec, Settings

Shard = tuple[int, int]
"""i and n of "slice i of n", from 1, for people with a scheduler of their own."""


def plan(recipe: Recipe, processes: int = 1) -> list[RunSpec]:
    """All runs of the recipe, each arm of the first seed before any arm of the second.

    Raises UsageError for unknown modes, an arm named twice, or settings that do not fit each other.
    """
    refuse_beyond(_most_runs(recipe), "runs", "the plan")
    arms = recipe_arms(recipe)
    for name, mode, arm in arms:
        _check_settings(recipe, name, mode, arm, processes)
    names = [name for name, _, _ in arms]
    if "baseline" in recipe.model_fields_set and recipe.baseline not in names:
        raise UsageError(unknown("baseline", recipe.baseline, names))
    return [_run(recipe, name, mode, arm, seed, processes) for seed in recipe.seeds for name, mode, arm in arms]


def _most_runs(recipe: Recipe) -> int:
    """Number of runs that the recipe could have, counted before any mode is parsed."""
    axes = [axis for axis in recipe.axes if axis]
    modes = math.prod(map(len, axes)) if axes else len(recipe.modes or ())
    return (modes + len(recipe.arms)) * len(recipe.seeds)


def recipe_arms(recipe: Recipe) -> list[tuple[str, Mode, Arm]]:
    """(arm's name, mode, arm) of the recipe. Raises UsageError for an unknown mode or an arm named twice."""
    try:
        arms = [(mode, Arm(mode=mode.name)) for mode in _modes(recipe)]
        arms += [(parse_mode(arm.mode), arm) for arm in recipe.arms]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not arms:
        raise UsageError("the recipe has no modes: give modes, loss_types and agg_modes, or arms")
    named: dict[str, tuple[str, Mode, Arm]] = {}
    for mode, arm in arms:
        label = arm.label or arm.policy
        name = f"{mode.name}[{label}]" if label else mode.name
        if arm.set and not label:
            raise UsageError(f"mode '{name}' changes settings: give it a label")
        if name in named:
            raise UsageError(f"mode '{name}' is given twice: entries of `arms` need different modes or labels")
        named[name] = (name, mode, arm)
    return list(named.values())


def _modes(recipe: Recipe) -> list[Mode]:
    if recipe.modes is not None:
        return parse_modes(",".join(recipe.modes))
    return grid_modes(*recipe.axes) if any(recipe.axes) else []


def _run(recipe: Recipe, name: str, mode: Mode, arm: Arm, seed: int, processes: int) -> RunSpec:
    policy = arm.policy or recipe.policy
    return RunSpec(
        arm=name, mode=mode, seed=seed, policy=policy,
        policy_seed=recipe.policy_seed(seed) if policy in BUILT_IN else None,
        settings=recipe.settings(arm.set), processes=processes,
    )  # fmt: skip


def _check_settings(recipe: Recipe, name: str, mode: Mode, arm: Arm, processes: int) -> None:
    try:
        settings = recipe.settings(arm.set)
    except ValidationError as error:
        raise UsageError(f"mode '{name}': {describe(error, Settings)}") from None
    if settings.rows_per_generation() % settings.num_generations:
        raise UsageError(
            f"mode '{name}': {settings.rows_per_generation()} completions per generation are not whole "
            f"groups of num_generations {settings.num_generations}"
        )
    _check_processes(name, mode, settings, processes)


def _check_processes(name: str, mode: Mode, settings: Settings, processes: int) -> None:
    """The window is the recipe's: refuse processes that would change it."""
    if settings.per_device_train_batch_size % processes:
        raise UsageError(
            f"--nproc-per-run {processes} does not divide a micro-batch of {settings.per_device_train_batch_size} rows"
        )
    if processes > 1 and mode.aggregation.entry.depends_on_split:
        raise UsageError(
            f"mode '{name}' means each micro-batch by itself, so sharing it among {processes} processes is another "
            "experiment: run it with --nproc-per-run 1"
        )


def parse_shard(text: str | None) -> Shard | None:
    """`i/n` as two numbers; None for None. Raises UsageError.

    >>> parse_shard("1/4")
    (1, 4)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard '{text}': give i/n with 1 <= i <= n, such as 1/4")
    return int(match[1]), int(match[2])


def take_shard(runs: Sequence[RunSpec], shard: Shard | None) -> list[RunSpec]:
    """The slice of the plan: every n-th run from the i-th on; all of it for None."""
    return list(runs) if shard is None else list(runs[shard[0] - 1 :: shard[1]])
