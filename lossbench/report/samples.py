"""Sample completions: the shortest, median and longest, incorrect and correct, early and late, of one run an arm."""

from typing import Any

from lossbench.metrics.length import records
from lossbench.report.data import Arm, ReportData
from lossbench.report.document import Details, Sample
from lossbench.report.numbers import count, shortened

_NUMBERS = ["step", "length_tokens", "correct", "terminated"]


def arm_samples(data: ReportData, arm: Arm) -> Details | None:
    """Up to twelve completions of the arm's first run that has any; None where no text was kept."""
    runs = [run for run in records(data.summary.runs) if run["arm"] == arm.name]
    for run in sorted(runs, key=lambda run: run["status"] != "completed"):
        if data.summary.by_run[str(run["run_id"])].row["source"] == "rollouts":
            items = _run_samples(data, run)
            seed = "" if run["seed"] is None or run["seed"] != run["seed"] else f", seed {int(run['seed'])}"
            return Details(f"{arm.name}{seed}: {count(len(items), 'completion')}", items) if items else None
    return None


def _run_samples(data: ReportData, run: dict[str, Any]) -> tuple[Sample, ...]:
    run_id, planned = str(run["run_id"]), run["steps_planned"]
    steps = int(planned) if planned and planned == planned else int(data.summary.by_run[run_id].sums["step"].max())
    table = data.sweep.query(run_id, "rollouts", _NUMBERS, lambda source: _choice_sql(source, steps))
    rows = table.to_pylist() if table is not None else []
    if not rows:
        return ()
    places = ", ".join(str(row["place"]) for row in rows)
    texts = data.sweep.query(
        run_id, "rollouts", ["prompt", "completion"], lambda source: f"{_numbered(source)} WHERE place IN ({places})"
    )
    by_place = {row["place"]: row for row in texts.to_pylist()} if texts is not None else {}
    found = []
    for row in rows:
        text = by_place.get(row["place"])
        if text is not None and text["completion"] is not None:
            ending = ", cut at the cap" if row["terminated"] is False else ""
            facts = f"{count(row['length_tokens'], 'token')}{ending}, step {row['step']}"
            prompt, completion = (shortened(text[name] or "") for name in ("prompt", "completion"))
            found.append(Sample(row["label"], facts, prompt, completion))
    return tuple(found)


def _numbered(source: str) -> str:
    """SQL for the rows with their place in the file."""
    return f"SELECT * FROM (SELECT row_number() OVER () AS place, * FROM {source})"


def _choice_sql(source: str, steps: int) -> str:
    """SQL for label, place and numbers of the rows to show; of equal lengths the first in the file comes first.

    Texts are left to a second query, so that only those of the chosen rows are loaded.
    """
    return f"""
    WITH known AS (SELECT * FROM ({_numbered(source)}) WHERE correct IS NOT NULL AND length_tokens IS NOT NULL),
    kinds AS (
        SELECT 'early' AS time, * FROM known WHERE (step - 1) * 5 < {steps} UNION ALL
        SELECT 'late' AS time, * FROM known WHERE ({steps} - step) * 5 < {steps}),
    ranked AS (
        SELECT *, count(*) OVER (PARTITION BY time, correct) AS n,
            row_number() OVER (PARTITION BY time, correct ORDER BY length_tokens, place) - 1 AS rank
        FROM kinds)
    SELECT time || CASE WHEN correct THEN ', correct, ' ELSE ', incorrect, ' END
            || CASE rank WHEN 0 THEN 'shortest' WHEN n // 2 THEN 'median' ELSE 'longest' END AS label,
        place, length_tokens, terminated, step
    FROM ranked WHERE rank IN (0, n // 2, n - 1) ORDER BY time, correct, rank"""
