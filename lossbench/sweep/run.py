"""Running a recipe from the command line: check, say what will happen, run, say what happened."""

import hashlib
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lossbench.cli._options import Launch
from lossbench.cli._shared import print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.sweep.recipe import Recipe
    from lossbench.training.run_spec import RunSpec

_DRY_COLUMNS = [
    "run_id",
    "arm",
    "mode",
    "loss_type",
    "agg_mode",
    "scale_rewards",
    "seed",
    "policy",
    "policy_seed",
    "steps",
    "device",
    "dtype",
]
_AXES = ("loss_types", "agg_modes", "scale_rewards")


def resolved_recipe(name: str, flags: Mapping[str, Any], axes: Mapping[str, str | None], assignments: Sequence[str]):
    """The recipe `name` with flags, then `--set` assignments on top. Raises UsageError."""
    from lossbench.sweep.recipe import apply_assignments, make_recipe, recipe_keys

    keys = recipe_keys(name)
    keys |= {key: value for key, value in flags.items() if value is not None}
    keys |= _axis_keys(axes, keys)
    return make_recipe(apply_assignments(keys, list(assignments)), name)


def _axis_keys(axes: Mapping[str, str | None], keys: dict[str, Any]) -> dict[str, Any]:
    """Axis flags as lists; they replace whatever modes, axes or arms the recipe has."""
    given = {key: value for key, value in axes.items() if value is not None}
    if not given:
        return {}
    if "modes" in given and len(given) > 1:
        raise UsageError("--modes excludes --loss-types, --agg-modes and --scale-rewards: give one or the other")
    for key in ("modes", "arms", *_AXES):
        keys.pop(key, None)
    lists = {key: [item.strip() for item in value.split(",")] for key, value in given.items()}
    for key, items in lists.items():
        if not all(items):
            raise UsageError(f"--{key.replace('_', '-')} '{given[key]}' holds an empty name; give a list such as a,b")
    return lists


