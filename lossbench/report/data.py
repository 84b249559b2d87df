"""Data of a report: the arms of a sweep with their references, comparisons, verdicts, warnings."""

from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lossbench.claims.judge import judge_all
from lossbench.claims.registry import stated
from lossbench.claims.verdict import Verdict
from lossbench.claims.warnings import Notice, find_notices, run_versions
from lossbench.errors import UsageError, unknown
from lossbench.metrics.compare import MatchedComparison, Side, arm_values, matched
from lossbench.metrics.curves import Axis, Curve, curves
from lossbench.metrics.length import Summary, records, summarise
from lossbench.metrics.paired import PairedResult, paired
from lossbench.policies import BUILT_IN
from lossbench.report.style import mode_colors
from lossbench.store.read import RUN_FILE, Sweep, read_json
from lossbench.store.write import part_files
from lossbench.sweep.estimate import BUILT_IN_PARAMETERS

if TYPE_CHECKING:
    from lossbench.claims.probe_evidence import FrozenProbe, ProbeSection

DEFAULT_BASELINE = "grpo"
BASES = ("step", "tokens", "reward")


@dataclass(frozen=True)
class Arm:
    """One arm: its mode's parts, its runs by status, and the arm it is compared with (None for a reference itself)."""

    name: str
    mode: str
    loss_type: str | None
    agg_mode: str | None
    scale_rewards: str | None
    policy: str | None
    statuses: Mapping[str, int]
    reference: str | None
    index: int
    color: str

    @property
    def planned(self) -> int:
        """Runs that the plan has."""
        return sum(self.statuses.values())

    @property
    def completed(self) -> int:
        """Runs that are done."""
        return self.statuses.get("completed", 0)

    @property
    def condition(self) -> str:
        """The label in brackets that sets the arm apart from others of its mode; empty without one."""
        return self.name.partition("[")[2].rstrip("]")


@dataclass
class ReportData:
    """Everything a report is made from; comparisons are computed when first asked for and kept."""

    sweep: Sweep
    summary: Summary
    baseline: str
    arms: tuple[Arm, ...]
    probe: "ProbeSection | None"
    _pairs: dict[tuple[str, str, str], PairedResult] = field(default_factory=dict)
    _values: dict[tuple[str, str], dict[Hashable, float]] = field(default_factory=dict)
    _curves: dict[tuple[str, Axis], dict[str, Curve]] = field(default_factory=dict)

    def pair(self, a: str, b: str, metric: str) -> PairedResult:
        """Arm `a` minus arm `b` on one metric over the seeds that both completed."""
        if (a, b, metric) not in self._pairs:
            self._pairs[a, b, metric] = paired(self.by_seed(a, metric), self.by_seed(b, metric))
        return self._pairs[a, b, metric]

    def curve(self, arm: str, quantity: str, axis: Axis = "step") -> Curve:
        """A quantity of an arm along training."""
        if (quantity, axis) not in self._curves:
            self._curves[quantity, axis] = curves(self.summary, quantity, axis)
        return self._curves[quantity, axis][arm]

    def arm(self, name: str) -> Arm:
        """The arm called `name`."""
        return next(arm for arm in self.arms if arm.name == name)

    @cached_property
    def compared(self) -> tuple[tuple[Arm, str], ...]:
        """The arms that have a reference, with its name."""
        return tuple((arm, arm.reference) for arm in self.arms if arm.reference is not None)

    @property
    def spec(self) -> dict[str, Any]:
        """The sweep's plan."""
        return self.sweep.spec

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe; empty for logs of other trainers."""
        return self.spec.get("recipe") or {}

    @cached_property
    def parameters(self) -> int | None:
        """Parameters of the policy, as its runs recorded them."""
        for run_id in self.sweep.run_ids:
            path = self.sweep.run_dir(run_id) / RUN_FILE
            with suppress(UsageError):  # damaged, which the sweep's problems name
                if path.exists() and (found := (read_json(path).get("resolved") or {}).get("parameters")):
                    return int(found)
        return BUILT_IN_PARAMETERS if self.arms[0].policy in BUILT_IN else None

    def by_seed(self, arm: str, metric: str) -> dict[Hashable, float]:
        """Pair key → the metric of each completed run of an arm, NaN where it has no value."""
        if (arm, metric) not in self._values:
            columns = self.summary.metrics.loc[:, ["arm", "complete", "policy_seed", "seed", metric]]
            self._values[arm, metric] = arm_values(columns, arm, metric)
        return self._values[arm, metric]

    def values(self, arm: str, metric: str) -> np.ndarray:
        """The metric of each completed run of an arm that has a value, shape (n,)."""
        found = np.array(list(self.by_seed(arm, metric).values()), dtype=float)
        return found[np.isfinite(found)]

    def has(self, metric: str) -> bool:
        """Whether any completed run has a value of the metric."""
        return any(self.values(arm.name, metric).size for arm in self.arms)

    @cached_property
    def matched(self) -> tuple[tuple[Arm, str, MatchedComparison], ...]:
        """Every arm with its reference, compared at equal step, tokens and reward."""
        sides = {arm.name: Side(self.summary, arm.name) for arm in self.arms}
        return tuple(
            (arm, ref, matched(sides[arm.name], sides[ref], basis)) for arm, ref in self.compared for basis in BASES
        )

    @property
    def frozen(self) -> "FrozenProbe | None":
        """The probe of the policies that the runs start from."""
        return self.probe.frozen if self.probe else None

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the claims that the plan states, in its order."""
        dose = self.frozen.claim if self.frozen else None
        points = self.probe.points if self.probe else ()
        return tuple(judge_all(stated(self.spec)[0], self.summary.metrics, dose, points))

    @property
    def claims_change(self) -> str:
        """Note on how the claims were changed after they were stated; empty if they were not, or if no claims exist."""
        claims, change = stated(self.spec)
        return change if claims else ""

    @cached_property
    def notices(self) -> tuple[Notice, ...]:
        """The warnings that apply."""
        summary = replace(self.summary, problems=self.problems)
        return tuple(find_notices(summary, self.recipe, run_versions(self.sweep)))

    @property
    def problems(self) -> tuple[str, ...]:
        """The files that could not be read, named from the sweep's folder on: reports travel without the machine."""
        return tuple(problem.replace(f"{self.sweep.path}/", "") for problem in self.sweep.problems)

    @property
    def missing(self) -> list[dict[str, Any]]:
        """The planned runs that are not completed."""
        return [run for run in records(self.summary.runs) if run["status"] != "completed"]

    @property
    def complete(self) -> bool:
        """Whether every planned run is completed and every file could be read."""
        return not self.missing and not self.sweep.problems


