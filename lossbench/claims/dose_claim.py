"""The dose-response of a frozen probe as its claim needs it: drift by α with intervals, and one test of the fall."""

from collections.abc import Sequence

import numpy as np

from lossbench.claims.verdict import DoseResponse
from lossbench.loss.modes import dose_mode
from lossbench.probe.dose_response import ALPHAS
from lossbench.probe.drift import DriftTable
from lossbench.stats import sign_flip_p, t_interval


def dose_claim(table: DriftTable, alphas: Sequence[float] = ALPHAS, metric: str | None = None) -> DoseResponse:
    """Drift of incorrect length under length-power:α at equal row weight, without std in the advantage.

    `p_falling` and `p_rising` are one-sided sign-flip p over the pairs of batches, whose least-squares slopes against α
    are independent of each other. `metric` defaults to the probe's first.
    """
    metric = metric or table.probe.metrics[0]
    modes = [dose_mode(alpha) for alpha in alphas]
    values_AP = np.array([table.per_pair(mode, "incorrect", metric, "row-weight").values_P for mode in modes])
    intervals = [t_interval(values_P) for values_P in values_AP]
    pairs = values_AP.shape[1]
    slopes_P = np.polyfit(alphas, values_AP, 1)[0] if pairs and len(alphas) > 1 else np.zeros(0)
    return DoseResponse(
        alphas=tuple(alphas),
        drift=tuple(interval.estimate for interval in intervals),
        ci_low=tuple(interval.low for interval in intervals),
        ci_high=tuple(interval.high for interval in intervals),
        pairs=pairs,
        p_falling=float(sign_flip_p(slopes_P, "less")),
        p_rising=float(sign_flip_p(slopes_P, "greater")),
    )
