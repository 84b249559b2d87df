"""Slots: the number of runs at once, and the GPUs of each."""

import os
from collections.abc import Sequence

from lossbench.errors import UsageError
from lossbench.policies.hardware import may_have_gpu
from lossbench.processes import cores
from lossbench.sweep.executors.base import Resources


def local_slots(wanted: Resources) -> list[tuple[str, ...]]:
    """This machine's slots: the GPUs that the run in each slot may see, none where it has to do without."""
    return plan_slots(wanted, [] if wanted.device == "cpu" else visible_gpus(), cores())


def visible_gpus() -> list[str]:
    """The GPUs of this machine by the names that CUDA_VISIBLE_DEVICES takes, less those it hides already."""
    if not may_have_gpu():
        return []
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in named.split(",")] if named else [str(i) for i in range(count)]
    return names[:count]


def plan_slots(wanted: Resources, gpus: Sequence[str], core_count: int) -> list[tuple[str, ...]]:
    """Slots for `wanted` on a machine with these GPUs: one run per GPU, or the stated number or fraction of one.

    Without GPUs a slot is a core (per process of a run). Raises UsageError where more is asked for than there is.
    """
    if wanted.jobs is not None and wanted.jobs < 1:
        raise UsageError(f"--jobs {wanted.jobs}: give 1 or more")
    if not gpus:
        if wanted.gpus_per_run or wanted.device == "cuda":
            asked = f"--gpus-per-run {wanted.gpus_per_run:g}" if wanted.gpus_per_run else "device = cuda"
            raise UsageError(f"{asked}: no GPU is available to the runs")
        return [()] * (wanted.jobs or max(core_count // wanted.processes, 1))
    slots = _gpu_slots(wanted, gpus)
    if wanted.jobs is not None and wanted.jobs > len(slots):
        raise UsageError(
            f"--jobs {wanted.jobs}: {len(gpus)} GPUs at {_share(wanted):g} per run are room for {len(slots)} runs at "
            "once; give fewer jobs or a smaller --gpus-per-run"
        )
    return slots[: wanted.jobs]


def _share(wanted: Resources) -> float:
    return wanted.processes if wanted.gpus_per_run is None else wanted.gpus_per_run


def _gpu_slots(wanted: Resources, gpus: Sequence[str]) -> list[tuple[str, ...]]:
    share = _share(wanted)
    if share <= 0 or (share > 1 and share != int(share)):
        raise UsageError(f"--gpus-per-run {share:g}: give a whole number of GPUs, or a fraction between 0 and 1")
    if wanted.processes > 1 and share < wanted.processes:
        raise UsageError(
            f"--gpus-per-run {share:g}: the {wanted.processes} processes of a run need a GPU each, so give "
            f"{wanted.processes} or more"
        )
    if share > len(gpus):
        raise UsageError(f"--gpus-per-run {share:g}: there {'is' if len(gpus) == 1 else 'are'} only {len(gpus)}")
    if share < 1:
        each = int(1 / share + 1e-9)
        return [(gpu,) for _ in range(each) for gpu in gpus]  # in turn, so that few runs spread over all GPUs
    size = int(share)
    return [tuple(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)]


def cluster_slots(wanted: Resources, nodes: Sequence[tuple[int, float]]) -> tuple[int, float]:
    """Runs at once and GPUs of each on a cluster whose nodes have these (CPUs, GPUs).

    Raises UsageError where no node could hold a run.
    """
    most = max((gpus for _, gpus in nodes), default=0.0)
    gpus = wanted.gpus_per_run
    if gpus is None:
        if wanted.device == "cuda" and not most:
            raise UsageError("device = cuda: no node of the cluster has a GPU")
        gpus = float(wanted.processes) if most and wanted.device != "cpu" else 0.0
    elif gpus > most:
        raise UsageError(f"--gpus-per-run {gpus:g}: the largest node of the cluster has {most:g} GPUs")
    by_cpu = [int(cpus // wanted.processes) for cpus, _ in nodes]
    by_gpu = [int(have / gpus + 1e-9) for _, have in nodes] if gpus else by_cpu
    room = sum(map(min, by_cpu, by_gpu))
    if not room:
        raise UsageError(f"no node of the cluster has {wanted.processes} CPUs and {gpus:g} GPUs for a run")
    return wanted.jobs or room, gpus