def gather(sweep: Sweep, baseline: str | None = None) -> ReportData:
    """Read and reduce a sweep. Raises UsageError for a plan without runs and a baseline that is not one of its arms."""
    if not isinstance(sweep.spec.get("runs"), dict) or not sweep.spec["runs"]:
        raise UsageError(f"'{sweep.path}' is not a sweep that a report can be made of: its plan has no runs")
    summary = summarise(sweep)
    names = list(dict.fromkeys(str(arm) for arm in summary.runs["arm"]))
    if baseline is not None and baseline not in names:
        raise UsageError(unknown("baseline", baseline, names))
    chosen = next(name for name in (baseline, sweep.spec.get("baseline"), DEFAULT_BASELINE, *names) if name in names)
    return ReportData(sweep, summary, chosen, _arms(summary, names, chosen), _read_probe(sweep, summary))


def _arms(summary: Summary, names: list[str], baseline: str) -> tuple[Arm, ...]:
    runs = records(summary.runs)
    first = {name: next(run for run in runs if run["arm"] == name) for name in names}
    parts = {
        name: {key: run[key] if isinstance(run[key], str) else None
               for key in ("loss_type", "agg_mode", "scale_rewards", "policy")}
        for name, run in first.items()
    }  # fmt: skip
    policies = {name: part["policy"] for name, part in parts.items()}
    colors = mode_colors((name, str(first[name]["mode"]), parts[name]["agg_mode"]) for name in names)
    return tuple(
        Arm(
            name=name, mode=str(first[name]["mode"]), **parts[name], index=index, color=colors[name],
            statuses=Counter(str(run["status"]) for run in runs if run["arm"] == name),
            reference=reference_of(name, names, baseline, policies),
        )
        for index, name in enumerate(names)
    )  # fmt: skip


def _read_probe(sweep: Sweep, summary: Summary) -> "ProbeSection | None":
    """The probe's findings, None where the sweep was not probed; damaged files join the sweep's problems."""
    along_runs = any(_was_probed(sweep.run_dir(run_id)) for run_id in sweep.run_ids)
    if not along_runs and not any((sweep.path / "probe").glob("*.parquet")):
        return None
    from lossbench.claims.probe_evidence import probe_section

    section = probe_section(sweep, summary.metrics)
    if section is not None:
        sweep.problems += [problem for problem in section.problems if problem not in sweep.problems]
    return section


def _was_probed(run_dir: Path) -> bool:
    return (run_dir / "probe.parquet").exists() or "probe" in part_files(run_dir)


def reference_of(arm: str, names: list[str], baseline: str, policies: Mapping[str, str | None]) -> str | None:
    """Reference of `arm`: the baseline, or its counterpart among the arms that start from the same policy.

    An arm with a label of its own is held against the baseline's mode under the same label, where there is such an
    arm: what the label stands for is not the mode's doing. Pairs of runs share their starting policy, so an arm with a
    policy of its own is held against the baseline's mode on that policy, or else the first arm on it. None for an arm
    that is a reference itself.
    """
    if policies[arm] == policies[baseline]:
        twin = baseline.partition("[")[0] + arm[arm.index("[") :] if "[" in arm else baseline
        reference = twin if twin in names and twin != arm and policies[twin] == policies[arm] else baseline
        return None if arm == baseline else reference
    same = [name for name in names if policies[name] == policies[arm]]
    counterparts = [name for name in same if name.partition("[")[0] == baseline.partition("[")[0]]
    reference = (counterparts or same)[0]
    return None if arm == reference else reference
