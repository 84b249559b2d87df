"""`lossbench probe`: the length bias of any mode by gradients on frozen rollouts, without training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lossbench.cli import _options as o
from lossbench.cli._shared import EXECUTION, OUTPUT, TRAINING, Format, FormatOption, QuietOption
from lossbench.errors import UsageError

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
    ] = "dr-grpo",
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
        typer.Option(help="Recorded completions of --model: prompt, completion (or _ids), reward, group.",
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
    settings: o.TaskSetOption = None,
    batches: Annotated[int, typer.Option(help="Pairs of batches.", rich_help_panel=TRAINING)] = 40,
    completions: Annotated[int, typer.Option(help="Completions per batch.", rich_help_panel=TRAINING)] = 128,
    num_generations: Annotated[int, typer.Option(help="Completions per prompt.", rich_help_panel=TRAINING)] = 8,
    max_completion_length: Annotated[int, typer.Option(help="Cap, tokens.", rich_help_panel=TRAINING)] = 128,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.", rich_help_panel=TRAINING)] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts and sampling.", rich_help_panel=TRAINING)] = 0,
    params: Annotated[
        str | None, typer.Option(help="Differentiate by these alone: lm_head,layers.-1.", rich_help_panel=TRAINING)
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
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Predict how each mode moves the length of incorrect, correct and all completions, without training.

    Samples pairs of batches from the frozen policy and reports each mode's drift of length per unit of step, less that
    of seq-mean-token-sum, with a 95 % interval over the pairs. Another mode costs nothing. Tables and figures go to
    --out, the projections to <out>/probe/.

    Example: lossbench probe --modes grpo,dr_grpo,dapo
    """
    from lossbench.cli._probe import ProbeRequest, run
    from lossbench.sweep.overrides import dataset_task

    chosen_task: dict[str, Any] = {"task": task or "selfcheck", "task_params": {}}
    chosen_task |= dataset_task(dataset, verifier, task)
    chosen_task["task_params"] |= o.task_params(settings or [])
    given = {"--policy": policy, "--model": model, "--checkpoints": checkpoints, "--projections": projections}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other: give one policy")
    if projections is not None and rollouts is not None:
        raise UsageError("--projections and --rollouts exclude each other: a kept probe needs no completions")
    run(
        ProbeRequest(
            modes=modes, alphas=alphas, micro_batch_rows=micro_batch_rows, recipe=recipe,
            policy=model or policy or "selfcheck", policy_seed=policy_seed, checkpoints=checkpoints, rollouts=rollouts,
            projections=projections, **chosen_task, batches=batches, completions=completions,
            num_generations=num_generations, max_completion_length=max_completion_length, temperature=temperature,
            seed=seed, params=params, metric=metric, lora=lora, workers=workers, max_positions=max_positions,
            dtype=dtype, device=device, out=out, format=str(format), quiet=quiet,
        )
    )  # fmt: skip
