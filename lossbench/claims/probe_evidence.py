"""A sweep's probes as evidence for its report: the files about its policies, and their findings."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lossbench.claims import verdict
from lossbench.claims.dose_claim import dose_claim
from lossbench.claims.policies import PolicyPoint, policy_points
from lossbench.errors import UsageError
from lossbench.metrics.length import records
from lossbench.probe.dose_response import DoseResponse, LengthFacts, Mechanism, dose_response, length_facts, mechanism
from lossbench.probe.drift import Drift
from lossbench.probe.projections import Projections, Window, read_projections
from lossbench.probe.realised import (
    Agreement,
    OrderCheck,
    TrainedDrift,
    drift_table,
    late_lengths,
    mode_of,
    order_checks,
    rank_agreement,
    run_totals,
    trained_drifts,
)
from lossbench.probe.response import CurvePoint, Parts, Slopes, drift_parts, response_curves, sentence, slopes
from lossbench.store.read import Sweep

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FrozenProbe:
    """A probe of the policies that the runs start from: plain rows and numbers, no model and no file.

    `policies` are its policies by name, with warm start where there is one; their pairs are pooled (`pooled`), and
    `drifts_by_policy` has those of incorrect length (first metric, equal row weight) of each where there are several.
    `drifts` are of the sweep's modes; `parts`, `slopes` and `curves` say how incorrect length responds, in the first
    metric; `sentence` sums them up. `dose` of incorrect and correct length in the first metric; `claim` is what the
    claim on the dose needs; `orders` stand against the realised late lengths.
    """

    policies: list[str]
    sentence: str
    pairs: int
    completions: int
    lengths: list[LengthFacts]
    drifts: list[Drift]
    parts: list[Parts]
    slopes: Slopes
    curves: list[CurvePoint]
    drifts_by_policy: list[list[Drift]]
    mechanism: list[Mechanism]
    dose: list[DoseResponse]
    claim: verdict.DoseResponse
    orders: list[OrderCheck]


@dataclass(frozen=True)
class ProbeSection:
    """The frozen probe, None if absent; `trained` from probes along the runs, with `agreement` over runs.

    `points` set each probed policy's training beside its probe. `left_out` names files of the sweep's `probe/` folder
    that are about other policies, `problems` those that could not be read.
    """

    frozen: FrozenProbe | None
    trained: list[TrainedDrift]
    agreement: Agreement | None
    left_out: list[str]
    problems: list[str]
    points: list[PolicyPoint] = field(default_factory=list)


def probe_section(sweep: Sweep, metrics: "pd.DataFrame") -> ProbeSection | None:
    """The report's data on probes of the sweep, whose `run_metrics` are `metrics`; None where it has no probe."""
    kept, problems = _kept_probes(sweep)
    run_ids = set(sweep.run_ids)
    starts = _starts(sweep)
    along: list[Projections] = []
    starting: list[Projections] = []
    left_out: list[str] = []
    for name, probe in kept:
        if probe.policy in run_ids:
            along.append(probe)
        elif _is_a_start(probe, starts):
            starting.append(probe)
        else:
            left_out.append(f"{name} ({policy_label(probe)}, step {probe.step})")
    trained = trained_drifts(sweep, along)
    if not kept and not trained and not problems:
        return None
    agreement = None
    if trained:
        totals = run_totals(trained).values()
        agreement = rank_agreement([p for p, _ in totals], [r for _, r in totals])
    frozen = _frozen(starting, sweep, metrics) if starting else None
    points = policy_points(sweep, metrics, starting)
    return ProbeSection(frozen, trained, agreement, left_out, problems, points)


def _kept_probes(sweep: Sweep) -> tuple[list[tuple[str, Projections]], list[str]]:
    found: list[tuple[str, Projections]] = []
    problems: list[str] = []
    for path in sorted((sweep.path / "probe").glob("*.parquet")):
        try:
            found += [(path.name, probe) for probe in read_projections(path)]
        except UsageError as error:
            problems.append(str(error))
    return found, problems


def _starts(sweep: Sweep) -> set[tuple[str, Any]]:
    """(policy, seed of its warm start) that runs start from; those of arms with policies of their own aside."""
    runs = [run for run in records(sweep.runs) if run["arm"] == run["mode"]]
    return {(run["policy"], run["policy_seed"]) for run in runs if isinstance(run["policy"], str)}


def _is_a_start(probe: Projections, starts: set[tuple[str, Any]]) -> bool:
    """Whether the probed policy is one of `starts`.

    A log of another trainer does not say where its runs started, so there any untrained policy may be meant.
    """
    seed = probe.facts.get("policy_seed")
    return probe.step == 0 and (
        not starts
        or any(policy == probe.policy and (own != own or own is None or own == seed) for policy, own in starts)
    )


def policy_label(probe: Projections) -> str:
    """The policy with its warm start, where it has one."""
    from lossbench.policies import BUILT_IN

    seed = probe.facts.get("policy_seed")
    return f"{probe.policy}, warm start {seed}" if probe.policy in BUILT_IN and seed is not None else probe.policy


def pooled(probes: Sequence[Projections]) -> Projections:
    """Several probes as one: the pairs of each, numbered on.

    Pairs of policies that share prompts and draws are no more independent than one: they keep their number, so that a
    pair's value is the mean over these policies and counts once.
    """
    windows: list[Window] = []
    first_of: dict[Any, int] = {}
    for place, probe in enumerate(probes):
        first = first_of.setdefault(_draws(probe, place), 1 + max((window.pair for window in windows), default=-1))
        windows += [replace(window, pair=first + window.pair) for window in probe.windows]
    return replace(probes[0], windows=windows)


def _draws(probe: Projections, place: int) -> Any:
    """Key shared by probes of the same prompts and draws. Files without it were all drawn with the user's seed;
    recorded completions, and what is not known, are of their own."""  # fmt: skip
    facts = probe.facts
    if facts.get("rollouts") or "settings" not in facts:
        return "unknown", place
    seed = facts["settings"].get("sampling", {}).get("seed")
    return facts.get("task"), facts.get("draws", ("seed", seed))


def _frozen(probes: list[Projections], sweep: Sweep, metrics: "pd.DataFrame") -> FrozenProbe:
    probe, shared = pooled(probes), sweep.spec.get("shared", {})
    table = drift_table(probe, shared)
    modes = list({mode.name: mode for mode in map(mode_of, records(sweep.runs))}.values())
    metric = probe.metrics[0]
    apart = [drift_table(one, shared) for one in probes] if len(probes) > 1 else []
    drifts, parts = table.rows(modes), [drift_parts(table, mode, metric) for mode in modes]
    return FrozenProbe(
        sentence=sentence([row for row in drifts if row.metric == metric], parts),
        parts=parts,
        slopes=slopes(probe, metric),
        curves=response_curves(probe, metric),
        policies=[policy_label(one) for one in probes],
        pairs=len(probe.windows_of_pair()),
        completions=len(probe.pool("lengths_N")),
        lengths=length_facts(probe),
        drifts=drifts,
        drifts_by_policy=[[one.drift(mode, "incorrect", metric, "row-weight") for mode in modes] for one in apart],
        mechanism=[mechanism(probe, mode, table.micro_batch_rows) for mode in modes],
        dose=[dose_response(table, direction, metric) for direction in ("incorrect", "correct")],
        claim=dose_claim(table),
        orders=order_checks(table, late_lengths(metrics), metric),
    )
