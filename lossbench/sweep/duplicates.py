"""Arms of a sweep that are the same experiment under its settings."""

import hashlib
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.errors import UsageError
from lossbench.loss.modes import Mode
from lossbench.policies.warmstart import cache_dir
from lossbench.processes import in_child
from lossbench.store.read import read_json
from lossbench.store.write import write_json
from lossbench.sweep.recipe import Recipe
from lossbench.training.run_spec import RunSpec

if TYPE_CHECKING:
    from lossbench.loss.same_experiment import Equality

_ROWS_ENOUGH = 16
"""Equalities are a matter of algebra: more rows per micro-batch than this change nothing but the time it takes."""


def duplicate_arms(recipe: Recipe, runs: list[RunSpec]) -> list["Equality"]:
    """Equalities between the arms that share policy and settings with the recipe; empty for a single arm."""
    plain = {spec.mode.name: spec.mode for spec in runs if spec.arm == spec.mode.name}
    return equal_modes(recipe, list(plain.values()))


def equal_modes(recipe: Recipe, modes: list[Mode]) -> list["Equality"]:
    """Pairs of `modes` that are one experiment, or one direction, under the recipe's settings.

    This takes torch and some gradients to find, so the answer is kept in the cache for the next time.
    """
    from lossbench.loss.same_experiment import Equality, equalities

    if len(modes) < 2:
        return []
    setup = setup_of(recipe)
    kept = cache_dir() / "equalities" / f"{_digest(repr((modes, setup)))}.json"
    with suppress(UsageError):  # not there, or damaged
        return [Equality(**fields) for fields in read_json(kept)["equalities"]]
    found = equalities(modes, setup) if "torch" in sys.modules else in_child(equalities, modes, setup)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"equalities": [asdict(equality) for equality in found]})
    return found


def _digest(question: str) -> str:
    """Cache key of an equality check: changes with the code of `lossbench.loss`."""
    import lossbench.loss

    digest = hashlib.sha256(question.encode())
    for source in sorted(Path(lossbench.loss.__path__[0]).glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def setup_of(recipe: Recipe):
    """The recipe's settings as `loss.equalities` wants them, at a size that keeps the algebra quick."""
    from lossbench.loss.same_experiment import Setup
    from lossbench.loss.surrogates import SurrogateParams

    rows, group = recipe.per_device_train_batch_size, recipe.num_generations
    windows = -(-recipe.micro_batches_per_generation // recipe.gradient_accumulation_steps)
    if rows > _ROWS_ENOUGH and rows % group == 0:
        rows = min(rows, 2 * group)
    return Setup(
        on_policy=windows * recipe.num_iterations == 1,
        rows_per_micro_batch=rows,
        micro_batches=recipe.gradient_accumulation_steps,
        num_generations=group,
        windows_per_generation=windows,
        horizon=recipe.loss_scale_factor or recipe.max_completion_length,
        match_scale=recipe.match_scale,
        params=SurrogateParams(**recipe.model_dump(include=set(SurrogateParams.model_fields))),
    )
