"""From a recipe and options to completed runs. A `Watch` is told what happens on the way; nothing is printed here."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.extras import TRAIN, require
from lossbench.locks import sweep_lock
from lossbench.policies.load import is_built_in
from lossbench.policies.prepare import built_in_policy, missing_policies, prepare_policies
from lossbench.processes import cores, on_signal
from lossbench.sweep.duplicates import duplicate_arms
from lossbench.sweep.estimate import remember_timings
from lossbench.sweep.executors import Resources, check_executor, kind_of, make_executor
from lossbench.sweep.folder import (
    JOB_FILE,
    check_contents,
    check_folder,
    check_jobs,
    check_run_folders,
    default_folder,
    fresh_folder,
    new_folder,
    run_dir,
    run_state,
    write_plan,
)
from lossbench.sweep.plan import Shard, parse_shard, plan, take_shard
from lossbench.sweep.preflight import preflight
from lossbench.sweep.recipe import Recipe
from lossbench.sweep.schedule import Outcome, Watch, left_to_do, outcome, run_all
from lossbench.tasks.judging import judging_problems
from lossbench.training.contents import Contents
from lossbench.training.hashed_fields import hash_of
from lossbench.training.run_spec import RunSpec

_NAMED_WARM_STARTS = 4  # more are counted
# Schedulers send SIGTERM before they kill: it ends a sweep as Ctrl-C does, with KeyboardInterrupt.
_interrupted_by_sigterm = partial(on_signal, signal.SIGTERM, signal.default_int_handler)


@dataclass(frozen=True)
class RunOptions:
    """Options of running a plan; named after the options of `lossbench sweep`."""

    jobs: int | None = None
    executor: str = "local"
    address: str | None = None
    slurm: str | None = None
    detach: bool = False
    gpus_per_run: float | None = None
    nproc_per_run: int = 1
    shard: str | None = None
    retry_failed: bool = False
    fail_fast: bool = False
    fresh: bool = False
    skip_duplicates: bool = False
    out: Path | None = None


@dataclass(frozen=True)
class Planned:
    """A recipe's runs and where they go; `mine` are those of this call's slice."""

    recipe: Recipe
    options: RunOptions
    folder: Path
    runs: list[RunSpec]
    mine: list[RunSpec]
    shard: Shard | None = None
    claims_fingerprint: str | None = None
    command: str | None = None
    contents: Contents = field(default_factory=dict)

    @property
    def here(self) -> bool:
        """Whether the runs run on this machine."""
        return kind_of(self.options.executor).here

    @property
    def wanted(self) -> Resources:
        """Resources of the runs."""
        o = self.options
        return Resources(o.jobs, o.gpus_per_run, o.nproc_per_run, self.recipe.device, o.address, o.slurm)


def plan_recipe(
    recipe: Recipe, options: RunOptions, claims_fingerprint: str | None = None, command: str | None = None
) -> Planned:
    """The runs of the recipe and their folder; writes nothing.

    `claims_fingerprint` stands for the wording and margins of the recipe's claims, `command` for what was called,
    where that was not the command line. Raises UsageError for a plan or a folder that cannot be.
    """
    require("a sweep", "train", *TRAIN)
    shard = parse_shard(options.shard)
    runs = plan(recipe, options.nproc_per_run)
    folder = options.out or default_folder(recipe, options.nproc_per_run)
    folder = fresh_folder(folder) if options.fresh else folder
    check_folder(folder, recipe, runs, options.nproc_per_run)
    return Planned(recipe, options, folder, runs, take_shard(runs, shard), shard, claims_fingerprint, command)


@_interrupted_by_sigterm()
def check_planned(planned: Planned, watch: Watch, *, fetch: bool) -> Planned:
    """The plan without duplicates, if so asked, once its models, tasks and devices have been looked at.

    With `fetch`, what this machine lacks is fetched, and the new folder of a `fresh` sweep is made. Raises UsageError
    for what the runs would fail on, or what would mix two experiments in one folder.
    """
    retry = planned.options.retry_failed
    looked_at = left_to_do(planned.folder, planned.mine, retry_failed=retry) if fetch else planned.mine
    if fetch:
        _check_executor(planned, [] if planned.options.skip_duplicates else looked_at)
    contents = preflight(looked_at, fetch=fetch, say=watch.note, here=planned.here)
    check_contents(planned.folder, contents)
    planned = replace(_without_duplicates(planned, watch), contents=contents)
    if fetch and planned.options.skip_duplicates:  # only now is it known how many runs there are
        _check_executor(planned, left_to_do(planned.folder, planned.mine, retry_failed=retry))
    return replace(planned, folder=new_folder(planned.folder)) if fetch and planned.options.fresh else planned


def _check_executor(planned: Planned, left: Sequence[RunSpec]) -> None:
    """Check options and, of the runs that are left, how many have no job yet. Raises UsageError."""
    options, detached = planned.options, kind_of(planned.options.executor).detached
    if options.detach and not detached:
        raise UsageError(f"--detach: runs of --executor {options.executor} end with this command")
    if detached and options.shard:
        raise UsageError(f"--shard is for a scheduler of your own; --executor {options.executor} takes the whole plan")
    new = [spec for spec in left if not (run_dir(planned.folder, spec.run_id) / JOB_FILE).exists()]
    check_executor(options.executor, planned.wanted, len(new))


def _without_duplicates(planned: Planned, watch: Watch) -> Planned:
    """Tell which modes are one experiment under these settings; with `skip_duplicates` keep one of each."""
    recipe, skip = planned.recipe, planned.options.skip_duplicates
    if not (skip or watch.wants_notes):
        return planned
    for caution in dict.fromkeys(text for spec in planned.runs for text in spec.cautions()):
        watch.note(caution)
    found = duplicate_arms(recipe, planned.runs)
    for equality in found:
        watch.note(equality.sentence)
    dropped = sorted({equality.second for equality in found if equality.kind == "same"})
    if dropped:
        unskipped = "--skip-duplicates would train one of each pair of identical modes, without"
        watch.note(f"{'skipped as duplicates:' if skip else unskipped} {', '.join(dropped)}")
    if not (dropped and skip):
        return planned
    runs, mine = ([spec for spec in specs if spec.arm not in dropped] for specs in (planned.runs, planned.mine))
    return replace(planned, runs=runs, mine=mine)


@_interrupted_by_sigterm()
def run_planned(planned: Planned, watch: Watch) -> Outcome:
    """Make the runs that are left; a failed run is counted, not raised.

    Raises UsageError where the folder is in use or cannot be written, and KeyboardInterrupt on Ctrl-C or SIGTERM, after
    the runs that were going are stopped and marked.
    """
    if planned.here and sys.platform == "win32":
        raise UsageError("runs need Linux, macOS or WSL; on Windows reports, logs, modes and weights work")
    recipe, folder, options = planned.recipe, planned.folder, planned.options
    executor = make_executor(options.executor, planned.wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Jobs hold locks of the same cut, so that a sweep finds its way back to them and others do not.
        cut = (
            ((1, 1), "")
            if executor.detached
            else (planned.shard, hash_of({"runs": [spec.run_id for spec in planned.runs]})[:6])
        )
        with sweep_lock(folder, *cut):
            left = left_to_do(folder, planned.mine, retry_failed=options.retry_failed)
            check_run_folders(folder, left)
            check_jobs(folder, left, options.executor)
            write_plan(
                folder, recipe, planned.runs, options.nproc_per_run, planned.claims_fingerprint,
                mine=planned.mine if left else [], command=planned.command, contents=planned.contents,
            )  # fmt: skip
            watch.begun(folder, planned.mine, left, executor.slots)
            _prepare_policies(left, watch)
            try:
                run_all(folder, left, executor, watch, fail_fast=options.fail_fast, detach=options.detach)
            finally:
                watch.over()
            for spec in left:
                for problem in judging_problems(run_state(folder, spec.run_id)):
                    watch.note(f"{spec.arm} seed {spec.seed}: {problem}")
            remember_timings(folder, left)
            return outcome(folder, planned.mine)
    except OSError as error:
        raise UsageError(f"the sweep in '{folder}' cannot go on: {error}") from None
    finally:
        executor.stop()


def _prepare_policies(runs: Sequence[RunSpec], watch: Watch) -> None:
    """Build the built-in policies that are missing from the cache."""
    wanted = {
        built_in_policy(spec.policy, spec.policy_seed, spec.settings.policy_params): spec
        for spec in runs
        if is_built_in(spec.policy)
    }
    missing = missing_policies(list(wanted))
    if missing:
        title = f"{len(missing)} warm starts"
        if len(missing) <= _NAMED_WARM_STARTS:
            title = f"warm start of {', '.join(_policy_name(wanted[policy]) for policy in missing)}"
        with watch.warm_start(title) as on_step:
            prepare_policies(missing, cores(), on_step)


def _policy_name(spec: RunSpec) -> str:
    params = "".join(f" {name}={value}" for name, value in spec.settings.policy_params.items())
    return f"'{spec.policy}'{params} seed {spec.policy_seed}"
