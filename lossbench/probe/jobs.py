"""Jobs: a probe of one frozen policy as plain data, run pair by pair on one process or several."""

import hashlib
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.policies import BUILT_IN
from lossbench.policies.adapters import ADAPTER_FILE
from lossbench.probe.batches import BatchSource, PolicySource
from lossbench.probe.head_engine import HEAD
from lossbench.probe.prober import ALL, Prober, ProbeSettings
from lossbench.processes import cores, main_hidden


@dataclass(frozen=True)
class ProbeJob:
    """Everything that decides a probe of one frozen policy, as plain data that can go to another process.

    `policy` is a built-in name, a model reference or a checkpoint's folder; `label` is what the table calls it; `step`
    its training step; `load_options` are those of `load_policy`. With `rollouts` the batches come from that file or
    folder (`lossbench.probe.recorded`), whose columns `columns` renames, instead of from the policy.
    """

    policy: str = "selfcheck"
    policy_seed: int | None = 0
    task: str = "selfcheck"
    task_params: dict[str, Any] = field(default_factory=dict)
    settings: ProbeSettings = field(default_factory=ProbeSettings)
    label: str | None = None
    step: int = 0
    rollouts: Path | None = None
    columns: dict[str, str] = field(default_factory=dict)
    load_options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the policy in the table; parameters of its own, which make it another policy, are part of it."""
        params = sorted(self.load_options.get("policy_params", {}).items())
        return self.label or " ".join([self.policy, *(f"{key}={value}" for key, value in params)])

    @property
    def built_in(self) -> bool:
        """Whether lossbench makes the policy itself."""
        return self.policy in BUILT_IN

    @property
    def params(self) -> tuple[str, ...]:
        """The parameters to differentiate by: those asked for; else all of a built-in policy and of an adapter, and of
        any other model the head."""
        adapter = "lora" in self.load_options or (Path(self.policy) / ADAPTER_FILE).is_file()
        return self.settings.params or ((ALL,) if self.built_in or adapter else (HEAD,))

    def own_settings(self) -> ProbeSettings:
        """The settings with their parameters, and a seed of the policy's own: no two policies share prompts and
        draws."""  # fmt: skip
        seed = draw_seed(self.settings.sampling.seed, self.name, self.policy_seed)
        return replace(self.settings, params=self.params, sampling=replace(self.settings.sampling, seed=seed))


def draw_seed(seed: int, policy: str, policy_seed: int | None) -> int:
    """The seed of a policy's prompts, completions and random directions, below 2**63."""
    text = f"{seed} {policy} {policy_seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def prepare(job: ProbeJob) -> Prober:
    """The job's prober."""
    from lossbench.policies.load import load_policy

    policy = load_policy(job.policy, job.policy_seed, **job.load_options)
    policy.model.eval()
    return Prober(policy.model, _source(job, policy.model, policy.tokenizer), job.own_settings())


def _source(job: ProbeJob, model: Any, tokenizer: Any) -> BatchSource:
    if job.rollouts is not None:
        from lossbench.probe.recorded import RecordedSource

        return RecordedSource(job.rollouts, model, tokenizer, job.settings.sampling, job.columns)
    from lossbench.policies.chat import as_read_by
    from lossbench.tasks import make_task

    task = as_read_by(make_task(job.task, job.task_params), tokenizer, job.policy)
    return PolicySource(model, tokenizer, task, job.own_settings().sampling)


def run_job(
    job: ProbeJob, workers: int = 1, numbers: Sequence[int] | None = None
) -> Iterator[dict[str, list[Any]]]:  # fmt: skip
    """Columns of the `probe` table for each of the pairs `numbers` (default: all), in their order.

    The numbers do not depend on the count of workers. Raises UsageError for whatever the user can fix.
    """
    numbers = range(job.settings.pairs) if numbers is None else numbers
    workers = min(workers, len(numbers))
    threads = 1 if job.built_in else max(1, cores() // max(1, workers))
    if workers <= 1:
        with torch_threads(threads):
            prober = prepare(job) if numbers else None
            for number in numbers:
                yield _labelled(prober, job, number)
        return
    # Threads of torch do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(job, threads)) as pool:
        try:
            with main_hidden():
                parts = pool.map(_one_pair, numbers)
            yield from parts
        except BrokenProcessPool as error:
            raise UsageError(
                f"a worker of the probe died ({error}): too little memory for {workers}? give --workers 1"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def torch_threads(most: int) -> Iterator[None]:
    """At most so many threads of torch: more threads than free cores wait for each other at every operation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(before, most))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _labelled(prober: Any, job: ProbeJob, number: int) -> dict[str, list[Any]]:
    columns = prober.pair(number, job.step)
    return {"policy": [job.name] * len(columns["pair"]), **columns}


_worker: dict[str, Any] = {}


def _begin(job: ProbeJob, threads: int) -> None:
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that collects the pairs ends its workers
    torch.set_num_threads(threads)
    _worker["job"] = job


def _one_pair(number: int) -> dict[str, list[Any]]:
    # Prepared here and not in `_begin`, whose exceptions would only reach the caller as a broken pool.
    if "prober" not in _worker:
        _worker["prober"] = prepare(_worker["job"])
    return _labelled(_worker["prober"], _worker["job"], number)
