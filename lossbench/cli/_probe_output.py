"""Tables, figures and lines of `lossbench probe`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossbench.cli._output import print_table, show
from lossbench.probe.drift import Drift
from lossbench.probe.findings import Findings

_MOST_CUT = 0.05
Row = dict[str, Any]


def write_findings(out: Path, found: Sequence[Findings], say: Callable[[str], None]) -> None:
    """CSV and JSON of all findings, figures of the last policy probed."""
    import pandas as pd

    from lossbench.report.panels import save
    from lossbench.report.probe_figures import dose_picture, drift_picture
    from lossbench.store.write import refuse_links, write_json, write_text

    refuse_links(out, "probe")
    folder = out / "probe"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "drift.csv", pd.DataFrame(_drifts(found)).to_csv(index=False))
    write_json(folder / "probe.json", [one.as_dict() for one in found])
    last = found[-1]
    metric = last.drifts[0].metric
    save(drift_picture(last.drifts, metric), folder, "drift")
    save(dose_picture([dose for dose in last.doses if dose.metric == metric]), folder, "dose_response")
    say(f"wrote {folder}/drift.csv, probe.json, drift.png, dose_response.png (and .svg)")


def print_findings(found: Sequence[Findings], format: str, say: Callable[[str], None], detail: bool = False) -> None:
    """JSON: everything. CSV: every drift. Table, Markdown: a sentence and a row per mode; with `detail` all tables."""
    if format == "json":
        show(json.dumps([one.as_dict() for one in found], indent=2, allow_nan=False))
        return
    if format == "csv":
        print_table(_drifts(found), None, format)
        return
    for one in found:
        say(_headline(one))
        show(one.sentence)
        for rows in (_mode_rows(one), *(_detail(one) if detail else ())):
            print_table(rows, None, format)
        for line in _forecast_lines(one):
            say(line)


def _drifts(found: Sequence[Findings]) -> list[Row]:
    return [{"policy": one.policy, "step": one.step, **asdict(row)} for one in found for row in one.drifts]


def _headline(found: Findings) -> str:
    shares = ", ".join(
        f"{row.direction} {row.completions} (mean {row.length_mean:.1f} tokens)"
        for row in found.lengths[:2] if row.completions
    )  # fmt: skip
    text = f"{found.policy}, step {found.step}: {found.pairs} pairs, {found.completions} completions: {shares}; "
    text += f"parameters: {found.parameters}"
    cut = found.truncated_frac or 0
    if cut > _MOST_CUT:
        text += f"; warning: {cut:.0%} of the completions are cut at the cap, so their lengths are too short"
    return text


def _mode_rows(found: Findings) -> list[Row]:
    """Per mode the drift of wrong answers' length, its two parts, and the share that is cancelled."""
    parts = {part.mode: part for part in found.parts if part.metric == found.parts[0].metric}
    return [
        {"mode": mode, "wrong_length": row.drift, "ci_low": row.low, "ci_high": row.high,
         "from_wrong": parts[mode].from_wrong, "from_right": parts[mode].from_right, "rho": parts[mode].cancelled,
         "rho_low": parts[mode].cancelled_low, "rho_high": parts[mode].cancelled_high, "note": row.note}
        for (mode, match), row in _of_incorrect(found).items() if match == "row-weight"
    ]  # fmt: skip


def _detail(found: Findings) -> Iterator[list[Row]]:
    yield _drift_rows(found)
    yield _beside_rows(found)
    yield _dose_rows(found)
    yield [asdict(row) for row in found.slopes]
    yield [asdict(row) for row in found.curves if row.metric == found.curves[0].metric]


def _drift_rows(found: Findings) -> list[Row]:
    adam = "adam_drift (head's use only)" if "head's use only" in found.parameters else "adam_drift"
    rows: dict[tuple[str, str], Row] = {}
    for drift in (row for row in found.drifts if row.match == "row-weight"):
        row = rows.setdefault((drift.mode, drift.direction), {"mode": drift.mode, "length": drift.direction})
        if drift.metric == "adam":
            row |= {adam: drift.drift, "adam_t": drift.t}
        else:
            row |= {"drift": drift.drift, "ci_low": drift.low, "ci_high": drift.high, "t": drift.t, "raw": drift.raw}
    for drift in found.drifts:
        rows[drift.mode, drift.direction]["note"] = drift.note
    return list(rows.values())


def _beside_rows(found: Findings) -> list[Row]:
    """Beside a mean drift of incorrect length: median, sign test, the other matching, elasticity and imbalance."""
    rows = []
    for facts in found.mechanism:
        drift, at_norm = (_of_incorrect(found)[facts.mode, match] for match in ("row-weight", "gradient-norm"))
        rows.append({
            "mode": facts.mode, "median": drift.median, "sign_p": drift.sign_p, "at_equal_norm": at_norm.drift,
            "at_equal_norm_t": at_norm.t, "elasticity_incorrect": facts.elasticity_incorrect,
            "sign_length_imbalance": facts.sign_length_imbalance,
        })  # fmt: skip
    return rows


def _of_incorrect(found: Findings) -> dict[tuple[str, str], Drift]:
    """Drifts of incorrect length in the first metric, by mode and matching."""
    of = ("incorrect", found.drifts[0].metric)
    return {(row.mode, row.match): row for row in found.drifts if (row.direction, row.metric) == of}


def _dose_rows(found: Findings) -> list[Row]:
    rows: dict[float, Row] = {}
    for dose in (dose for dose in found.doses if dose.metric == found.doses[0].metric):
        for point in dose.points:
            row = rows.setdefault(point.alpha, {"alpha": point.alpha})
            drift, name = point.drift, dose.direction
            row |= {name: drift.drift, f"{name}_t": drift.t, f"{name}_theory": point.theory}
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
