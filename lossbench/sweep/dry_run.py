"""A planned sweep in words, without starting it."""

from typing import Any

from lossbench.policies.hardware import Placement, placement
from lossbench.sweep.estimate import cost_line
from lossbench.sweep.run import Planned
from lossbench.training.run_spec import Settings


def planned_rows(planned: Planned) -> list[dict[str, Any]]:
    """One row per planned run: its mode, seed, policy, steps, and where it would compute."""
    rows = []
    for spec in planned.mine:
        settings, place = spec.settings, _place(planned, spec.settings)
        labels = spec.labels()
        rows.append({
            "run_id": labels.pop("run_id"), "arm": spec.arm, **labels, "policy": spec.policy,
            "policy_seed": spec.policy_seed, "steps": settings.steps,
            "device": place.device if place else settings.device, "dtype": place.compute if place else settings.dtype,
        })  # fmt: skip
    return rows


def ways_of_computing(planned: Planned) -> list[str]:
    """A line on device, precision, sampler and trained weights for each way in which the runs compute."""
    ways: dict[str, list[str]] = {}
    for spec in planned.mine:
        settings, place = spec.settings, _place(planned, spec.settings)
        where = place.sentence if place else f"device {settings.device}, dtype {settings.dtype}, as each node can"
        lora = ",".join(f"{name}={value}" for name, value in (settings.lora or {}).items())
        trained = f"LoRA {lora}" if lora else "all weights trained"
        ways.setdefault(f"{where}, sampler {settings.sampler}, {trained}", []).append(spec.arm)
    said = list(ways)
    if len(ways) > 1:
        said = [f"{', '.join(dict.fromkeys(arms))}: {way}" for way, arms in ways.items()]
    devices = {place.device for spec in planned.mine if (place := _place(planned, spec.settings))}
    device = "cpu" if devices == {"cpu"} else "cuda"
    cost = cost_line(planned.mine, planned.options.jobs, device)
    return [*said, cost or "minutes and memory: known once the model is here"]


def _place(planned: Planned, settings: Settings) -> Placement | None:
    """Device of the run on this machine; None if it runs elsewhere."""
    return placement(settings.device, settings.dtype) if planned.here else None
