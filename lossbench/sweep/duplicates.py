"""Which arms of a sweep are the same experiment under its settings."""

from typing import TYPE_CHECKING

from lossbench.sweep.recipe import Recipe
from lossbench.training.spec import RunSpec

if TYPE_CHECKING:
    from lossbench.loss.equalities import Equality

_ROWS_ENOUGH = 16
"""Equalities are a matter of algebra: more rows per micro-batch than this change nothing but the time it takes."""


def duplicate_arms(recipe: Recipe, runs: list[RunSpec]) -> list["Equality"]:
    """Equalities between the arms that share policy and settings with the recipe; empty for a single arm."""
    from lossbench.loss.equalities import equalities
    from lossbench.loss.modes import Mode

    plain = {spec.mode.name: spec.mode for spec in runs if spec.arm == spec.mode.name}
    if len(plain) < 2:
        return []
    return equalities([Mode(**mode.model_dump()) for mode in plain.values()], setup_of(recipe))


def setup_of(recipe: Recipe):
    """The recipe's settings as `loss.equalities` wants them, at a size that keeps the algebra quick."""
    from lossbench.loss.equalities import Setup
    from lossbench.training.params import surrogate_params

    rows, group = recipe.per_device_train_batch_size, recipe.num_generations
    windows = -(-recipe.micro_batches_per_generation // recipe.gradient_accumulation_steps)
    if rows > _ROWS_ENOUGH and rows % group == 0:
        rows = 2 * group
    return Setup(
        on_policy=windows * recipe.num_iterations == 1,
        rows_per_micro_batch=rows,
        micro_batches=recipe.gradient_accumulation_steps,
        num_generations=group,
        windows_per_generation=windows,
        horizon=recipe.loss_scale_factor or recipe.max_completion_length,
        match_scale=recipe.match_scale,
        params=surrogate_params(recipe),
    )
