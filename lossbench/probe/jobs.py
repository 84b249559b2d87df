"""A probe from a policy's name to a parquet file, on one process or several."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.probe.batches import BatchSource, PolicySource
from lossbench.probe.prober import Prober, ProbeSettings
from lossbench.processes import main_hidden


@dataclass(frozen=True)
class ProbeJob:
    """Everything that decides a probe of one frozen policy, as plain data that can go to another process.

    `policy` is a built-in name, a model reference or a checkpoint's folder; `label` is what the table calls it; `step`
    its training step; `load_options` are those of `load_policy`. With `rollouts` the batches come from that file
    (`lossbench.probe.recorded`) instead of from the policy.
    """

    policy: str
    policy_seed: int | None = 0
    task: str = "selfcheck"
    task_params: dict[str, Any] = field(default_factory=dict)
    settings: ProbeSettings = field(default_factory=ProbeSettings)
    label: str | None = None
    step: int = 0
    rollouts: Path | None = None
    load_options: dict[str, Any] = field(default_factory=dict)


def prepare(job: ProbeJob) -> tuple[Prober, str]:
    """The job's prober, and the policy's label."""
    from lossbench.policies.load import load_policy

    policy = load_policy(job.policy, job.policy_seed, **job.load_options)
    policy.model.eval()
    source = _source(job, policy.model, policy.tokenizer)
    return Prober(policy.model, source, job.settings), job.label or job.policy


def _source(job: ProbeJob, model: Any, tokenizer: Any) -> BatchSource:
    if job.rollouts is not None:
        from lossbench.probe.recorded import RecordedSource

        return RecordedSource(job.rollouts, model, tokenizer, job.settings.sampling)
    from lossbench.policies.chat import as_read_by
    from lossbench.tasks import make_task

    task = as_read_by(make_task(job.task, job.task_params), tokenizer, job.policy)
    return PolicySource(model, tokenizer, task, job.settings.sampling)


def run_job(job: ProbeJob, workers: int = 1) -> Iterator[dict[str, list[Any]]]:
    """Columns of the `probe` table, pair after pair in order; the same numbers for any count of workers.

    Raises UsageError for whatever the user can mend.
    """
    workers = min(workers, job.settings.pairs)
    if workers <= 1:
        prober, label = prepare(job)
        for number in range(job.settings.pairs):
            yield _labelled(prober.pair(number, job.step), label)
        return
    # Threads of torch do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(job,)) as pool:
        try:
            with main_hidden():
                parts = pool.map(_one_pair, range(job.settings.pairs))
            yield from parts
        except BrokenProcessPool as error:
            raise UsageError(
                f"a worker of the probe died ({error}): too little memory for {workers}? give --workers 1"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _labelled(columns: dict[str, list[Any]], label: str) -> dict[str, list[Any]]:
    return {"policy": [label] * len(columns["pair"]), **columns}


_worker: dict[str, Any] = {}


def _begin(job: ProbeJob) -> None:
    import torch

    torch.set_num_threads(1)
    _worker["job"] = job


def _one_pair(number: int) -> dict[str, list[Any]]:
    # Prepared here and not in `_begin`, whose exceptions would only reach the caller as a broken pool.
    if "prober" not in _worker:
        _worker["prober"], _worker["label"] = prepare(_worker["job"])
    return _labelled(_worker["prober"].pair(number, _worker["job"].step), _worker["label"])
