"""Sample completions: the shortest, median and longest, incorrect and correct, early and late, of one run an arm."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lossbench.metrics.length import is_early, is_late, records
from lossbench.metrics.step_sums import as_columns
from lossbench.report.data import Arm, ReportData
from lossbench.report.document import Sample, Samples
from lossbench.report.numbers import clean, count, shortened

_KEY = ["step", "generation", "group", "sample"]
_NUMBERS = [*_KEY, "length_tokens", "correct", "terminated"]


def arm_samples(data: ReportData, arm: Arm) -> Samples | None:
    """Up to twelve completions of the arm's first run that has any; None where no text was kept."""
    runs = [run for run in records(data.summary.runs) if run["arm"] == arm.name]
    for run in sorted(runs, key=lambda run: run["status"] != "completed"):
        if data.summary.by_run[str(run["run_id"])].row["source"] == "rollouts":
            items = _run_samples(data, run)
            seed = "" if run["seed"] is None or run["seed"] != run["seed"] else f", seed {int(run['seed'])}"
            return Samples(f"{arm.name}{seed}", items) if items else None
    return None


def _run_samples(data: ReportData, run: dict[str, Any]) -> tuple[Sample, ...]:
    """The first group of a prompt's completions is named by (generation, group); `sample` numbers them within it."""
    run_id = str(run["run_id"])
    rows = as_columns(data.sweep.run_table(run_id, "rollouts", _NUMBERS))
    planned = run["steps_planned"]
    steps = int(planned) if planned and planned == planned else int(np.nanmax(rows["step"], initial=0))
    chosen = _choose(rows, steps)
    texts = _texts(data, run_id, {row for _, row in chosen}, rows)
    found = []
    for label, row in chosen:
        prompt, completion = texts.get(_key(rows, row), (None, None))
        if completion is None:
            continue
        length = int(rows["length_tokens"][row])
        ending = {1.0: "", 0.0: ", cut at the cap"}.get(float(rows["terminated"][row]), "")
        facts = f"{count(length, 'token')}{ending}, step {int(rows['step'][row])}"
        found.append(Sample(label, facts, shortened(clean(prompt or "")), shortened(clean(completion))))
    return tuple(found)


def _choose(rows: dict[str, np.ndarray], steps: int) -> list[tuple[str, int]]:
    """(label, row number) of the shortest, median and longest of each kind, equal lengths in the order of the file."""
    chosen = []
    known = np.isfinite(rows["length_tokens"])
    for when, inside in (("early", is_early), ("late", is_late)):
        for kind, flag in (("incorrect", 0), ("correct", 1)):
            places = np.flatnonzero(known & inside(rows["step"], steps) & (rows["correct"] == flag))
            places = places[np.argsort(rows["length_tokens"][places], kind="stable")]
            picks = [("shortest", 0), ("median", len(places) // 2), ("longest", len(places) - 1)]
            for name, place in picks[: len(places)]:
                chosen.append((f"{when}, {kind}, {name}", int(places[place])))
    return chosen


def _key(rows: dict[str, np.ndarray], row: int) -> tuple[float, ...]:
    return tuple(float(np.nan_to_num(rows[name][row], nan=-1.0)) for name in _KEY)


def _texts(
    data: ReportData, run_id: str, chosen: set[int], rows: dict[str, np.ndarray]
) -> dict[tuple[float, ...], tuple[str | None, str | None]]:
    """Prompt and completion of the chosen rows, read by their numbers so that no other text is loaded."""
    condition: pc.Expression | None = None
    for row in chosen:
        one = pc.scalar(True)
        for name in _KEY:
            value = rows[name][row]
            one = one & (pc.field(name) == int(value) if np.isfinite(value) else pc.field(name).is_null())
        condition = one if condition is None else condition | one
    if condition is None:
        return {}
    table = data.sweep.run_table(run_id, "rollouts", [*_KEY, "prompt", "completion"], condition)
    numbers = as_columns(table.select(_KEY))
    prompts, completions = (table.column(name).cast(pa.string()).to_pylist() for name in ("prompt", "completion"))
    return {_key(numbers, i): (prompts[i], completions[i]) for i in range(table.num_rows)}
