"""How far the probe at the head agrees with the probe by all parameters, on the same rollouts of built-in policies.

`python tests/support/head_probe.py OUT.json selfcheck:0 selfcheck-null:0` probes these policies (default: four), about
half a core-minute each, and a minute more where a warm start is missing.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.loss.modes import parse_mode
from lossbench.policies.prepare import built_in_policy, prepare_policies
from lossbench.probe.drift import DriftTable
from lossbench.probe.jobs import ProbeJob, run_job
from lossbench.probe.prober import ProbeSettings, joined
from lossbench.probe.projections import Projections, projections_of
from lossbench.probe.response import drift_parts
from lossbench.store.write import as_arrow, write_json

POLICIES = (("selfcheck", 0), ("selfcheck", 1), ("selfcheck-null", 0), ("selfcheck-easy", 0))
PAIRS = 20
MODE = parse_mode("grpo@seq-mean-token-mean/none")


def probed(policy: str, policy_seed: int, params: str) -> Projections:
    """The projections of one policy by these parameters."""
    job = ProbeJob(policy, policy_seed, settings=ProbeSettings(pairs=PAIRS, params=(params,)))
    return projections_of(as_arrow("probe", joined(list(run_job(job)))).to_pandas())[0]


def figures(probe: Projections, metric: str) -> dict[str, Any]:
    """Drift of incorrect length under 1/L weights at equal mean weight, and the share of the push that is cancelled."""
    table = DriftTable(probe)
    drift = table.drift(MODE, "incorrect", metric, "row-weight")
    part = drift_parts(table, MODE, metric)
    return {"drift": [drift.drift, drift.low, drift.high], "t": drift.t,
            "rho": [part.cancelled, part.cancelled_low, part.cancelled_high]}  # fmt: skip


def correlation(head: Projections, whole: Projections, metric: str) -> list[float]:
    """Mean over windows of the correlation of projections on incorrect length, and its 95 % interval over pairs."""
    key = metric, "incorrect"
    both = [(a.projections.get(key), b.projections.get(key)) for a, b in zip(head.windows, whole.windows, strict=True)]
    found = np.array([np.corrcoef(a, b)[0, 1] for a, b in both if a is not None and b is not None])
    half = 1.96 * found.std(ddof=1) / len(found) ** 0.5
    return [float(found.mean()), float(found.mean() - half), float(found.mean() + half)]


def main(path: Path, policies: Sequence[tuple[str, int]]) -> None:
    """Probe each policy both ways and write the figures."""
    prepare_policies([built_in_policy(*policy) for policy in policies], workers=1)
    rows = []
    for policy, policy_seed in policies:
        head, whole = (probed(policy, policy_seed, params) for params in ("head", "all"))
        rows += [
            {"policy": policy, "policy_seed": policy_seed, "metric": metric, "pairs": PAIRS,
             "correlation_per_completion": correlation(head, whole, metric),
             "head": figures(head, metric), "all": figures(whole, metric)}
            for metric in head.metrics
        ]  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"mode": MODE.name, "direction": "incorrect", "policies": rows})


if __name__ == "__main__":
    named = [(name, int(seed)) for name, _, seed in (text.partition(":") for text in sys.argv[2:])]
    main(Path(sys.argv[1]), named or POLICIES)
