"""`lossbench probe`: the length bias of any mode by gradients on frozen rollouts, without training."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.measure import Progress

Say = Callable[[str], None]
_RECIPE = "dr-grpo"
_MODES = (
    "grpo,dapo,grpo@prompt-mean,dr_grpo,grpo@seq-mean-token-mean/none,grpo@token-mean/none,grpo@prompt-mean/none,"
    "grpo@delta-l:1/none"
)
what, source = o.panel("Modes"), o.panel("Policy and rollouts")


def probe(
    modes: Annotated[str, what("Modes, comma-separated.")] = _MODES,
    alphas: Annotated[
        str, what("Exponents of the dose-response, length-power:α without std.")
    ] = "0,0.25,0.5,0.75,1,1.25,1.5,2",
    micro_batch_rows: Annotated[o.Count, what("Rows per micro-batch, for micro-token-mean.", min=1)] = None,
    recipe: Annotated[str, what("Recipe whose size of training the forecast is for.")] = _RECIPE,
    policy: Annotated[o.Text, source("Built-in policy: selfcheck or selfcheck-null.")] = None,
    policy_seed: Annotated[int, source("Seed of its warm start.", min=0)] = 0,
    model: Annotated[o.Text, source("Another policy: a hub id, a folder, or a .gguf file.")] = None,
    checkpoints: Annotated[o.File, source("Probe each checkpoint of a run or Trainer's output_dir.")] = None,
    rollouts: Annotated[
        o.File, source("Recorded completions of --model, or TRL's or a sweep's folder of them.")
    ] = None,
    columns: Annotated[
        o.Texts, source("FIELD=COLUMN of the recorded completions: reward=score; repeatable.", "--map")
    ] = None,
    projections: Annotated[o.File, source("A kept probe file: other modes without the model.")] = None,
    task: Annotated[o.Text, source("A task (see `lossbench tasks`), or file.py:Name; default: selfcheck.")] = None,
    dataset: Annotated[o.Text, source("Prompts and answers of this file, as the task.")] = None,
    verifier: o.VerifierOption = None,
    settings: Annotated[
        o.Texts, o.option("A task's or policy's parameter: --set policy_params.check_truth=0.8; repeatable.", "--set")
    ] = None,
    batches: Annotated[int, o.training("Pairs of batches.")] = 40,
    completions: Annotated[int, o.training("Completions per batch.")] = 128,
    num_generations: Annotated[int, o.training("Completions per prompt.")] = 8,
    max_completion_length: Annotated[
        o.Count, o.training("Cap, tokens; default: 128, of a --model 1,024 or that of a --recipe given.")
    ] = None,
    temperature: Annotated[float, o.training("Sampling temperature.")] = 1.0,
    seed: Annotated[int, o.training("Seed of prompts and sampling.")] = 0,
    params: Annotated[
        o.Text, o.training("By head (--model's default: forward passes only), all, or parts of names.")
    ] = None,
    metric: Annotated[str, o.training("plain, adam or plain,adam.")] = "plain,adam",
    lora: Annotated[o.Text, o.training("By a fresh LoRA adapter, whose B alone can move: r=16.")] = None,
    workers: Annotated[
        o.Count, o.execution("Processes; default: one per core for a built-in policy, else 1.", min=1)
    ] = None,
    max_positions: Annotated[o.Count, o.execution("Rows × tokens a pass; default: what fits in 4 GiB.", min=1)] = None,
    dtype: Annotated[o.Text, o.execution("float32 or bfloat16; default: bfloat16 on a GPU.")] = None,
    device: Annotated[str, o.execution("auto, cpu or cuda.")] = "auto",
    out: Annotated[o.File, o.output("Folder; a sweep's own, or by default results/probe-<policy>.")] = None,
    dry_run: Annotated[bool, o.output("Print memory, tokens and seconds a pair; start nothing.", "--dry-run")] = False,
    detail: Annotated[bool, o.output("All tables: right answers, Adam, dose-response, curves.", "--detail")] = False,
    format: o.FormatOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Predict how each mode moves the length of incorrect, correct and all completions, without training.

    Samples pairs of batches from the frozen policy and reports each mode's drift of length per unit of step, less that
    of seq-mean-token-sum, with a 95 % interval over the pairs. Extra modes add no computation. Tables and figures go to
    --out, the projections to <out>/probe/, pair by pair: the same command goes on where it was stopped.

    Example: lossbench probe --modes grpo,dr_grpo,dapo
    """
    from lossbench.cli._probe_output import print_findings, write_findings
    from lossbench.probe.batches import Sampling
    from lossbench.probe.findings import findings
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.measure import file_name
    from lossbench.probe.prober import ProbeSettings
    from lossbench.probe.projections import read_projections
    from lossbench.sweep.overrides import dataset_task
    from lossbench.sweep.recipe import load_recipe
    from lossbench.tasks import make_task

    tables = o.params(settings, "task_params", "policy_params")
    chosen_task: dict[str, Any] = {"task": task or "selfcheck", "task_params": {}}
    chosen_task |= dataset_task(dataset, verifier, task)
    chosen_task["task_params"] |= tables["task_params"]
    _refuse_two({"--policy": policy, "--model": model, "--checkpoints": checkpoints, "--projections": projections},
                "give one policy")  # fmt: skip
    _refuse_two({"--projections": projections, "--rollouts": rollouts}, "a kept probe needs no completions")
    asked = _asked(modes, alphas, recipe, micro_batch_rows)
    say = (lambda text: None) if quiet else talk

    def answer(path: Path) -> None:
        found = [findings(one, **asked) for one in read_projections(path)]
        if out is not None:
            write_findings(out, found, say)
        print_findings(found, format, say, detail)

    if projections is not None:
        answer(projections)
        return
    if batches < 1:
        raise UsageError(f"--batches is {batches}: give 2 or more pairs, for an interval")
    name = model or policy or "selfcheck"
    own_cap = load_recipe(recipe).max_completion_length if recipe != _RECIPE else 1024
    cap = max_completion_length or (own_cap if model or checkpoints else 128)
    sampling = Sampling(completions, num_generations, cap, temperature, seed)
    differentiated = {"params": tuple(o.items(params or "")), "max_positions": max_positions}
    job = ProbeJob(
        name, policy_seed, **chosen_task, rollouts=rollouts, columns=o.mapping(columns),
        load_options=_load_options(str(checkpoints or name), lora, dtype, device, tables["policy_params"]),
        settings=ProbeSettings(sampling, batches, tuple(o.items(metric)), **differentiated),
    )  # fmt: skip
    jobs = [job] if checkpoints is None else _of_checkpoints(job, checkpoints)
    if dry_run:
        _print_cost(jobs, format)
        return
    make_task(job.task, job.task_params)
    out = out or Path("results") / f"probe-{file_name(jobs[0].name)}"
    answer(_measured(jobs, out, workers, asked, say))


