"""Runs on a Ray cluster: each is a task with CPU and GPU requirements, which Ray repeats where its node is lost.

No file system is shared: the policy and, where there is one, the checkpoint travel with the task; the run's folder
comes back as bytes when the task is done. Within a task the run has a process of its own, as on one machine.
"""

import io
import os
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.locks import exclusive
from lossbench.policies import BUILT_IN
from lossbench.policies.prepare import built_in_policy
from lossbench.policies.warmstart import cache_dir, policy_path
from lossbench.store.read import RUN_FILE
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended, Progress, Resources
from lossbench.sweep.executors.local import LocalExecutor
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
    try:
        import ray
    except ImportError:
        raise UsageError("--executor ray needs the extra 'ray': pip install 'lossbench[ray]'") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if wanted.address is None:
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # a busy machine is no reason to give up
        cpus = wanted.jobs * wanted.processes if wanted.jobs else None
        options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    else:
        _reach(wanted.address)
        options |= {"address": wanted.address}
    try:
        ray.init(**options)
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


class RayExecutor:
    """Runs as Ray tasks. Needs a connected Ray; `stop` disconnects."""

    def __init__(self, wanted: Resources) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._cpus = wanted.processes
        self._gpus = _gpus_per_run(wanted, [node.get("GPU", 0.0) for node in _nodes(ray)])
        room = sum(_room(node, self._cpus, self._gpus) for node in _nodes(ray))
        if not room:
            raise UsageError(f"no node of the cluster has {self._cpus} CPUs and {self._gpus:g} GPUs for a run")
        self.slots = wanted.jobs or room
        # On the driver's node: what it holds must not be lost with another node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox: Any = ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self._task: Any = ray.remote(_run).options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_retries=_RETRIES, retry_exceptions=False
        )
        self._policies: dict[str, Any] = {}
        self._going: dict[Any, tuple[str, Path]] = {}

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Submit the run as a task."""
        run_dir.mkdir(parents=True, exist_ok=True)
        before = pack(run_dir) if newest_checkpoint(run_dir, spec) else None
        begun = {"spec": spec.model_dump(mode="json"), "status": "running", "steps_planned": spec.settings.steps}
        write_json(run_dir / RUN_FILE, begun)  # for who looks meanwhile; the run's own comes back with it
        task = self._task.remote(spec.model_dump_json(), before, self._policy(spec), self._mailbox, self._gpus > 0)
        self._going[task] = (spec.run_id, run_dir)

    def _policy(self, spec: RunSpec) -> Any:
        """A reference to the built-in policy's files, sent once for all runs; None for a model reference."""
        if spec.policy not in BUILT_IN:
            return None
        folder = policy_path(built_in_policy(spec.policy, spec.policy_seed))
        if folder.name not in self._policies:
            self._policies[folder.name] = self._ray.put((folder.name, pack(folder)))
        return self._policies[folder.name]

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Progress and ends since the last call."""
        if not self._going:
            return
        ready, _ = self._ray.wait(list(self._going), timeout=timeout_s)
        for step in self._ray.get(self._mailbox.drain.remote()):
            yield Progress(*step)
        for task in ready:
            run_id, run_dir = self._going.pop(task)
            yield Ended(run_id, self._settle(task, run_dir))

    def _settle(self, task: Any, run_dir: Path) -> str | None:
        """Bring the finished task's folder home; the reason where the run failed."""
        from ray.exceptions import RayError

        try:
            reason, folder = self._ray.get(task)
        except RayError as error:
            return f"{type(error).__name__}: {one_line(error)}"
        replace_folder(run_dir, folder)
        return reason

    def stop(self) -> None:
        """Cancel what is going and leave the cluster; a local one ends."""
        if not self._ray.is_initialized():
            return
        for task in self._going:
            self._ray.cancel(task, force=True)
        self._going.clear()
        self._ray.shutdown()


def _nodes(ray: Any) -> list[dict[str, float]]:
    """The resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _gpus_per_run(wanted: Resources, gpus_of_nodes: list[float]) -> float:
    """GPUs of each run: as asked for; else one per process where the cluster has any. Raises UsageError."""
    most = max(gpus_of_nodes, default=0.0)
    if wanted.gpus_per_run is None:
        if wanted.device == "cuda" and not most:
            raise UsageError("device = cuda: no node of the cluster has a GPU")
        return float(wanted.processes) if most and wanted.device != "cpu" else 0.0
    if wanted.gpus_per_run > most:
        raise UsageError(f"--gpus-per-run {wanted.gpus_per_run:g}: the largest node of the cluster has {most:g} GPUs")
    return wanted.gpus_per_run


def _room(node: dict[str, float], cpus: int, gpus: float) -> int:
    """Runs that fit on a node at once."""
    by_cpu = int(node.get("CPU", 0) // cpus)
    return min(by_cpu, int(node.get("GPU", 0) / gpus + 1e-9)) if gpus else by_cpu


class _Mailbox:
    """An actor that keeps the steps that runs told of until the driver fetches them."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, int, float | None, float | None]] = []

    def put(self, *step: Any) -> None:
        self._steps.append(step)

    def drain(self) -> list[tuple[str, int, float | None, float | None]]:
        steps, self._steps = self._steps, []
        return steps


def _run(
    spec_json: str, before: bytes | None, policy: tuple[str, bytes] | None, mailbox: Any, on_gpu: bool
) -> tuple[str | None, bytes]:
    """The task: make the run in a folder of this node; returns the reason where it failed, and the folder's bytes."""
    spec = RunSpec.model_validate_json(spec_json)
    if policy:
        _install(*policy)
    gpus = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if on_gpu else ()
    with tempfile.TemporaryDirectory(prefix="lossbench-") as root:
        run_dir = Path(root) / spec.run_id
        if before:
            replace_folder(run_dir, before)
        executor = LocalExecutor([gpus])
        try:
            executor.start(spec, run_dir)
            while True:
                for event in executor.events(timeout_s=60):
                    if isinstance(event, Ended):
                        return event.reason, pack(run_dir)
                    mailbox.put.remote(event.run_id, event.step, event.reward_mean, event.length_mean)
        finally:
            executor.stop()


def _install(name: str, files: bytes) -> None:
    """Put a built-in policy into this node's cache, unless it is there."""
    folder = cache_dir() / "policies" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_suffix(".lock")):
        if not folder.is_dir():
            replace_folder(folder, files)


def pack(folder: Path) -> bytes:
    """A folder's files as the bytes of a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def replace_folder(folder: Path, packed: bytes) -> None:
    """Make `folder` what `pack` gave: unpacked beside it, then renamed, so that it is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(incoming, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
