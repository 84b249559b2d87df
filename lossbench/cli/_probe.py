"""`lossbench probe` between its options and its tables: reading the options, progress, files."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lossbench.cli._probe_output import print_findings, write_findings
from lossbench.cli._shared import print_table
from lossbench.errors import UsageError
from lossbench.probe.measure import Progress, check_writable, file_name, measure, probe_path

if TYPE_CHECKING:
    from lossbench.loss.modes import Mode
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.projections import Projections

__all__ = ["file_name"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """Request for the projections: modes, exponents, the run to forecast, rows per micro-batch."""

    modes: "list[Mode]"
    alphas: list[float]
    training: dict[str, Any]
    cap: int
    micro_batch_rows: int | None = None


def question(modes: str, alphas: str, recipe: str, micro_batch_rows: int | None) -> Question:
    """The options that need no model. Raises UsageError for what cannot be read."""
    from lossbench.loss.modes import dose_mode, parse_modes
    from lossbench.sweep.recipe import load_recipe

    try:
        read = parse_modes(modes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        bound = [dose_mode(float(item)).aggregation for item in alphas.split(",")]
    except ValueError as error:
        raise UsageError(f"--alphas '{alphas}': not a list of numbers; valid: 0,0.5,1,2") from error
    plan = load_recipe(recipe)
    rows = plan.per_device_train_batch_size * plan.gradient_accumulation_steps
    training = {"steps": plan.steps, "rows_per_step": rows, "learning_rate": plan.learning_rate,
                "seeds": len(plan.seeds)}  # fmt: skip
    return Question(
        read,
        sorted({item.alpha for item in bound if item.alpha is not None}),
        training,
        plan.max_completion_length,
        micro_batch_rows,
    )


def items(text: str) -> list[Any]:
    """The items of a comma list."""
    return [item.strip() for item in text.split(",") if item.strip()]


def of_checkpoints(job: "ProbeJob", folder: Path) -> "list[ProbeJob]":
    """The job for each checkpoint of a run, under the run's name."""
    from lossbench.training.checkpoint import run_of_checkpoints, saved_checkpoints

    label = run_of_checkpoints(folder).name
    return [
        replace(job, policy=str(path), policy_seed=None, label=label, step=step)
        for step, path in saved_checkpoints(folder)
    ]


def label(policy: str, params: dict[str, Any]) -> str | None:
    """A policy's name with its own parameters, which make it another; None where it has none."""
    return " ".join([policy, *(f"{name}={value}" for name, value in sorted(params.items()))]) if params else None


def load_options(
    policy: str, lora: str | None, dtype: str | None, device: str, policy_params: dict[str, Any]
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


def measured(jobs: "Sequence[ProbeJob]", out: Path, workers: int | None, asked: Question, say: Say) -> Path:
    """Measure the jobs into the folder `out`, with progress; Ctrl-C exits with 130."""
    path = probe_path(out, jobs[0])
    check_writable(path)
    if jobs[0].built_in:
        say(f"policy {jobs[0].policy}: built once and kept, about a minute where it is missing")
    try:
        measure(jobs, path, workers=workers, on_pair=lambda progress: _tell(progress, asked, say))
    except KeyboardInterrupt:
        say(f"interrupted; {'whole pairs are in ' + str(path) if path.exists() else 'no pair was finished'}: "
            "the same command goes on")  # fmt: skip
        raise typer.Exit(130) from None
    say(f"wrote {path}")
    return path


def _tell(progress: Progress, asked: Question, say: Say) -> None:
    """A line of progress at the first pair, every fifth and the last: time left, and the first mode's drift so far."""
    done, pairs = progress.done, progress.pairs
    if done != 1 and done % 5 and done != pairs:
        return
    from lossbench.probe.drift import DriftTable

    probe = progress.so_far()
    drift = DriftTable(probe, asked.micro_batch_rows).drift(
        asked.modes[0], "incorrect", probe.metrics[0], "row-weight"
    )  # fmt: skip
    left_s = progress.wall_s / progress.measured * (pairs - done)
    left = f", about {left_s:.0f} s left" if done < pairs else ""
    so_far = "" if drift.low is None else (
        f"; incorrect length under {drift.mode}: {drift.drift:+.3g} [{drift.low:.3g}, {drift.high:.3g}]"
    )  # fmt: skip
    say(f"step {progress.step}: pair {done} of {pairs}, {progress.wall_s:.0f} s{left}{so_far}")


def print_cost(jobs: "Sequence[ProbeJob]", format: str) -> None:
    """Cost of a probe at the head, by arithmetic. Raises UsageError where it does not fit, or is of no head."""
    from lossbench.probe.cost import cost_of
    from lossbench.probe.head_engine import HEAD

    job = jobs[0]
    if job.built_in or job.params != (HEAD,):
        raise UsageError("--dry-run is for a model of your own at its head: give --model and --params head")
    cost = cost_of(job)
    print_table([{"model": job.name, "pairs": job.settings.pairs * len(jobs), **asdict(cost)}], None, format)
    cost.check()


def answer(
    probes: "Sequence[Projections]", asked: Question, out: Path | None, format: str, say: Say, detail: bool = False
) -> None:  # fmt: skip
    """Analyse, write into `out` where there is one, and print."""
    from lossbench.probe.findings import findings

    found = [findings(probe, asked.modes, asked.alphas, asked.training, asked.micro_batch_rows) for probe in probes]
    if out is not None:
        write_findings(out, found, say)
    print_findings(found, format, say, detail)