def launch(recipe: "Recipe", options: Launch) -> Path:
    """Run the recipe's plan and return its folder. Exits with 1 where a run failed, with 130 on Ctrl-C."""
    from lossbench.claims.registry import select
    from lossbench.sweep.folder import check_folder, default_folder, fresh_folder
    from lossbench.sweep.plan import plan
    from lossbench.sweep.preflight import preflight
    from lossbench.sweep.schedule import left_to_do
    from lossbench.sweep.shards import parse_shard, take_shard

    select(recipe.claims)
    shard = parse_shard(options.shard)
    runs = plan(recipe, options.processes)
    folder = options.out or default_folder(recipe, options.processes)
    folder = fresh_folder(folder) if options.fresh else folder
    check_folder(folder, recipe, runs, options.processes)
    mine = take_shard(runs, shard)
    try:
        with _interrupt_on_sigterm():
            here = options.executor == "local"
            if options.dry_run:
                preflight(mine, fetch=False, say=_note, here=here)
                _, mine = _say_equalities(recipe, runs, mine, options)
                _say_what_would_run(mine, folder, options)
                return folder
            say = (lambda text: None) if options.quiet else _note
            preflight(left_to_do(folder, mine, retry_failed=options.retry_failed), fetch=True, say=say, here=here)
            runs, mine = _say_equalities(recipe, runs, mine, options)
            _run(recipe, folder, runs, mine, shard, options)
    except KeyboardInterrupt:
        talk(f"interrupted; finished runs are safe. To go on: {_resume_command(folder, options.fresh)}")
        raise typer.Exit(130) from None
    return folder


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """What a scheduler sends before it kills ends a sweep as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _note(text: str) -> None:
    talk(f"note: {text}")


def _say_what_would_run(runs: list["RunSpec"], folder: Path, options: Launch) -> None:
    """The planned runs on stdout, and on stderr how they would compute."""
    from lossbench.policies.hardware import placement

    here = options.executor == "local"
    places = {}
    if here:
        asked = dict.fromkeys((spec.settings.device, spec.settings.dtype) for spec in runs)
        places = {key: placement(*key) for key in asked}
    rows, ways = [], {}
    for spec in runs:
        settings = spec.settings
        place = places.get((settings.device, settings.dtype))
        rows.append({
            **spec.labels(), "arm": spec.arm, "policy": spec.policy, "policy_seed": spec.policy_seed,
            "steps": settings.steps, "device": place.device if place else settings.device,
            "dtype": place.compute if place else settings.dtype,
        })  # fmt: skip
        where = place.sentence if place else f"device {settings.device}, dtype {settings.dtype}, as each node can"
        how = (
            f"sampler {settings.sampler}, {f'LoRA {_words(settings.lora)}' if settings.lora else 'all weights trained'}"
        )
        ways.setdefault(f"{where}, {how}", []).append(spec.arm)
    print_table(rows, _DRY_COLUMNS, options.format)
    for way, arms in ways.items():
        talk(way if len(ways) == 1 else f"{', '.join(dict.fromkeys(arms))}: {way}")
    talk(f"{len(runs)} runs would go to '{folder}'; nothing was started")


def _words(table: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in table.items())


def _run(
    recipe: "Recipe",
    folder: Path,
    runs: list["RunSpec"],
    mine: list["RunSpec"],
    shard: tuple[int, int] | None,
    options: Launch,
) -> None:
    from lossbench.claims.registry import fingerprint
    from lossbench.locks import Lock
    from lossbench.processes import cores
    from lossbench.sweep.display import make_display
    from lossbench.sweep.executors import Resources, make_executor
    from lossbench.sweep.folder import check_checkpoints, write_plan
    from lossbench.sweep.schedule import left_to_do, outcome, run_all

    wanted = Resources(options.jobs, options.gpus_per_run, options.processes, recipe.device, options.address)
    executor = make_executor(options.executor, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Lock(folder, shard, hashlib.sha256(" ".join(spec.run_id for spec in runs).encode()).hexdigest()[:6]):
            left = left_to_do(folder, mine, retry_failed=options.retry_failed)
            check_checkpoints(folder, left)
            write_plan(folder, recipe, runs, options.processes, fingerprint(recipe.claims))
            if not options.quiet:
                done = len(mine) - len(left)
                talk(f"{len(mine)} runs in '{folder}', {done} of them done, {executor.slots} at once")
            _prepare_policies(left, options.quiet, cores())
            with make_display(left, options.quiet) as display:
                run_all(folder, left, executor, display, fail_fast=options.fail_fast)
            result = outcome(folder, mine)
    except OSError as error:
        raise UsageError(f"the sweep in '{folder}' cannot go on: {error}") from None
    finally:
        executor.stop()
    if not options.quiet:
        talk(f"{result.completed} of {len(mine)} runs completed. Next: lossbench report '{folder}'")
    if result.failed or result.left:
        talk(
            f"{result.failed} failed, {result.left} not run: `lossbench runs '{folder}' --status failed` shows their "
            f"logs; to run them again: {_resume_command(folder, options.fresh, '--retry-failed')}"
        )
        raise typer.Exit(1)


def _resume_command(folder: Path, fresh: bool, *more: str) -> str:
    """The command that goes on in this folder: the one that was typed, but for --fresh, which would begin anew."""
    from lossbench.store.provenance import command_line

    words = shlex.split(command_line())
    if fresh:
        words = [word for word in words if word != "--fresh"]
        if "--out" in words:
            at = words.index("--out")
            del words[at : at + 2]
        words = [*(word for word in words if not word.startswith("--out=")), "--out", str(folder)]
    return shlex.join([*words, *(word for word in more if word not in words)])


def _prepare_policies(runs: Sequence["RunSpec"], quiet: bool, workers: int) -> None:
    """Build the built-in policies that are missing from the cache, with a progress bar."""
    from lossbench.policies.load import is_built_in
    from lossbench.policies.prepare import built_in_policy, missing_policies, prepare_policies

    wanted = dict.fromkeys((spec.policy, spec.policy_seed) for spec in runs if is_built_in(spec.policy))
    missing = {key: built_in_policy(*key) for key in wanted if missing_policies([built_in_policy(*key)])}
    if not missing:
        return
    from lossbench.cli._progress import warm_start_bar

    names = ", ".join(f"'{policy}' seed {seed}" for policy, seed in missing)
    with warm_start_bar(f"warm start of {names}", quiet) as on_step:
        prepare_policies(list(missing.values()), workers, on_step)


def _say_equalities(
    recipe: "Recipe", runs: list["RunSpec"], mine: list["RunSpec"], options: Launch
) -> tuple[list["RunSpec"], list["RunSpec"]]:
    """Say which modes are one experiment under these settings; with --skip-duplicates keep one of each."""
    from lossbench.sweep.duplicates import duplicate_arms

    if options.quiet and not options.skip_duplicates:
        return runs, mine
    found = duplicate_arms(recipe, runs)
    if not options.quiet:
        for caution in dict.fromkeys(spec.mode.surrogate.caution(spec.settings) for spec in runs):
            if caution:
                talk(f"warning: {caution}")
        for equality in found:
            talk(f"note: {equality.sentence}")
    if not options.skip_duplicates:
        return runs, mine
    dropped = {equality.second for equality in found if equality.kind == "same"}
    if dropped and not options.quiet:
        talk(f"skipped as duplicates: {', '.join(sorted(dropped))}")
    return [s for s in runs if s.arm not in dropped], [s for s in mine if s.arm not in dropped]
