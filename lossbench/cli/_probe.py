"""What `lossbench probe` does once its options are read: policies to probe, files to write, tables to print."""

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.cli._probe_output import Result, print_results, write
from lossbench.cli._shared import talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.loss.modes import Mode
    from lossbench.probe.drift import Projections
    from lossbench.probe.jobs import ProbeJob


@dataclass(frozen=True)
class ProbeRequest:
    """The options of the command, as given."""

    modes: str = ""
    alphas: str = ""
    micro_batch_rows: int | None = None
    recipe: str = "dr-grpo"
    policy: str = "selfcheck"
    policy_seed: int = 0
    checkpoints: Path | None = None
    rollouts: Path | None = None
    projections: Path | None = None
    task: str = "selfcheck"
    task_params: dict[str, Any] = field(default_factory=dict)
    batches: int = 40
    completions: int = 128
    num_generations: int = 8
    max_completion_length: int = 128
    temperature: float = 1.0
    seed: int = 0
    params: str | None = None
    metric: str = "plain,adam"
    lora: str | None = None
    workers: int | None = None
    max_positions: int | None = None
    dtype: str | None = None
    device: str = "auto"
    out: Path | None = None
    format: str = "table"
    quiet: bool = False


def run(request: ProbeRequest) -> None:
    """Probe, write, print. Everything that can be wrong with the options is found before a model loads."""
    from lossbench.probe.drift import read_projections

    modes, alphas = _modes(request.modes), _numbers(request.alphas)
    training = _training_size(request.recipe)
    say: Callable[[str], None] = (lambda text: None) if request.quiet else talk
    if request.projections is not None:
        probes, out = read_projections(request.projections), request.out
    else:
        out = request.out or Path("results") / f"probe-{_file_name(_subject(request))}"
        path = measure(request, out, say)
        probes = read_projections(path)
    results = [_analyse(probe, modes, alphas, training, request) for probe in probes]
    if out is not None:
        write(out, results, say)
    print_results(results, request.format, say)


