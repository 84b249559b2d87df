"""From a recipe to its runs: a pure function, seed-major, so that a stopped sweep is balanced."""

import math

from lossbench.errors import UsageError, unknown
from lossbench.limits import refuse_beyond
from lossbench.loss.modes import Mode, grid_modes, parse_mode, parse_modes
from lossbench.sweep.recipe import Arm, Recipe
from lossbench.training.run_spec import RunSpec, Settings


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
    axes = [axis for axis in (recipe.loss_types, recipe.agg_modes, recipe.scale_rewards, recipe.advantages) if axis]
    modes = math.prod(map(len, axes)) if axes else len(recipe.modes or ())
    return (modes + len(recipe.arms)) * len(recipe.seeds)


def recipe_arms(recipe: Recipe) -> list[tuple[str, Mode, Arm]]:
    """(arm's name, mode, arm) of the recipe. Raises UsageError for an unknown mode or an arm named twice."""
    arms = [Arm(mode=mode.name) for mode in _modes(recipe)] + recipe.arms
    if not arms:
        raise UsageError("the recipe has no modes: give modes, loss_types and agg_modes, or arms")
    named: dict[str, tuple[str, Mode, Arm]] = {}
    for arm in arms:
        mode = parse(arm.mode)
        label = arm.label or arm.policy
        name = f"{mode.name}[{label}]" if label else mode.name
        if arm.set and not label:
            raise UsageError(f"mode '{name}' changes settings: give it a label")
        if name in named:
            raise UsageError(f"mode '{name}' is given twice: entries of `arms` need different modes or labels")
        named[name] = (name, mode, arm)
    return list(named.values())


def parse(text: str) -> Mode:
    """A mode in any spelling. Raises UsageError with the valid forms."""
    try:
        return parse_mode(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _modes(recipe: Recipe) -> list[Mode]:
    try:
        if recipe.modes is not None:
            return parse_modes(",".join(recipe.modes))
        axes = recipe.loss_types, recipe.agg_modes, recipe.scale_rewards, recipe.advantages
        if any(axes):
            return grid_modes(*axes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return []


def _run(recipe: Recipe, name: str, mode: Mode, arm: Arm, seed: int, processes: int) -> RunSpec:
    from lossbench.policies import BUILT_IN

    policy = arm.policy or recipe.policy
    return RunSpec(
        arm=name,
        mode=mode,
        seed=seed,
        policy=policy,
        policy_seed=recipe.policy_seed(seed) if policy in BUILT_IN else None,
        settings=recipe.settings(arm.set),
        processes=processes,
    )


def _check_settings(recipe: Recipe, name: str, mode: Mode, arm: Arm, processes: int) -> None:
    from pydantic import ValidationError

    from lossbench.sweep.recipe import describe

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
