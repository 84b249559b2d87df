"""Runs on a Ray cluster: each is a task with CPU and GPU requirements, which Ray repeats where its node is lost.

No file system is shared: the policy and, where there is one, the checkpoint travel with the task; steps come back as
they are made, and the run's folder when the task is done.
"""

import functools
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.extras import require
from lossbench.policies import BUILT_IN
from lossbench.policies.prepare import built_in_policy
from lossbench.policies.warmstart import policy_path
from lossbench.store.write import write_bytes
from lossbench.sweep.executors.base import Ended, Progress, Resources
from lossbench.sweep.executors.packed import pack, replace_folder, run_packed
from lossbench.sweep.executors.remote import RemoteExecutor
from lossbench.sweep.executors.slots import cluster_slots
from lossbench.training.checkpoint import newest_checkpoint
from lossbench.training.run_spec import RunSpec

_RETRIES = 3  # per run, where a node or worker is lost; a run that fails by itself is not repeated
_REACH_TIMEOUT_S = 5.0


def connect(wanted: Resources) -> "RayExecutor":
    """An executor on the cluster at `wanted.address`, or on a local one started for it.

    Raises UsageError where Ray is not installed, the address cannot be reached, or no node could hold a run.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # a busy machine is no reason to give up
    require("--executor ray", "ray", "ray")
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if wanted.address is None:
        options |= {"num_cpus": wanted.jobs and wanted.jobs * wanted.processes, "include_dashboard": False}
    else:
        _reach(wanted.address)
    try:
        ray.init(wanted.address or "local", **options)
    except Exception as error:  # Ray raises bare exceptions here
        what = f"--address '{wanted.address}': no Ray cluster" if wanted.address else "Ray did not start"
        raise UsageError(f"{what} ({one_line(error)})") from None
    try:
        return RayExecutor(wanted)
    except UsageError:
        ray.shutdown()
        raise


def _reach(address: str) -> None:
    """Ray takes a minute to give up on an address; a plain connection tells at once. Raises UsageError."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if address == "auto" or not host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"--address '{address}': cannot be reached ({error})") from None


class RayExecutor(RemoteExecutor):
    """Runs as Ray tasks. Needs a connected Ray; `stop` disconnects."""

    def __init__(self, wanted: Resources) -> None:
        super().__init__()
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.slots, self._gpus = cluster_slots(wanted, [(int(n.get("CPU", 0)), n.get("GPU", 0.0)) for n in nodes])
        # On the driver's node: what it holds must not be lost with another node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._news = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._task: Any = ray.remote(run_packed).options(
            num_cpus=wanted.processes, num_gpus=self._gpus, max_retries=_RETRIES, retry_exceptions=False
        )
        self._put = functools.cache(lambda folder: ray.put((folder.name, pack(folder))))  # sent once for all runs
        self._tasks: dict[Any, str] = {}
        self._ray: Any = ray

    def _submit(self, spec: RunSpec, run_dir: Path) -> None:
        before, policy = pack(run_dir) if newest_checkpoint(run_dir, spec) else None, None
        if spec.policy in BUILT_IN:
            policy = self._put(policy_path(built_in_policy(spec.policy, spec.policy_seed, spec.settings.policy_params)))
        task = self._task.remote(spec.model_dump_json(), before, policy, self._gpus > 0, self._news.put)
        self._tasks[task] = spec.run_id

    def _poll(self, timeout_s: float) -> Iterable[Progress | Ended]:
        ready, _ = self._ray.wait(list(self._tasks), timeout=timeout_s) if self._tasks else ([], [])
        for run_id, step, files in self._news.get_nowait_batch(self._news.qsize()):
            for name, data in files.items() if run_id in self._going else ():
                path = self._going[run_id] / name
                path.parent.mkdir(exist_ok=True)
                write_bytes(path, data)
            if not step:
                yield Progress(run_id, 0)
        for task in ready:
            run_id = self._tasks.pop(task)
            try:
                reason, folder = self._ray.get(task)
                replace_folder(self._going[run_id], folder)
            except self._ray.exceptions.RayError as error:
                reason = f"{type(error).__name__}: {one_line(error)}"
            yield Ended(run_id, reason)

    def _cancel(self) -> None:
        if self._ray.is_initialized():
            for task in self._tasks:
                self._ray.cancel(task, force=True)
            self._ray.shutdown()
