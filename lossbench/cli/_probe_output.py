"""Tables, figures and lines of `lossbench probe`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossbench.cli._shared import print_table, show
from lossbench.probe.drift import Drift
from lossbench.probe.findings import Findings

_MOST_CUT = 0.05


def write_findings(out: Path, found: Sequence[Findings], say: Callable[[str], None]) -> None:
    """CSV and JSON of all findings, figures of the last policy probed."""
    import pandas as pd

    from lossbench.report.panels import save
    from lossbench.report.probe_figures import dose_picture, drift_picture
    from lossbench.store.write import refuse_links, write_json, write_text

    refuse_links(out, "probe")
    folder = out / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "drift.csv", pd.DataFrame(list(_records(found))).to_csv(index=False))
    write_json(folder / "probe.json", [one.as_dict() for one in found])
    last = found[-1]
    metric = last.drifts[0].metric
    save(drift_picture(last.drifts, metric), folder, "drift")
    save(dose_picture([dose for dose in last.doses if dose.metric == metric]), folder, "dose_response")
    say(f"wrote {folder}/drift.csv, probe.json, drift.png, dose_response.png (and .svg)")


def _records(found: Sequence[Findings]) -> Iterator[dict[str, Any]]:
    for one in found:
        yield from ({"policy": one.policy, "step": one.step, **asdict(row)} for row in one.drifts)


def print_findings(found: Sequence[Findings], format: str, say: Callable[[str], None], detail: bool = False) -> None:
    """JSON: everything. CSV: every drift. Table, Markdown: a sentence and a row per mode; with `detail` all tables."""
    if format == "json":
        show(json.dumps([one.as_dict() for one in found], indent=2, allow_nan=False))
        return
    if format == "csv":
        print_table(list(_records(found)), None, format)
        return
    for one in found:
        say(_headline(one))
        show(one.sentence)
        print_table(_mode_rows(one), None, format)
        for rows in _detail(one) if detail else ():
            print_table(rows, None, format)
        for line in _forecast_lines(one):
            say(line)


def _headline(found: Findings) -> str:
    shares = ", ".join(f"{row.direction} {row.completions} (mean {row.length_mean:.1f} tokens)"
                       for row in found.lengths[:2] if row.completions)  # fmt: skip
    cut = "" if (found.truncated_frac or 0) <= _MOST_CUT else (
        f"; warning: {found.truncated_frac:.0%} of the completions are cut at the cap, so their lengths are too short"
    )  # fmt: skip
    return (f"{found.policy}, step {found.step}: {found.pairs} pairs, {found.completions} completions: {shares}; "
            f"parameters: {found.parameters}{cut}")  # fmt: skip


def _mode_rows(found: Findings) -> list[dict[str, Any]]:
    """Per mode the drift of wrong answers' length, its two parts, and the share that is cancelled."""
    parts = {part.mode: part for part in found.parts if part.metric == found.parts[0].metric}
    return [
        {"mode": row.mode, "wrong_length": row.drift, "ci_low": row.low, "ci_high": row.high,
         "from_wrong": parts[row.mode].from_wrong, "from_right": parts[row.mode].from_right,
         "rho": parts[row.mode].cancelled, "rho_low": parts[row.mode].cancelled_low,
         "rho_high": parts[row.mode].cancelled_high, "note": row.note}
        for row in _of_incorrect(found) if row.match == "row-weight"
    ]  # fmt: skip


def _detail(found: Findings) -> Iterator[list[dict[str, Any]]]:
    yield _drift_rows(found)
    yield _beside_rows(found)
    yield _dose_rows(found)
    yield [asdict(row) for row in found.slopes]
    yield [asdict(row) for row in found.curves if row.metric == found.curves[0].metric]


def _drift_rows(found: Findings) -> list[dict[str, Any]]:
    adam = "adam_drift (head's use only)" if "head's use only" in found.parameters else "adam_drift"
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for drift in (row for row in found.drifts if row.match == "row-weight"):
        row = rows.setdefault((drift.mode, drift.direction), {"mode": drift.mode, "length": drift.direction})
        if drift.metric == "adam":
            row |= {adam: drift.drift, "adam_t": drift.t}
        else:
            row |= {"drift": drift.drift, "ci_low": drift.low, "ci_high": drift.high, "t": drift.t, "raw": drift.raw}
    for drift in found.drifts:
        rows[drift.mode, drift.direction]["note"] = drift.note
    return list(rows.values())


def _beside_rows(found: Findings) -> list[dict[str, Any]]:
    """Beside a mean drift of incorrect length: median, sign test, the other matching, elasticity and imbalance."""
    of = {(row.mode, row.match): row for row in _of_incorrect(found)}
    return [
        {"mode": facts.mode, "median": of[facts.mode, "row-weight"].median,
         "sign_p": of[facts.mode, "row-weight"].sign_p, "at_equal_norm": of[facts.mode, "gradient-norm"].drift,
         "at_equal_norm_t": of[facts.mode, "gradient-norm"].t, "elasticity_incorrect": facts.elasticity_incorrect,
         "sign_length_imbalance": facts.sign_length_imbalance}
        for facts in found.mechanism
    ]  # fmt: skip


def _of_incorrect(found: Findings) -> Iterator[Drift]:
    metric = found.drifts[0].metric
    return (row for row in found.drifts if (row.direction, row.metric) == ("incorrect", metric))


def _dose_rows(found: Findings) -> list[dict[str, Any]]:
    rows: dict[float, dict[str, Any]] = {}
    for dose in (dose for dose in found.doses if dose.metric == found.doses[0].metric):
        for point in dose.points:
            rows.setdefault(point.alpha, {"alpha": point.alpha}).update({
                dose.direction: point.drift.drift, f"{dose.direction}_t": point.drift.t,
                f"{dose.direction}_theory": point.theory,
            })  # fmt: skip
    return list(rows.values())


def _forecast_lines(found: Findings) -> Iterator[str]:
    for row in found.forecasts:
        if row.change_tokens is not None:
            power = "" if row.power is None else f"; power with {row.seeds} seeds {row.power:.2f}"
            yield (
                f"{row.mode}: a run of {row.steps} steps x {row.rows_per_step} completions would move incorrect length "
                f"by {row.change_tokens:+.1f} [{row.low_tokens:.1f}, {row.high_tokens:.1f}] tokens vs "
                f"seq-mean-token-sum (parameters: {found.parameters}), noise between runs {row.noise_tokens:.1f}{power}"
            )
        elif row.pairs_needed:
            yield f"{row.mode}: no forecast, its drift may be 0; about {row.pairs_needed} pairs would settle the sign"
