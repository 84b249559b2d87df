"""`lossbench sweep`: train a grid of modes x seeds."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Exit

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show, talk
from lossbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from lossbench.sweep.run import Planned


def sweep(
    context: Context,
    recipe: Annotated[str, Argument(help="A built-in recipe (see `lossbench recipes`) or a TOML file.")] = "quick",
    modes: Annotated[o.Text, o.grid("Modes, comma-separated: grpo,dr_grpo,grpo@token-mean/none.")] = None,
    loss_types: Annotated[o.Text, o.grid("An axis of a grid: surrogates (or, alone, presets).")] = None,
    agg_modes: Annotated[o.Text, o.grid("An axis of a grid: aggregations.")] = None,
    scale_rewards: Annotated[o.Text, o.grid("An axis of a grid: group, batch, none.")] = None,
    advantages: Annotated[o.Text, o.grid("The same axis by full names: none,loo,length-weighted.")] = None,
    seeds: Annotated[o.Text, o.grid("4 means 0 to 3; 0,3 and 2-5 are lists; 7-7 is one seed.")] = None,
    skip_duplicates: Annotated[
        bool, o.grid("Skip modes that are mathematically identical in this setup.", "--skip-duplicates")
    ] = False,
    steps: Annotated[o.Count, o.training("Optimizer steps per run.")] = None,
    model: Annotated[o.Text, o.training("Policy: a hub id (id@revision), a folder, or a .gguf file.")] = None,
    task: Annotated[o.Text, o.training("A task (see `lossbench tasks`), or file.py:Name.")] = None,
    dataset: Annotated[o.Text, o.training("Train on the prompts and answers of this file.")] = None,
    verifier: o.VerifierOption = None,
    lora: Annotated[o.Text, o.training("Train a LoRA adapter: r=16 or r=16,alpha=32.")] = None,
    sampler: o.SamplerOption = None,
    report_to: Annotated[o.Text, o.training("Also log through TRL to tensorboard, wandb or trackio.")] = None,
    probe_every: Annotated[o.Count, o.training("Probe the length bias every so many steps.")] = None,
    checkpoint_every: Annotated[o.Count, o.training("Checkpoint every so many steps.")] = None,
    set_: Annotated[o.Texts, o.training("Any key of the recipe: --set learning_rate=1e-5.", "--set")] = None,
    jobs: o.JobsOption = None,
    executor: o.ExecutorOption = None,
    address: o.AddressOption = None,
    slurm: Annotated[o.Text, o.execution("Options of sbatch: partition=gpu,time=120,gpus_per_node=1.")] = None,
    detach: Annotated[
        bool, o.execution("Submit to Slurm and leave; the same command later follows the runs.", "--detach")
    ] = False,
    gpus_per_run: Annotated[
        o.Number, o.execution("GPUs of each run, 0.5 for two runs on one GPU; by default one per process.")
    ] = None,
    nproc_per_run: Annotated[
        int, o.execution("Processes that share each run's micro-batches; the window stays the same.", min=1)
    ] = 1,
    shard: Annotated[
        o.Text,
        o.execution("i/n: only the i-th of n slices of the plan; folders from several disks are copied into one."),
    ] = None,
    retry_failed: o.RetryFailedOption = False,
    fail_fast: Annotated[bool, o.execution("Stop after the first failed run.", "--fail-fast")] = False,
    fresh: Annotated[bool, o.execution("Start over in a new folder; nothing is deleted.", "--fresh")] = False,
    out: o.SweepOutOption = None,
    dry_run: Annotated[bool, o.output("Print the resolved runs and start nothing.", "--dry-run")] = False,
    emit: Annotated[o.Text, o.output("With --dry-run: print a script, sbatch, that runs one --shard per task.")] = None,
    format: o.FormatOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Train modes x seeds with GRPO; the same command again completes what is left.

    Example: lossbench sweep --modes grpo,dr_grpo,dapo --seeds 4
    """
    from lossbench.api import plan_sweep

    said_here = ("recipe", "set_", "dry_run", "emit", "format", "quiet")
    overrides = {name: value for name, value in context.params.items() if name not in said_here}
    planned = plan_sweep(recipe, set_ or [], **overrides)
    if emit is not None:
        _emit(planned, emit, dry_run)
    elif dry_run:
        _say_what_would_run(planned, format, quiet)
    else:
        make_runs(planned, quiet)


