"""Data of a report: the arms of a sweep with their references, comparisons, verdicts, warnings."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lossbench.claims.judge import judge_all
from lossbench.claims.registry import stated
from lossbench.claims.verdict import Verdict
from lossbench.claims.warnings import Notice, find_notices, run_versions
from lossbench.errors import UsageError, unknown
from lossbench.metrics.compare import MatchedComparison, Side, arm_values, matched
from lossbench.metrics.length import Summary, records, summarise
from lossbench.metrics.paired import PairedResult, paired
from lossbench.report.probe import read_probe
from lossbench.report.style import ArmStyle, arm_styles
from lossbench.store.read import Sweep

if TYPE_CHECKING:
    from lossbench.claims.probe_evidence import ProbeSection

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
    style: ArmStyle

    @property
    def planned(self) -> int:
        """Runs that the plan has."""
        return sum(self.statuses.values())

    @property
    def completed(self) -> int:
        """Runs that are done."""
        return self.statuses.get("completed", 0)


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

    def pair(self, a: str, b: str, metric: str) -> PairedResult:
        """Arm `a` minus arm `b` on one metric over the seeds that both completed."""
        if (a, b, metric) not in self._pairs:
            known = self._pairs.get((b, a, metric))
            fresh = reverse(known) if known else paired(self.by_seed(a, metric), self.by_seed(b, metric))
            self._pairs[a, b, metric] = fresh
        return self._pairs[a, b, metric]

    def arm(self, name: str) -> Arm:
        """The arm called `name`."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
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
    def matched(self) -> tuple[MatchedComparison, ...]:
        """Every arm against its reference at equal step, tokens and reward."""
        sides = {arm.name: Side(self.summary, arm.name) for arm in self.arms}
        return tuple(matched(sides[arm.name], sides[ref], basis) for arm, ref in self.compared for basis in BASES)

    @cached_property
    def matched_of(self) -> tuple[tuple[Arm, str, MatchedComparison], ...]:
        """`matched` with the arm and its reference beside each."""
        pairs = [(arm, ref) for arm, ref in self.compared for _ in BASES]
        return tuple((arm, ref, found) for (arm, ref), found in zip(pairs, self.matched, strict=True))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the claims that the plan states, in its order."""
        dose = self.probe.frozen.claim if self.probe and self.probe.frozen else None
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
    chosen = _baseline(names, baseline, sweep.spec.get("baseline"))
    return ReportData(sweep, summary, chosen, _arms(summary, names, chosen), read_probe(sweep, summary.metrics))


def _baseline(names: list[str], asked: str | None, stated: str | None) -> str:
    if asked is not None:
        if asked not in names:
            raise UsageError(unknown("baseline", asked, names))
        return asked
    return next((name for name in (stated, DEFAULT_BASELINE) if name in names), names[0])


def _arms(summary: Summary, names: list[str], baseline: str) -> tuple[Arm, ...]:
    styles = arm_styles(names)
    runs = records(summary.runs)
    first = {name: next(run for run in runs if run["arm"] == name) for name in names}
    policies = {name: _text(run["policy"]) for name, run in first.items()}
    arms = []
    for name, run in first.items():
        statuses: dict[str, int] = {}
        for other in runs:
            if other["arm"] == name:
                statuses[str(other["status"])] = statuses.get(str(other["status"]), 0) + 1
        reference = reference_of(name, names, baseline, policies)
        parts = {part: _text(run[part]) for part in ("loss_type", "agg_mode", "scale_rewards")}
        arms.append(
            Arm(
                name=name,
                mode=str(run["mode"]),
                **parts,
                policy=policies[name],
                statuses=statuses,
                reference=reference,
                style=styles[name],
            )
        )
    return tuple(arms)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


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


def reverse(result: PairedResult) -> PairedResult:
    """The same comparison as b minus a."""

    def inverse(value: float) -> float:
        return 1 / value if value else float("nan")

    return replace(
        result, only_a=result.only_b, only_b=result.only_a, values_a=result.values_b, values_b=result.values_a,
        mean_a=result.mean_b, mean_b=result.mean_a, difference=-result.difference,
        ci_low=-result.ci_high, ci_high=-result.ci_low,
        ratio=inverse(result.ratio), ratio_low=inverse(result.ratio_high), ratio_high=inverse(result.ratio_low),
        p_greater=result.p_less, p_less=result.p_greater, d_z=-result.d_z,
    )  # fmt: skip