def _refuse_two(given: dict[str, Any], why: str) -> None:
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other: {why}")


def _asked(modes: str, alphas: str, recipe: str, micro_batch_rows: int | None) -> dict[str, Any]:
    """Keyword arguments of `findings`. Raises UsageError for what cannot be read."""
    from lossbench.loss.modes import dose_mode, parse_modes
    from lossbench.sweep.recipe import load_recipe

    try:
        read = parse_modes(modes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        exponents = {dose_mode(float(item)).aggregation.alpha for item in alphas.split(",")}
    except ValueError as error:
        raise UsageError(f"--alphas '{alphas}': not a list of numbers; valid: 0,0.5,1,2") from error
    plan = load_recipe(recipe)
    rows = plan.per_device_train_batch_size * plan.gradient_accumulation_steps
    training = {"steps": plan.steps, "rows_per_step": rows, "learning_rate": plan.learning_rate,
                "seeds": len(plan.seeds)}  # fmt: skip
    alphas_read = sorted(alpha for alpha in exponents if alpha is not None)
    return {"modes": read, "alphas": alphas_read, "training": training, "micro_batch_rows": micro_batch_rows}


def _load_options(
    policy: str, lora: o.Text, dtype: o.Text, device: str, policy_params: dict[str, Any]
) -> dict[str, Any]:
    """Keyword arguments of `load_policy`. Raises UsageError for what the policy does not take."""
    from lossbench.policies import BUILT_IN
    from lossbench.policies.adapters import parse_lora
    from lossbench.policies.hardware import placement
    from lossbench.policies.prepare import check_policy_params

    check_policy_params(policy, policy_params)
    adapter: dict[str, Any] = {} if lora is None else {"lora": parse_lora(lora)}
    if policy_params:
        adapter["policy_params"] = policy_params
    if policy not in BUILT_IN:
        return {"dtype": dtype or placement(device, "auto").compute, "device": device, **adapter}
    if dtype not in (None, "float32") or device not in ("auto", "cpu"):
        raise UsageError(f"--dtype and --device are for --model: '{policy}' is probed in float32 on the CPU")
    return adapter


def _of_checkpoints(job: "ProbeJob", folder: Path) -> "list[ProbeJob]":
    """The job for each checkpoint of a run, under the run's name."""
    from lossbench.training.checkpoint import run_of_checkpoints, saved_checkpoints

    job = replace(job, policy_seed=None, label=run_of_checkpoints(folder).name)
    return [replace(job, policy=str(path), step=step) for step, path in saved_checkpoints(folder)]


def _print_cost(jobs: "Sequence[ProbeJob]", format: str) -> None:
    """Cost of a probe at the head, by arithmetic. Raises UsageError where it does not fit, or is of no head."""
    from lossbench.probe.cost import cost_of
    from lossbench.probe.head_engine import HEAD

    job = jobs[0]
    if job.built_in or job.params != (HEAD,):
        raise UsageError("--dry-run is for a model of your own at its head: give --model and --params head")
    cost = cost_of(job)
    print_table([{"model": job.name, "pairs": job.settings.pairs * len(jobs), **asdict(cost)}], None, format)
    cost.check()


def _measured(jobs: "Sequence[ProbeJob]", out: Path, workers: int | None, asked: dict[str, Any], say: Say) -> Path:
    """Measure the jobs into the folder `out`, with progress; Ctrl-C exits with 130."""
    from lossbench.probe.measure import check_writable, measure, probe_path

    path = probe_path(out, jobs[0])
    check_writable(path)
    if jobs[0].built_in:
        say(f"policy {jobs[0].policy}: built once and kept, about a minute where it is missing")
    try:
        measure(jobs, path, workers=workers, on_pair=lambda progress: _tell(progress, asked, say))
    except KeyboardInterrupt:
        kept = f"whole pairs are in {path}" if path.exists() else "no pair was finished"
        say(f"interrupted; {kept}: the same command goes on")
        raise Exit(130) from None
    say(f"wrote {path}")
    return path


def _tell(progress: "Progress", asked: dict[str, Any], say: Say) -> None:
    """A line of progress at the first pair, every fifth and the last: time left, and the first mode's drift so far."""
    from lossbench.probe.drift import DriftTable

    done, pairs = progress.done, progress.pairs
    if done != 1 and done % 5 and done != pairs:
        return
    probe = progress.so_far()
    table = DriftTable(probe, asked["micro_batch_rows"])
    drift = table.drift(asked["modes"][0], "incorrect", probe.metrics[0], "row-weight")
    left_s = progress.wall_s / progress.measured * (pairs - done)
    text = f"step {progress.step}: pair {done} of {pairs}, {progress.wall_s:.0f} s"
    text += f", about {left_s:.0f} s left" * (done < pairs)
    if drift.low is not None:
        text += f"; incorrect length under {drift.mode}: {drift.drift:+.3g} [{drift.low:.3g}, {drift.high:.3g}]"
    say(text)