def _say_what_would_run(planned: "Planned", format: str, quiet: bool) -> None:
    """The planned runs on stdout, and on stderr how they would compute."""
    from lossbench.cli._progress import Lines
    from lossbench.sweep.dry_run import planned_rows, ways_of_computing
    from lossbench.sweep.run import check_planned
    from lossbench.sweep.schedule import Watch

    planned = check_planned(planned, Watch() if quiet else Lines(), fetch=False)
    print_table(planned_rows(planned), None, format)
    for line in ways_of_computing(planned):
        talk(line)
    talk(f"{len(planned.mine)} runs would go to '{planned.folder}'; nothing was started")


def _emit(planned: "Planned", what: str, dry_run: bool) -> None:
    """A script on stdout for those who submit it themselves. Raises UsageError."""
    from lossbench.sweep.executors.sbatch import sbatch_script, slurm_options
    from lossbench.sweep.run import check_planned
    from lossbench.sweep.schedule import Watch

    if what != "sbatch":
        raise UsageError(unknown("--emit", what, ["sbatch"]))
    if not dry_run:
        raise UsageError("--emit sbatch starts nothing: give --dry-run too")
    runs = len(check_planned(planned, Watch(), fetch=False).mine)
    of_this_call = ("--dry-run", "--detach", "--fresh")
    command = typed_command(of_this_call, ("--emit", "--executor", "--slurm", "--jobs", "--format", "--out"))
    command += ["--out", str(planned.folder.resolve())]
    show(sbatch_script(slurm_options(planned.wanted), command, runs, planned.options.jobs, planned.folder))


def make_runs(planned: "Planned", quiet: bool) -> Path:
    """Make the runs and say how they went; returns the sweep's folder.

    Exits with 1 where a run failed, and with 130 and the command that resumes on Ctrl-C.
    """
    from lossbench.cli._progress import watcher
    from lossbench.sweep.run import check_planned, run_planned
    from lossbench.sweep.schedule import outcome

    watch, fresh = watcher(quiet), planned.options.fresh
    try:
        planned = check_planned(planned, watch, fetch=True)
        result = run_planned(planned, watch)
    except KeyboardInterrupt:
        elsewhere = outcome(planned.folder, planned.mine).elsewhere
        safe = f"{elsewhere} runs go on without this command" if elsewhere else "finished runs are safe"
        talk(f"interrupted; {safe}. To go on: {resume_command(planned.folder, fresh)}")
        raise Exit(130) from None
    folder = result.folder
    if not quiet:
        talk(f"{result.completed} of {len(planned.mine)} runs completed. Next: lossbench report '{folder}'")
        if result.elsewhere:
            again = resume_command(folder, fresh)
            talk(f"{result.elsewhere} runs go on without this command; to follow them: {again}")
    if result.failed or result.left:
        talk(
            f"{result.failed} failed, {result.left} not run: `lossbench runs '{folder}' --status failed` shows "
            f"their logs; to run them again: {resume_command(folder, fresh, '--retry-failed')}"
        )
        raise Exit(1)
    return folder


def resume_command(folder: Path, fresh: bool, *more: str) -> str:
    """The command that goes on in this folder: the one that was typed, without --fresh, which would begin anew."""
    words = typed_command(("--fresh", "--detach"), ("--out",) if fresh else ())
    if fresh:
        words += ["--out", str(folder)]
    return shlex.join([*words, *(word for word in more if word not in words)])


def typed_command(without: Sequence[str], without_values: Sequence[str]) -> list[str]:
    """The words of the command that was typed, without these flags, and without these options and their values."""
    from lossbench.store.provenance import command_line

    words: list[str] = []
    typed = iter(shlex.split(command_line()))
    for word in typed:
        if word in without_values:
            next(typed, None)
        elif word not in without and word.partition("=")[0] not in without_values:
            words.append(word)
    return words
