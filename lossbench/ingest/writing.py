"""One run's folder: its completions and steps as parquet, and its run.json."""

from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lossbench.errors import UsageError
from lossbench.ingest.base import IngestedRun, Request
from lossbench.ingest.curves import look_alikes, refuse_other_training
from lossbench.ingest.fields import CHARACTERS, TOKENS
from lossbench.ingest.staging import SPLITS, Numbered
from lossbench.loss.modes import Mode
from lossbench.store.read import RUN_FILE
from lossbench.store.schema import schema_for
from lossbench.store.write import as_arrow, write_json, write_table

_NO_CLAIM_WITHOUT = {
    "verdicts": "no column says which completions are correct (--map correct=COLUMN, or --correct-above for rewards)",
    "in_tokens": "no lengths in tokens (--tokenizer, or --map length=COLUMN)",
}
_END_UNKNOWN = (
    "lengths are counted from text, and the log does not say which completions ended: those that did are one token "
    "short, as their EOS is not counted (--map terminated=COLUMN)"
)
_UNIQUE = "completion"  # no two are alike, so a dictionary of them would not pay


def write_run(
    run: IngestedRun, run_id: str, mode: Mode, scratch: Path, request: Request
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Write one run below `scratch`: its row of sweep.json, and its run.json; None where nothing of it can be read."""
    folder = scratch / run_id
    folder.mkdir()
    constant = {"run_id": run_id, **mode.labels, "seed": run.seed}
    samples = request.num_generations or run.num_generations
    shift = _first_step(run, request)
    tables: dict[str, dict[str, Any]] = {}
    summed: list[dict[str, Any]] = []
    for split in SPLITS:
        rows = request.staging.number(run.keys, split, samples, shift if split == "rollouts" else 0)
        tables[split] = {**rows.facts, "in_tokens": rows.in_tokens or None}
        if rows.facts["rows"]:
            _write_rows(folder / f"{split}.parquet", rows, split, constant)
        if split == "rollouts":
            summed = rows.steps()
            if rows.twice():
                run.notes.append("every completion is there twice: was the log appended to itself?")
    request.staging.problems(run.keys, run.name, run.damage)
    if not tables["rollouts"]["rows"]:
        refuse_other_training(run)
    steps = _merged(run.logs, summed, prefer_rows="length" in request.columns)
    if not steps and not tables["evals"]["rows"]:
        request.damage.add(str(run.source), f"no row of run '{run.name}' can be read{run.damage.first_place()}")
        return None
    run.notes += _rewards_differ(run.logged_rewards, summed)
    write_table(folder / "steps.parquet", "steps", [{**constant, **row} for row in steps])
    done = max((row["step"] for row in steps), default=0)
    if run.steps_planned and 0 < done < run.steps_planned:
        run.notes.append(f"stopped at step {done} of {run.steps_planned}")
    run.notes += _missing(tables)
    used = {part for column in run.read.values() for part in (column, *column.split(" + "))}
    unused = [name for name in run.seen if name not in used]
    state = {
        "status": "completed",
        "source": str(run.source),
        "steps_done": done,
        "tables": {"steps": len(steps), **{split: facts["rows"] for split, facts in tables.items()}},
        **{split: facts["rows"] for split, facts in tables.items()},
        "length_unit": _length_unit(run, tables, steps),
        "name": run.name,
        "columns": run.read,
        "not_used": unused,
        "look_alikes": look_alikes(run.read, unused),
        "damaged": run.damage.count,
        "damaged_examples": run.damage.examples,
        "notes": run.notes,
        "forced_tokens": request.forced_tokens,
    }
    write_json(folder / RUN_FILE, state)
    planned = {**mode.labels, "arm": mode.name, "seed": run.seed, "policy": None, "policy_seed": None}
    return planned | {"steps_planned": int(run.steps_planned or done)}, state


def _first_step(run: IngestedRun, request: Request) -> int:
    """By how much the run's steps are to be shifted, to be counted from 1: its logs are, here."""
    steps = {row["step"] for row in run.logs} | request.staging.steps(run.keys)
    if not {0, 1} <= steps:
        return 0
    run.notes.append("steps are counted from 0 in the log, from 1 here")
    run.logs = [{**row, "step": row["step"] + 1} for row in run.logs]
    run.logged_rewards = {step + 1: reward for step, reward in run.logged_rewards.items()}
    return 1


def _write_rows(path: Path, rows: Numbered, split: str, constant: Mapping[str, Any]) -> None:
    if (length := rows.facts["no_length"]) is not None:
        other = "name another column with --map length=COLUMN"
        raise UsageError(f"{constant['run_id']}: length {length:g} is no number of tokens: {other}")
    schema = schema_for(split)
    repetitive = [name for name in schema.names if name != _UNIQUE]
    options: dict[str, Any] = {"use_dictionary": repetitive, "write_statistics": repetitive}
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, **options) as file:
        for part in rows.tables(constant):
            file.write_table(as_arrow(split, part.select([name for name in part.column_names if name in schema.names])))


def _merged(logs: list[dict[str, Any]], summed: list[dict[str, Any]], prefer_rows: bool) -> list[dict[str, Any]]:
    """Steps of the trainer's log and of the completions in one; where both have a value, the trainer's own counts.

    `prefer_rows`: the mean length does not, as the user said which column holds the lengths of the rows.
    """
    rows: dict[int, dict[str, Any]] = {row["step"]: row for row in summed}
    own = {"generation", "length_mean"} if prefer_rows else {"generation"}
    for row in logs:
        before = rows.get(row["step"], {})
        kept = {name for name in own if before.get(name) is not None}
        rows[row["step"]] = before | {k: value for k, value in row.items() if value is not None and k not in kept}
    return [rows[step] for step in sorted(rows)]


def _rewards_differ(logged: Mapping[int, float], summed: list[dict[str, Any]]) -> list[str]:
    """A note where the rewards of the completions do not have the mean that the trainer logged."""
    means = {row["step"]: row["reward_mean"] for row in summed if row["reward_mean"] is not None}
    apart = [s for s in sorted(means) if s in logged and not isclose(means[s], logged[s], rel_tol=1e-3, abs_tol=1e-3)]
    if not apart:
        return []
    example = f"{means[apart[0]]:.4g} vs {logged[apart[0]]:.4g} at step {apart[0]}"
    return [
        f"mean reward of the completions is not the logged reward at {len(apart)} of {len(means)} steps ({example}): "
        "weights that the log does not hold, completions that it left out, or another column (--map reward=COLUMN)"
    ]


def _missing(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Notes on what the completions do not say."""
    rollouts = tables["rollouts"]
    notes = [text for name, text in _NO_CLAIM_WITHOUT.items() if rollouts["rows"] and not rollouts[name]]
    return notes + [_END_UNKNOWN] * any(facts["end_unknown"] for facts in tables.values())


def _length_unit(run: IngestedRun, tables: Mapping[str, Mapping[str, Any]], steps: list[dict[str, Any]]) -> str | None:
    units = {TOKENS if t["in_tokens"] else CHARACTERS for t in tables.values() if t["in_tokens"] or t["texts"]}
    if len(units) > 1:
        raise UsageError(f"'{run.source}': lengths of rollouts and of evaluations differ in unit: give --tokenizer")
    return next(iter(units), TOKENS if any(row.get("length_mean") is not None for row in steps) else None)
