"""What `lossbench probe` does once its options are read: policies to probe, files to write, tables to print."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.cli._shared import print_table, talk
from lossbench.errors import UsageError

if TYPE_CHECKING:
    from lossbench.analysis.drift import Projections
    from lossbench.loss.modes import Mode
    from lossbench.training.probe_run import ProbeJob

_TABLE = ["mode", "length", "drift", "ci_low", "ci_high", "t", "adam_drift", "adam_t", "raw", "note"]


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
    from lossbench.analysis.drift import read_projections

    modes, alphas = _modes(request.modes), _numbers(request.alphas)
    training = _training_size(request.recipe)
    say: Callable[[str], None] = (lambda text: None) if request.quiet else talk
    if request.projections is not None:
        probes, out = read_projections(request.projections), request.out
    else:
        out = request.out or Path("results") / f"probe-{_file_name(request.policy)}"
        path = measure(request, out, say)
        probes = read_projections(path)
    results = [_analyse(probe, modes, alphas, training, request) for probe in probes]
    if out is not None:
        _write(out, results, say)
    _print(results, request.format, say)


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
    from lossbench.policies import BUILT_IN
    from lossbench.tasks import make_task
    from lossbench.training.probe import ProbeSettings
    from lossbench.training.probe_batch import Sampling
    from lossbench.training.probe_run import ProbeJob

    sampling = Sampling(
        request.completions, request.num_generations, request.max_completion_length, request.temperature, request.seed
    )
    metrics: Any = tuple(item.strip() for item in request.metric.split(",") if item.strip())
    params = tuple(item.strip() for item in (request.params or "").split(",") if item.strip())
    if request.batches < 1:
        raise UsageError(f"--batches is {request.batches}: give 2 or more pairs, for an interval")
    settings = ProbeSettings(sampling, request.batches, metrics, params=params, max_positions=request.max_positions)
    make_task(request.task, {})
    options: dict[str, Any] = {"dtype": request.dtype or _default_dtype(request.device), "device": request.device}
    if request.lora is not None:
        options["lora"] = _lora(request.lora)
    job = ProbeJob(
        request.policy, request.policy_seed, request.task, {}, settings, rollouts=request.rollouts,
        load_options={} if request.policy in BUILT_IN and request.checkpoints is None else options,
    )  # fmt: skip
    if request.checkpoints is None:
        return [job]
    from dataclasses import replace

    label = request.checkpoints.resolve().name
    return [
        replace(job, policy=str(folder), policy_seed=None, label=label, step=step)
        for step, folder in _checkpoint_folders(request.checkpoints)
    ]


def _default_dtype(device: str) -> str:
    import torch

    return "bfloat16" if device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float32"


def _lora(text: str) -> dict[str, int]:
    match = re.fullmatch(r"r=(\d+)(?:,alpha=(\d+))?", text.replace(" ", ""))
    if match is None:
        raise UsageError(f"--lora '{text}': write r=16 or r=16,alpha=32")
    return {"r": int(match[1]), **({"alpha": int(match[2])} if match[2] else {})}


def _checkpoint_folders(root: Path) -> list[tuple[int, Path]]:
    found = [(int(path.name.rsplit("-", 1)[1]), path) for path in root.glob("checkpoint-*") if path.name[11:].isdigit()]
    if not found:
        raise UsageError(f"--checkpoints '{root}': no folder checkpoint-<step> in it")
    return sorted(found)


def measure(request: ProbeRequest, out: Path, say: Callable[[str], None]) -> Path:
    """Run the probe of every policy asked for into one file; returns its path."""
    from lossbench.policies import BUILT_IN
    from lossbench.policies.load import prepare_policy
    from lossbench.store.table_file import TableFile
    from lossbench.training.probe_run import run_job

    jobs = _jobs(request)
    built_in = jobs[0].policy in BUILT_IN
    name = _file_name(request.checkpoints.resolve().name if request.checkpoints else request.policy)
    path = out / "probe" / f"{name}-s{request.policy_seed}.parquet" if built_in else out / "probe" / f"{name}.parquet"
    _check_writable(path.parent)
    if built_in:
        say(f"policy {jobs[0].policy}: built once and kept, about a minute where it is missing")
        prepare_policy(jobs[0].policy, jobs[0].policy_seed)
    workers = request.workers or (_cores() if built_in else 1)
    facts = {"settings": jobs[0].settings.as_dict(), "horizon": request.max_completion_length, "task": request.task,
             "policy_seed": request.policy_seed, "rollouts": request.rollouts and str(request.rollouts)}  # fmt: skip
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


def _cores() -> int:
    import os

    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@dataclass(frozen=True)
class _Result:
    """All that is said of one probed policy, as plain records."""

    policy: str
    step: int
    pairs: int
    completions: int
    lengths: list[dict[str, Any]]
    drifts: list[Any]
    doses: list[Any]
    mechanism: list[dict[str, Any]]
    forecasts: list[dict[str, Any]]


def _analyse(
    probe: "Projections", modes: "list[Mode]", alphas: list[float], training: dict[str, Any], request: ProbeRequest
) -> _Result:
    from lossbench.analysis.dose import dose_response, forecast, length_facts, mechanism
    from lossbench.analysis.drift import DriftTable

    table = DriftTable(probe, request.micro_batch_rows)
    return _Result(
        probe.policy, probe.step, len({window.pair for window in probe.windows}), len(probe.pool("lengths_N")),
        [asdict(row) for row in length_facts(probe)], table.rows(modes),
        [dose_response(table, name, metric, alphas) for name in ("incorrect", "correct") for metric in probe.metrics],
        [asdict(mechanism(probe, mode)) for mode in modes],
        [asdict(forecast(table, mode, **training)) for mode in modes] if "adam" in probe.metrics else [],
    )  # fmt: skip


def _write(out: Path, results: list[_Result], say: Callable[[str], None]) -> None:
    """CSV and JSON of all results, figures of the last policy probed."""
    import pandas as pd

    from lossbench.report.probe_figures import dose_figure, drift_figure
    from lossbench.report.style import look, save

    folder = out / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([_record(result, row) for result in results for row in result.drifts]).to_csv(folder / "drift.csv", index=False)
    (folder / "probe.json").write_text(json.dumps([_plain(result) for result in results], indent=2, allow_nan=False) + "\n")
    last = results[-1]
    metric = last.drifts[0].metric
    with look():
        save(drift_figure(last.drifts, metric), folder, "drift")
        save(dose_figure([dose for dose in last.doses if dose.metric == metric]), folder, "dose_response")
    say(f"wrote {folder}/drift.csv, probe.json, drift.png, dose_response.png (and .svg)")


def _record(result: _Result, row: Any) -> dict[str, Any]:
    return {"policy": result.policy, "step": result.step, **asdict(row)}


def _plain(result: _Result) -> dict[str, Any]:
    return asdict(result)


def _print(results: list[_Result], format: str, say: Callable[[str], None]) -> None:
    """JSON: everything. CSV: every drift. Table and Markdown: the drifts at equal row weight, then the dose-response."""
    if format == "json":
        print(json.dumps([_plain(result) for result in results], indent=2, allow_nan=False))
        return
    if format == "csv":
        print_table([_record(result, row) for result in results for row in result.drifts], None, format)
        return
    for result in results:
        say(_headline(result))
        print_table(_table_rows(result), _TABLE, format)
        print_table(_dose_rows(result), None, format)
        for line in _forecast_lines(result):
            say(line)


def _headline(result: _Result) -> str:
    shares = ", ".join(f"{row['direction']} {row['completions']} (mean {row['length_mean']:.1f} tokens)"
                       for row in result.lengths[:2] if row["completions"])  # fmt: skip
    return f"{result.policy}, step {result.step}: {result.pairs} pairs, {result.completions} completions: {shares}"


def _table_rows(result: _Result) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for drift in (row for row in result.drifts if row.match == "row-weight"):
        row = rows.setdefault((drift.mode, drift.direction), {"mode": drift.mode, "length": drift.direction})
        if drift.metric == "adam":
            row |= {"adam_drift": drift.drift, "adam_t": drift.t}
        else:
            row |= {"drift": drift.drift, "ci_low": drift.low, "ci_high": drift.high, "t": drift.t, "raw": drift.raw}
        row["note"] = drift.note
    return list(rows.values())


def _dose_rows(result: _Result) -> list[dict[str, Any]]:
    rows: dict[float, dict[str, Any]] = {}
    for dose in result.doses:
        if dose.metric != result.doses[0].metric:
            continue
        for point in dose.points:
            row = rows.setdefault(point.alpha, {"alpha": point.alpha})
            row |= {dose.direction: point.drift.drift, f"{dose.direction}_t": point.drift.t,
                    f"{dose.direction}_theory": point.theory}  # fmt: skip
    return list(rows.values())


def _forecast_lines(result: _Result) -> list[str]:
    lines = []
    for row in result.forecasts:
        if row["change_tokens"] is None or not row["d_z"]:
            continue
        lines.append(
            f"{row['mode']}: a run of {row['steps']} steps x {row['rows_per_step']} completions would move incorrect "
            f"length by {row['change_tokens']:+.1f} tokens against seq-mean-token-sum, noise between runs "
            f"{row['noise_tokens']:.1f}; power with {row['seeds']} seeds {row['power']:.2f}"
        )
    return lines
