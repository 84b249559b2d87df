"""What `lossbench probe` writes and prints: tables, figures, and one line per mode on what training could show."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lossbench.cli._shared import print_table, show

_TABLE = ["mode", "length", "drift", "ci_low", "ci_high", "t", "adam_drift", "adam_t", "raw", "note"]


@dataclass(frozen=True)
class Result:
    """All that is said of one probed policy, as plain records."""

    policy: str
    step: int
    pairs: int
    completions: int
    lengths: list[dict[str, Any]]
    drifts: list[Any]
    doses: list[Any]
    mechanism: list[dict[str, Any]]
    forecasts: list[dict[str, Any]]


def write(out: Path, results: list[Result], say: Callable[[str], None]) -> None:
    """CSV and JSON of all results, figures of the last policy probed."""
    import pandas as pd

    from lossbench.report.probe_figures import dose_figure, drift_figure
    from lossbench.report.style import look, save
    from lossbench.store.write import refuse_links, write_json, write_text

    refuse_links(out, "probe")
    folder = out / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    records = [_record(result, row) for result in results for row in result.drifts]
    write_text(folder / "drift.csv", pd.DataFrame(records).to_csv(index=False))
    write_json(folder / "probe.json", [asdict(result) for result in results])
    last = results[-1]
    metric = last.drifts[0].metric
    with look():
        save(drift_figure(last.drifts, metric), folder, "drift")
        save(dose_figure([dose for dose in last.doses if dose.metric == metric]), folder, "dose_response")
    say(f"wrote {folder}/drift.csv, probe.json, drift.png, dose_response.png (and .svg)")


def _record(result: Result, row: Any) -> dict[str, Any]:
    return {"policy": result.policy, "step": result.step, **asdict(row)}


def print_results(results: list[Result], format: str, say: Callable[[str], None]) -> None:
    """JSON: everything. CSV: every drift. Table, Markdown: drifts at equal row weight, their company, dose-response."""
    if format == "json":
        show(json.dumps([asdict(result) for result in results], indent=2, allow_nan=False))
        return
    if format == "csv":
        print_table([_record(result, row) for result in results for row in result.drifts], None, format)
        return
    for result in results:
        say(_headline(result))
        print_table(_table_rows(result), _TABLE, format)
        print_table(_company_rows(result), None, format)
        print_table(_dose_rows(result), None, format)
        for line in _forecast_lines(result):
            say(line)


def _headline(result: Result) -> str:
    shares = ", ".join(f"{row['direction']} {row['completions']} (mean {row['length_mean']:.1f} tokens)"
                       for row in result.lengths[:2] if row["completions"])  # fmt: skip
    return f"{result.policy}, step {result.step}: {result.pairs} pairs, {result.completions} completions: {shares}"


def _table_rows(result: Result) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for drift in (row for row in result.drifts if row.match == "row-weight"):
        row = rows.setdefault((drift.mode, drift.direction), {"mode": drift.mode, "length": drift.direction})
        if drift.metric == "adam":
            row |= {"adam_drift": drift.drift, "adam_t": drift.t}
        else:
            row |= {"drift": drift.drift, "ci_low": drift.low, "ci_high": drift.high, "t": drift.t, "raw": drift.raw}
        row["note"] = drift.note
    return list(rows.values())


def _company_rows(result: Result) -> list[dict[str, Any]]:
    """What belongs beside a mean drift of incorrect length: median, sign test, the other matching, K1 and K3."""
    metric = result.drifts[0].metric
    found = {(row.mode, row.match): row for row in result.drifts
             if (row.direction, row.metric) == ("incorrect", metric)}  # fmt: skip
    rows = []
    for facts in result.mechanism:
        by_weight, by_norm = found[facts["mode"], "row-weight"], found[facts["mode"], "gradient-norm"]
        rows.append({
            "mode": facts["mode"], "median": by_weight.median, "sign_p": by_weight.sign_p,
            "at_equal_norm": by_norm.drift, "at_equal_norm_t": by_norm.t,
            "elasticity_incorrect": facts["elasticity_incorrect"],
            "sign_length_imbalance": facts["sign_length_imbalance"],
        })  # fmt: skip
    return rows


def _dose_rows(result: Result) -> list[dict[str, Any]]:
    rows: dict[float, dict[str, Any]] = {}
    for dose in result.doses:
        if dose.metric != result.doses[0].metric:
            continue
        for point in dose.points:
            row = rows.setdefault(point.alpha, {"alpha": point.alpha})
            row |= {dose.direction: point.drift.drift, f"{dose.direction}_t": point.drift.t,
                    f"{dose.direction}_theory": point.theory}  # fmt: skip
    return list(rows.values())


def _forecast_lines(result: Result) -> list[str]:
    lines = []
    for row in result.forecasts:
        if row["change_tokens"] is None or not row["d_z"]:
            continue
        power = "" if row["power"] is None else f"; power with {row['seeds']} seeds {row['power']:.2f}"
        lines.append(
            f"{row['mode']}: a run of {row['steps']} steps x {row['rows_per_step']} completions would move incorrect "
            f"length by {row['change_tokens']:+.1f} tokens against seq-mean-token-sum, noise between runs "
            f"{row['noise_tokens']:.1f}{power}"
        )
    return lines
