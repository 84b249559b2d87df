"""`lossbench probe`: the length bias of any mode by gradients on frozen rollouts, without training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lossbench.cli import _options as o
from lossbench.cli._shared import EXECUTION, OUTPUT, TRAINING, Format, FormatOption, QuietOption, talk
from lossbench.errors import UsageError

_RECIPE = "dr-grpo"
POLICY, WHAT = "Policy and rollouts", "Modes"
_MODES = (
    "grpo,dapo,grpo@prompt-mean,dr_grpo,grpo@seq-mean-token-mean/none,grpo@token-mean/none,grpo@prompt-mean/none,"
    "grpo@delta-l:1/none"
)


def probe(
    modes: Annotated[str, typer.Option(help="Modes, comma-separated.", rich_help_panel=WHAT)] = _MODES,
    alphas: Annotated[
        str, typer.Option(help="Exponents of the dose-response, length-power:α without std.", rich_help_panel=WHAT)
    ] = "0,0.25,0.5,0.75,1,1.25,1.5,2",
    micro_batch_rows: Annotated[
        int | None, typer.Option(help="Rows per micro-batch, for micro-token-mean.", min=1, rich_help_panel=WHAT)
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Recipe whose size of training the forecast is for.", rich_help_panel=WHAT)
    ] = _RECIPE,
    policy: Annotated[
        str | None, typer.Option(help="Built-in policy: selfcheck or selfcheck-null.", rich_help_panel=POLICY)
    ] = None,
    policy_seed: Annotated[int, typer.Option(help="Seed of its warm start.", min=0, rich_help_panel=POLICY)] = 0,
    model: Annotated[
        str | None, typer.Option(help="Another policy: a hub id, a folder, or a .gguf file.", rich_help_panel=POLICY)
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Probe each checkpoint of a run, or in a Trainer's output_dir.", rich_help_panel=POLICY),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(help="Recorded completions of --model, or TRL's or lossbench's folder of them.",
                     rich_help_panel=POLICY),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", help="FIELD=COLUMN of the recorded completions, such as reward=score; repeatable.",
                     rich_help_panel=POLICY),
    ] = None,
    projections: Annotated[
        Path | None, typer.Option(help="A kept probe file: other modes without the model.", rich_help_panel=POLICY)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="A task (see `lossbench tasks`), or file.py:Name; default: selfcheck.",
                     rich_help_panel=POLICY),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Prompts and answers of this file, as the task.", rich_help_panel=POLICY)
    ] = None,
    verifier: o.VerifierOption = None,
    settings: o.ProbeSetOption = None,
    batches: Annotated[int, typer.Option(help="Pairs of batches.", rich_help_panel=TRAINING)] = 40,
    completions: Annotated[int, typer.Option(help="Completions per batch.", rich_help_panel=TRAINING)] = 128,
    num_generations: Annotated[int, typer.Option(help="Completions per prompt.", rich_help_panel=TRAINING)] = 8,
    max_completion_length: Annotated[
        int | None, typer.Option(help="Cap, tokens; default: 128, of a --model 1,024 or that of a --recipe given.",
                                 rich_help_panel=TRAINING)
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.", rich_help_panel=TRAINING)] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts and sampling.", rich_help_panel=TRAINING)] = 0,
    params: Annotated[
        str | None,
        typer.Option(help="Differentiate by: head (default of --model: forward passes only), all, or parts of names.",
                     rich_help_panel=TRAINING),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="plain, adam or plain,adam.", rich_help_panel=TRAINING)
    ] = "plain,adam",
    lora: Annotated[
        str | None,
        typer.Option(help="Differentiate by a fresh LoRA adapter, whose B alone can move: r=16.",
                     rich_help_panel=TRAINING),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; default: one per core for the built-in policy, else 1.",
                                 min=1, rich_help_panel=EXECUTION)
    ] = None,
    max_positions: Annotated[
        int | None, typer.Option(help="Rows × tokens of one pass; default: what fits in 4 GiB.",
                                 min=1, rich_help_panel=EXECUTION)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; default: bfloat16 on a GPU.", rich_help_panel=EXECUTION)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=EXECUTION)] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder; a sweep's own, or by default results/probe-<policy>.",
                                  rich_help_panel=OUTPUT)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print memory, tokens and seconds a pair, and start nothing.",
                           rich_help_panel=OUTPUT)
    ] = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="All tables: right answers, Adam, dose-response, response curves.",
                           rich_help_panel=OUTPUT)
    ] = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Predict how each mode moves the length of incorrect, correct and all completions, without training.

    Samples pairs of batches from the frozen policy and reports each mode's drift of length per unit of step, less that
    of seq-mean-token-sum, with a 95 % interval over the pairs. Extra modes add no computation. Tables and figures go to
    --out, the projections to <out>/probe/, pair by pair: the same command goes on where it was stopped.

    Example: lossbench probe --modes grpo,dr_grpo,dapo
    """
    from lossbench.cli import _probe
    from lossbench.probe.batches import Sampling
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.prober import ProbeSettings
    from lossbench.probe.projections import read_projections
    from lossbench.sweep.overrides import dataset_task
    from lossbench.tasks import make_task

    chosen_task: dict[str, Any] = {"task": task or "selfcheck", "task_params": {}}
    chosen_task |= dataset_task(dataset, verifier, task)
    tables = o.params(settings or [], "task_params", "policy_params")
    chosen_task["task_params"] |= tables["task_params"]
    given = {"--policy": policy, "--model": model, "--checkpoints": checkpoints, "--projections": projections}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other: give one policy")
    if projections is not None and rollouts is not None:
        raise UsageError("--projections and --rollouts exclude each other: a kept probe needs no completions")
    question = _probe.question(modes, alphas, recipe, micro_batch_rows)
    say = (lambda text: None) if quiet else talk
    if projections is not None:
        _probe.answer(read_projections(projections), question, out, str(format), say, detail)
        return
    if batches < 1:
        raise UsageError(f"--batches is {batches}: give 2 or more pairs, for an interval")
    name = model or policy or "selfcheck"
    own = question.cap if recipe != _RECIPE else 1024
    cap = max_completion_length or (own if model or checkpoints else 128)
    job = ProbeJob(
        name, policy_seed, **chosen_task, rollouts=rollouts, columns=o.mapping(columns or []),
        label=_probe.label(name, tables["policy_params"]),
        load_options=_probe.load_options(
            name if checkpoints is None else str(checkpoints), lora, dtype, device, tables["policy_params"]
        ),
        settings=ProbeSettings(
            Sampling(completions, num_generations, cap, temperature, seed), batches,
            tuple(_probe.items(metric)), params=tuple(_probe.items(params or "")), max_positions=max_positions,
        ),
    )  # fmt: skip
    jobs = [job] if checkpoints is None else _probe.of_checkpoints(job, checkpoints)
    if dry_run:
        _probe.print_cost(jobs, str(format))
        return
    make_task(job.task, job.task_params)
    out = out or Path("results") / f"probe-{_probe.file_name(jobs[0].name)}"
    path = _probe.measured(jobs, out, workers, question, say)
    _probe.answer(read_projections(path), question, out, str(format), say, detail)