def _modes(text: str) -> "list[Mode]":
    from lossbench.loss.modes import parse_modes

    try:
        return parse_modes(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _numbers(text: str) -> list[float]:
    from lossbench.loss.aggregations import parse_aggregation

    try:
        bound = [parse_aggregation(f"length-power:{item.strip()}") for item in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--alphas '{text}': not a list of numbers; valid: 0,0.5,1,2") from error
    return sorted({float(item.alpha) for item in bound if item.alpha is not None})


def _training_size(recipe: str) -> dict[str, Any]:
    from lossbench.sweep.recipe import load_recipe

    plan = load_recipe(recipe)
    rows = plan.per_device_train_batch_size * plan.gradient_accumulation_steps
    return {
        "steps": plan.steps, "rows_per_step": rows, "learning_rate": plan.learning_rate, "seeds": len(plan.seeds),
    }  # fmt: skip


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "policy"


def _jobs(request: ProbeRequest) -> "list[ProbeJob]":
    from lossbench.probe.batches import Sampling
    from lossbench.probe.jobs import ProbeJob
    from lossbench.probe.prober import ProbeSettings
    from lossbench.probe.recorded import recorded_batches
    from lossbench.tasks import make_task
    from lossbench.training.checkpoint import saved_checkpoints

    sampling = Sampling(
        request.completions, request.num_generations, request.max_completion_length, request.temperature, request.seed
    )
    metrics: Any = tuple(item.strip() for item in request.metric.split(",") if item.strip())
    params = tuple(item.strip() for item in (request.params or "").split(",") if item.strip())
    if request.batches < 1:
        raise UsageError(f"--batches is {request.batches}: give 2 or more pairs, for an interval")
    settings = ProbeSettings(sampling, request.batches, metrics, params=params, max_positions=request.max_positions)
    make_task(request.task, request.task_params)
    job = ProbeJob(
        request.policy, request.policy_seed, request.task, request.task_params, settings, rollouts=request.rollouts,
        load_options=_load_options(request),
    )  # fmt: skip
    if request.rollouts is not None:
        recorded_batches(request.rollouts, sampling, request.batches)
    if request.checkpoints is None:
        return [job]
    return [
        replace(job, policy=str(folder), policy_seed=None, label=_subject(request), step=step)
        for step, folder in saved_checkpoints(request.checkpoints)
    ]


def _subject(request: ProbeRequest) -> str:
    """What is probed, by name: a policy, or the run of the checkpoints."""
    from lossbench.training.checkpoint import run_of_checkpoints

    return request.policy if request.checkpoints is None else run_of_checkpoints(request.checkpoints).name


def _load_options(request: ProbeRequest) -> dict[str, Any]:
    """Those of `load_policy`. Raises UsageError for what a built-in policy does not take."""
    from lossbench.policies import BUILT_IN
    from lossbench.policies.adapters import parse_lora
    from lossbench.policies.hardware import placement

    lora = {} if request.lora is None else {"lora": parse_lora(request.lora)}
    if request.policy in BUILT_IN and request.checkpoints is None:
        if request.dtype not in (None, "float32") or request.device not in ("auto", "cpu"):
            raise UsageError(
                f"--dtype and --device are for --model: '{request.policy}' is probed in float32 on the CPU"
            )
        return lora
    dtype = request.dtype or placement(request.device, "auto").compute
    return {"dtype": dtype, "device": request.device, **lora}


def file_of(request: ProbeRequest, out: Path) -> Path:
    """Where the projections go: in the folder `probe` of `out`, by the policy's name and warm start."""
    from lossbench.policies import BUILT_IN

    warm_start = f"-s{request.policy_seed}" if request.policy in BUILT_IN and request.checkpoints is None else ""
    return out / "probe" / f"{_file_name(_subject(request))}{warm_start}.parquet"


def measure(request: ProbeRequest, out: Path, say: Callable[[str], None]) -> Path:
    """Run the probe of every policy asked for into one file; returns its path."""
    from lossbench.policies import BUILT_IN
    from lossbench.policies.prepare import built_in_policy, prepare_policies
    from lossbench.probe.jobs import run_job
    from lossbench.processes import cores
    from lossbench.store.table_file import TableFile

    jobs, path = _jobs(request), file_of(request, out)
    built_in = jobs[0].policy in BUILT_IN
    _check_writable(path.parent)
    if built_in:
        say(f"policy {jobs[0].policy}: built once and kept, about a minute where it is missing")
        prepare_policies([built_in_policy(jobs[0].policy, jobs[0].policy_seed)], workers=1)
    workers = request.workers or (cores() if built_in else 1)
    facts = {
        "settings": jobs[0].settings.as_dict(), "horizon": request.max_completion_length, "task": request.task,
        "task_params": request.task_params, "policy_seed": jobs[0].policy_seed,
        "rollouts": request.rollouts and str(request.rollouts),
    }  # fmt: skip
    began = time.perf_counter()
    with TableFile(path, "probe", facts) as file:
        for job in jobs:
            for done, columns in enumerate(run_job(job, workers), 1):
                file.append(columns)
                if done == 1 or done % 5 == 0 or done == job.settings.pairs:
                    say(f"step {job.step}: pair {done} of {job.settings.pairs}, {time.perf_counter() - began:.0f} s")
    say(f"wrote {path}")
    return path


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: cannot write to '{folder}' ({error.strerror})") from error


def _analyse(
    probe: "Projections", modes: "list[Mode]", alphas: list[float], training: dict[str, Any], request: ProbeRequest
) -> Result:
    from lossbench.probe.dose_response import dose_response, forecast, length_facts, mechanism
    from lossbench.probe.drift import DriftTable

    table = DriftTable(probe, request.micro_batch_rows)
    return Result(
        probe.policy, probe.step, len({window.pair for window in probe.windows}), len(probe.pool("lengths_N")),
        [asdict(row) for row in length_facts(probe)], table.rows(modes),
        [dose_response(table, name, metric, alphas) for name in ("incorrect", "correct") for metric in probe.metrics],
        [asdict(mechanism(probe, mode, request.micro_batch_rows)) for mode in modes],
        [asdict(forecast(table, mode, **training)) for mode in modes] if "adam" in probe.metrics else [],
    )  # fmt: skip
