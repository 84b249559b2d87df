"""Cost of a plan: minutes, tokens and memory, from steps measured on this machine where there are any."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.policies.hub import first_use, load_config, resolve
from lossbench.policies.load import is_built_in
from lossbench.policies.warmstart import cache_dir
from lossbench.processes import cores
from lossbench.store.provenance import machine
from lossbench.store.read import read_json
from lossbench.store.write import write_json
from lossbench.training.hashed_fields import hash_of
from lossbench.training.run_spec import RunSpec

BUILT_IN_PARAMETERS, _BUILT_IN_VOCABULARY = 134_000, 20
_FLOPS_PER_S = {"cpu": 2e10, "cuda": 1e14}  # of one core, of one GPU: what training reaches, within a factor of three
_DECODE_STEP_S = 2e-3  # of one token of a batch, whatever the model
_TRAINED_BYTES, _FROZEN_BYTES = 16, 4  # per parameter: float32 weights, gradients and two moments; weights alone


def _timings_of(spec: RunSpec) -> Path:
    """The file that keeps how long a step of such runs takes here."""
    names = (
        "task", "task_params", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps",
        "steps_per_generation", "num_iterations", "max_completion_length", "sampler", "dtype", "device", "lora",
    )  # fmt: skip
    settings = spec.settings.model_dump(mode="json")
    kind = {"policy": spec.policy, "processes": spec.processes, **{name: settings[name] for name in names}}
    return cache_dir() / "timings" / f"{hash_of(kind | machine())[:12]}.json"


def remember_timings(folder: Path, runs: Sequence[RunSpec]) -> None:
    """Keep the median time and the mean tokens of the steps of completed runs, for the next plan of their kind."""
    import numpy as np
    import pyarrow.parquet as pq

    for path, spec in {_timings_of(spec): spec for spec in runs}.items():
        table = folder / "runs" / spec.run_id / "steps.parquet"
        with suppress(OSError):  # a run that failed; a cache that cannot be written
            steps = pq.read_table(table, columns=["wall_s", "tokens"])
            wall_s, tokens = (steps[name].drop_null().to_numpy() for name in ("wall_s", "tokens"))
            if len(wall_s) and len(tokens):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {"step_s": float(np.median(wall_s)), "tokens": float(tokens.mean())})


def cost_line(runs: Sequence[RunSpec], jobs: int | None, device: str) -> str | None:
    """Minutes, tokens and memory of the plan in one line; None where a model, whose size they need, is not here yet."""
    seconds, tokens, memory, measured = 0.0, 0.0, 0.0, True
    for spec in runs:
        size = _size(spec.policy)
        if size is None:
            return None
        step_s, step_tokens, known = _step(spec, size[0], device)
        seconds, tokens = seconds + step_s * spec.settings.steps, tokens + step_tokens * spec.settings.steps
        memory, measured = max(memory, _memory_bytes(spec, *size)), measured and known
    at_once = min(jobs or (cores() if device == "cpu" else 1), max(len(runs), 1))
    minutes = f"{max(math.ceil(seconds / at_once / 60), 1):,} minutes at {at_once} runs at once"
    source = "from steps measured on this machine" if measured else "an estimate: nothing like it was measured here"
    about = "" if measured else "at most "
    gib = max(memory / 2**30, 0.1)
    return f"about {minutes}, {about}{tokens / 1e6:.3g} million tokens, {gib:.1f} GiB a run ({source})"


def _step(spec: RunSpec, parameters: float, device: str) -> tuple[float, float, bool]:
    """Seconds and tokens of an optimizer step, and whether they were measured; else every length is the cap."""
    with suppress(UsageError, KeyError, TypeError):
        kept = read_json(_timings_of(spec))
        return float(kept["step_s"]), float(kept["tokens"] or 0), True
    settings = spec.settings
    rows = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    tokens = rows * settings.max_completion_length
    flops = 8 * parameters * tokens  # 2 to sample, 6 to train
    return settings.max_completion_length * _DECODE_STEP_S + flops / _FLOPS_PER_S.get(device, 1e14), tokens, False


def _memory_bytes(spec: RunSpec, parameters: float, vocabulary: int) -> float:
    settings = spec.settings
    logits = settings.per_device_train_batch_size / spec.processes * settings.max_completion_length * vocabulary * 4
    return parameters * (_FROZEN_BYTES if settings.lora else _TRAINED_BYTES) + 2 * logits


def _size(policy: str) -> tuple[float, int] | None:
    """Parameters and vocabulary of a policy, from its files; None where they would have to be fetched or converted."""
    if is_built_in(policy):
        return BUILT_IN_PARAMETERS, _BUILT_IN_VOCABULARY
    if first_use(policy):
        return None
    config = load_config(policy)
    half = str(getattr(config, "dtype", None)).rpartition(".")[2] in ("bfloat16", "float16")
    held = sum(path.stat().st_size for path in resolve(policy).folder.glob("*.safetensors"))
    return held / (2 if half else 4), int(getattr(config.get_text_config(), "vocab_size", 0))
