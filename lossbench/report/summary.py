"""The report's numbers for machines: summary.json and summary.csv."""

import csv
import io
import math
from typing import Any

import numpy as np

from lossbench.metrics.compare import Comparison, comparison_rows
from lossbench.metrics.length import METRICS
from lossbench.report.data import ReportData
from lossbench.report.finding import find, support
from lossbench.text import spreadsheet_cell
from lossbench.version import __version__

CSV_COLUMNS = [
    "arm", "mode", "metric", "unit", "runs", "planned", "mean", "sd", "reference", "n", "difference", "ci_low",
    "ci_high", "ratio", "p", "statement",
]  # fmt: skip


def summary_rows(data: ReportData) -> list[dict[str, Any]]:
    """One row per arm and metric, over its completed runs, with the paired difference to the arm's reference."""
    rows: list[dict[str, Any]] = []
    for arm in data.arms:
        for metric, spec in METRICS.items():
            values = data.values(arm.name, metric)
            if not values.size:
                continue
            row = {
                "arm": arm.name, "mode": arm.mode, "metric": metric, "unit": spec.unit, "runs": len(values),
                "planned": arm.planned, "mean": float(values.mean()),
                "sd": float(values.std(ddof=1)) if len(values) > 1 else None, "reference": arm.reference,
            }  # fmt: skip
            if arm.reference is not None:
                result = data.pair(arm.name, arm.reference, metric)
                row |= {
                    "n": result.n, "difference": result.difference, "ci_low": result.ci_low, "ci_high": result.ci_high,
                    "ratio": result.ratio, "p": result.p_two_sided, "statement": result.statement,
                }  # fmt: skip
            rows.append(row)
    return rows


def summary_csv(data: ReportData) -> str:
    """`summary_rows` as CSV; empty cells for missing values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: spreadsheet_cell(_plain(value)) for key, value in row.items()} for row in summary_rows(data))
    return text.getvalue()


def summary_json(data: ReportData) -> dict[str, Any]:
    """Finding, verdicts, arms, comparisons and warnings; null for missing values."""
    finding = find(data)
    matched = [
        {"basis": found.basis, "arm": arm.name, "reference": ref, "at": found.at, "unit": found.unit,
         "reason": found.reason,
         "comparisons": comparison_rows(found.comparisons, f"equal {found.basis}")}
        for arm, ref, found in data.matched
    ]  # fmt: skip
    content = {
        "lossbench": __version__,
        "name": data.spec.get("name"),
        "plan_hash": data.spec.get("plan_hash"),
        "baseline": data.baseline,
        "finding": finding.sentence,
        "support": support(data, finding),
        "complete": data.complete,
        "claims_changed": bool(data.claims_change),
        "verdicts": [verdict.row() for verdict in data.verdicts],
        "arms": [_arm(data, arm.name) for arm in data.arms],
        "metrics": summary_rows(data),
        "pushes": _pushes(data),
        "policies": [
            {
                "kind": point.kind,
                "policy_seed": point.policy_seed,
                "growth_tokens": point.growth_tokens,
                "cancelled": point.cancelled,
                "drift": point.drift.estimate,
                "drift_low": point.drift.low,
                "drift_high": point.drift.high,
            }
            for point in (data.probe.points if data.probe else ())
        ],
        "pairwise": _pairwise(data, finding.metric),
        "matched": matched,
        "warnings": [
            {"code": n.code, "level": n.level, "message": n.message, "remedy": n.remedy} for n in data.notices
        ],
        "missing": [{k: run[k] for k in ("run_id", "arm", "seed", "status", "reason")} for run in data.missing],
        "problems": data.problems,
        "command": data.spec.get("command"),
        "versions": data.spec.get("versions"),
    }
    return _plain(content)


def _arm(data: ReportData, name: str) -> dict[str, Any]:
    arm = data.arm(name)
    return {
        "arm": arm.name, "mode": arm.mode, "loss_type": arm.loss_type, "agg_mode": arm.agg_mode,
        "scale_rewards": arm.scale_rewards, "policy": arm.policy, "reference": arm.reference, "planned": arm.planned,
        "completed": arm.completed,
    }  # fmt: skip


def _pushes(data: ReportData) -> list[dict[str, Any]]:
    """Late pushes on the rows of each arm by its own and every compared mode: means over its completed runs."""
    rows = []
    for arm in data.arms:
        parts = [part for part in data.summary.by_run.values() if part.row["arm"] == arm.name and part.row["complete"]]
        for mode in dict.fromkeys(name for part in parts for name in part.late_pushes):
            found = [part.late_pushes[mode] for part in parts if mode in part.late_pushes]
            means = {name: float(np.mean([values[name] for values in found])) for name in found[0]}
            if any(map(math.isfinite, means.values())):
                rows.append({"arm": arm.name, "mode": mode, "own": mode == arm.mode, "runs": len(found), **means})
    return rows


def _pairwise(data: ReportData, metric: str | None) -> list[dict[str, Any]]:
    if metric is None:
        return []
    arms = [arm.name for arm in data.arms if data.values(arm.name, metric).size]
    policy = {arm.name: arm.policy for arm in data.arms}
    pairs = [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :] if policy[a] == policy[b]]
    return comparison_rows(Comparison(a, b, metric, data.pair(a, b, metric)) for a, b in pairs)


def _plain(value: Any) -> Any:
    """The value with NaN and infinity as None and tuples as lists, fit for JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
