"""Forecast: what a training run of a given size could show, from a probe of the policy that it starts from."""

import math
from dataclasses import dataclass, replace

import numpy as np

from lossbench.loss.modes import Mode, baseline_of
from lossbench.probe.drift import DriftTable
from lossbench.stats import power_paired_t, t_interval

_Z_80 = 1.96 + 0.84  # a two-sided test at .05 of a normal mean has a power of 80 % where it lies this many errors off 0


@dataclass(frozen=True)
class Forecast:
    """Expected effect of a training run, were the policy's drift to stay as it is.

    `change_tokens`: expected difference of the length from the baseline's run at the end, with the 95 % interval of the
    drift behind it; `noise_tokens`: standard deviation of that difference between two runs that differ in their random
    numbers, a walk of independent steps; `d_z` their ratio; `power`: of the paired two-sided test at .05 with `seeds`
    pairs of runs; `seeds_for_80`: pairs that reach a power of 80 %, None beyond 30. Where the interval of the drift
    covers 0 all of these are None, and `pairs_needed` is the number of pairs of batches that would settle its sign with
    a power of 80 % (None where no drift is seen at all).
    """

    mode: str
    direction: str
    steps: int
    rows_per_step: int
    learning_rate: float
    seeds: int
    change_tokens: float | None = None
    low_tokens: float | None = None
    high_tokens: float | None = None
    noise_tokens: float | None = None
    d_z: float | None = None
    power: float | None = None
    seeds_for_80: int | None = None
    pairs_needed: int | None = None


def forecast(
    table: DriftTable, mode: Mode, *, steps: int, rows_per_step: int, learning_rate: float, seeds: int,
    direction: str = "incorrect",
) -> Forecast:  # fmt: skip
    """Expected drift against seed noise, for Adam, from the `adam` metric at equal gradient norm.

    A step of `rows_per_step` rows moves the length by `DriftTable.adam_step` of the probe's step, and is taken to be as
    noisy as that one. Dividing advantages by a standard deviation changes no step of Adam (`DriftTable.unit`). The
    noise of the probed step holds that of the length direction too, so it is rather too large; what two runs do once
    their policies differ is not in it.
    """
    if "adam" not in table.probe.metrics:
        raise ValueError(f"metrics are {', '.join(table.probe.metrics)}; valid: a probe with the adam metric")
    plan = Forecast(mode.name, direction, steps, rows_per_step, learning_rate, seeds)
    found = table.per_pair(mode, direction, "adam", "gradient-norm")
    interval = t_interval(found.values_P)
    if not interval.outside(0.0, 0.0):
        return replace(plan, pairs_needed=pairs_needed(found.values_P))
    tokens = learning_rate * steps * table.adam_step(mode.advantage, rows_per_step)
    base = baseline_of(mode.advantage, mode.loss_type)
    spread = [
        factor * np.nanstd(table.sums(one).along["adam", direction].sum(0), ddof=1)
        for one, factor in ((mode, found.scale), (base, 1.0))
    ]
    noise = learning_rate * steps**0.5 * table.unit(mode.advantage) * float(np.hypot(spread[0], spread[1]))
    d_z = tokens * interval.estimate / noise if noise > 0 else None
    return replace(
        plan, change_tokens=tokens * interval.estimate, low_tokens=tokens * interval.low,
        high_tokens=tokens * interval.high, noise_tokens=noise, d_z=d_z,
        power=None if d_z is None or seeds < 2 else power_paired_t(d_z, seeds),
        seeds_for_80=d_z and next((n for n in range(6, 31) if power_paired_t(d_z, n) >= 0.8), None),
    )  # fmt: skip


def pairs_needed(values_P: np.ndarray) -> int | None:
    """Pairs whose mean would differ from 0 with a power of 80 %, were their mean and spread those of `values_P`."""
    mean = abs(float(values_P.mean())) if len(values_P) > 1 else 0.0
    return math.ceil((_Z_80 * float(values_P.std(ddof=1)) / mean) ** 2) if mean > 0 else None
