"""From a log at a path to a sweep's folder: finds the format, reads its runs, writes them whole or not at all."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.ingest import FORMATS
from lossbench.ingest.background import Writers
from lossbench.ingest.base import Damage, IngestedRun, Request, run_folders
from lossbench.ingest.scratch import move_in, only_left_over, scratch_folder
from lossbench.ingest.sink import CHARACTERS, TOKENS, Reading, RolloutSink
from lossbench.loss.modes import Mode, folder_name, parse_mode
from lossbench.store.read import RUN_FILE, SWEEP_FILE, is_sweep, read_json
from lossbench.store.schema import SCHEMA_VERSION
from lossbench.store.write import write_json, write_table
from lossbench.version import __version__

AUTO, KIND = "auto", "ingested"
_FLAGS = {"mode": "; --mode sets it", "seed": "; --seed sets it"}
_NO_CLAIM_WITHOUT = {
    "correct": "no column says which completions are correct (--map correct=COLUMN, or --correct-above for the reward)",
    "length_tokens": "no lengths in tokens (--tokenizer, or --map length=COLUMN)",
}
_END_UNKNOWN = (
    "lengths are counted from text, and the log does not say which completions ended: those that did are one token "
    "short, as their EOS is not counted (--map terminated=COLUMN)"
)


@dataclass
class Ingested:
    """What was read: one entry of `runs` per run (its run.json, with notes for the user), and what was damaged."""

    out: Path
    format: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)


def detect(path: Path) -> str:
    """Name of the one format that the files at `path` (or in its subfolders) have.

    Raises UsageError where there is none, or more than one. A table is only one where no other format claims the path.
    """
    if not path.exists():
        raise UsageError(f"'{path}': no such file or folder")
    clues = {
        name: clue
        for name, kind in FORMATS.items()
        if (folders := run_folders(path, kind.found)) and (clue := kind.found(folders[0]))
    }
    if path.is_file() and len(clues) > 1:
        clues.pop("csv", None)
    if not clues:
        raise UsageError(f"'{path}' looks like none of {', '.join(FORMATS)}: name the format with --as, or its folder")
    if len(clues) > 1:
        both = " and ".join(f"{name} ({clue})" for name, clue in clues.items())
        raise UsageError(f"'{path}' holds two formats, {both}: choose one with --as")
    return next(iter(clues))


def ingest(path: Path, out: Path, kind: str, request: Request, reading: Reading) -> Ingested:
    """Read the log at `path` into the sweep folder `out`; runs of an ingested sweep already there are kept.

    Raises UsageError where the format, a mode or a column is unknown, nothing can be read, or the length units of the
    runs differ. Nothing is left behind then.
    """
    if kind != AUTO and kind not in FORMATS:
        raise UsageError(unknown("format", kind, [AUTO, *FORMATS]))
    name = detect(path) if kind == AUTO else kind
    if not path.exists():
        raise UsageError(f"'{path}': no such file or folder")
    _existing(out)
    result = Ingested(out, name, damage=request.damage)
    with scratch_folder(out) as scratch:
        spec = _existing(out)  # another call may have added to it until now
        names = {run_id: f"{run_id} in {out}" for run_id in spec["runs"]}
        request.scratch = scratch
        with Writers() as writers:
            for run in FORMATS[name].read(path, request):
                mode = _identify(run, request)
                digest = hashlib.sha256(f"{run.source.resolve()}|{mode.name}|{run.seed}".encode()).hexdigest()[:8]
                run_id = f"{folder_name(mode.name)}-s{run.seed}-{digest}"
                # A run of the same id from an earlier call is this one, and is replaced.
                others = {
                    other: axes for other, axes in spec["runs"].items() if other != run_id or other in result.runs
                }
                _refuse_twin(others, run, names, path)
                names[run_id] = run.name
                written = _write_run(run, run_id, mode, scratch, request, reading, writers)
                if written is not None:
                    spec["runs"][run_id], result.runs[run_id] = written
        if not result.runs:
            raise UsageError(f"'{path}' holds no {name} log{_where(request.damage)}")
        _refuse_unused(request, path, name)
        spec["length_unit"] = _one_unit(spec, result.runs)
        spec["sources"] = sorted({*spec["sources"], str(path)})
        move_in(scratch, out, result.runs)
        write_json(out / SWEEP_FILE, spec)
    return result


def _refuse_twin(others: Mapping[str, Any], run: IngestedRun, names: Mapping[str, str], path: Path) -> None:
    """Raise UsageError where a run of the sweep has the mode and seed of `run`: seeds are paired, one would not count.

    `names`: what to call the others, by id.
    """
    for other, axes in others.items():
        if (axes["mode"], axes["seed"]) == (run.mode, run.seed):
            raise UsageError(
                f"'{path}': run {run.mode} seed {run.seed} is there twice, '{names[other]}' and '{run.name}': ingest "
                "each by itself with a --seed of its own; in a table, name runs <mode>-s<seed> or give a column seed"
            )


def _refuse_unused(request: Request, path: Path, kind: str) -> None:
    """Raise UsageError on a field of --map that the log had no use for."""
    for field_name, column in request.columns.items():
        if field_name not in request.used:
            raise UsageError(
                f"'{path}': --map {field_name}={column} names nothing that is read from this {kind} log"
                f"{_FLAGS.get(field_name, '')}"
            )


def _existing(out: Path) -> dict[str, Any]:
    if is_sweep(out):
        spec = read_json(out / SWEEP_FILE)
        if spec.get("kind") != KIND:
            raise UsageError(f"'{out}' is a sweep that lossbench ran: choose another --out for ingested runs")
        return spec
    if out.exists() and not only_left_over(out):
        raise UsageError(f"'{out}' exists and is not a sweep: choose another --out")
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "recipe": {"name": out.name},
        "versions": {"lossbench": __version__},
        "length_unit": None,
        "sources": [],
        "runs": {},
    }


def _write_run(
    run: IngestedRun,
    run_id: str,
    mode: Mode,
    scratch: Path,
    request: Request,
    reading: Reading,
    writers: Writers,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Write one run below `scratch`: its row of sweep.json, and its run.json; None where nothing of it can be read."""
    axes = {
        "mode": mode.name,
        "loss_type": mode.loss_type,
        "agg_mode": mode.agg_mode,
        "scale_rewards": mode.scale_rewards,
    }
    folder = scratch / run_id
    folder.mkdir()
    constant = {"run_id": run_id, **axes, "seed": run.seed}
    generations = request.num_generations or run.num_generations
    sinks = {
        name: RolloutSink(folder / f"{name}.parquet", constant, reading, writers, generations)
        for name in ("rollouts", "evals")
    }
    for table, block in run.blocks:
        if block.num_rows:
            sinks[table].add(block)
    for sink in sinks.values():
        sink.close()
    steps = _merged(run.logs, sinks["rollouts"], prefer_rows="length" in request.columns)
    if not steps and not sinks["evals"].rows:
        request.damage.add(str(run.source), f"no row of run '{run.name}' can be read{_where(run.damage)}")
        return None
    run.notes += _rewards_differ(run.logged_rewards, sinks["rollouts"])
    write_table(folder / "steps.parquet", "steps", [{**constant, **row} for row in steps])
    done = max((row["step"] for row in steps), default=0)
    planned = {**axes, "arm": mode.name, "seed": run.seed, "policy": None, "policy_seed": None}
    planned["steps_planned"] = int(run.steps_planned or done)
    state = _state(run, sinks, steps, done)
    write_json(folder / RUN_FILE, state)
    return planned, state


def _identify(run: IngestedRun, request: Request) -> Mode:
    """Set the run's mode, by its stored name, and its seed: what the caller said, else what the log says."""
    name = request.mode or run.mode
    if name is None:
        raise UsageError(
            f"'{run.source}': the log does not say which loss mode trained run '{run.name}': give --mode "
            "(see `lossbench modes`), or name the run's folder <mode>-s<seed>"
        )
    try:
        mode = parse_mode(str(name))
    except ValueError as error:
        raise UsageError(f"'{run.source}': {one_line(error, 1000)}") from None
    seed = request.seed if request.seed is not None else run.seed
    if seed is None:
        run.notes.append("seed 0 assumed: the log names none; --seed sets it")
    run.mode, run.seed = mode.name, seed or 0
    return mode


def _merged(logs: list[dict[str, Any]], sink: RolloutSink, prefer_rows: bool) -> list[dict[str, Any]]:
    """Steps of the trainer's log and of the completions in one; where both have a value, the trainer's own counts.

    `prefer_rows`: the mean length does not, as the user said which column holds the lengths of the rows.
    """
    rows: dict[int, dict[str, Any]] = {row["step"]: row for row in sink.sums.rows()}
    for row in logs:
        known = {name: value for name, value in row.items() if value is not None}
        before = rows.get(row["step"], {})
        if prefer_rows and before.get("length_mean") is not None:
            known.pop("length_mean", None)
        rows[row["step"]] = {**before, **known}
    for step, number in sink.generations.items():
        rows[step]["generation"] = number
    return [rows[step] for step in sorted(rows)]


def _rewards_differ(logged: Mapping[int, float], sink: RolloutSink) -> list[str]:
    """A note where the rewards of the completions do not have the mean that the trainer logged."""
    means = {row["step"]: row["reward_mean"] for row in sink.sums.rows() if row["reward_mean"] is not None}
    apart = [s for s in sorted(means) if s in logged and not isclose(means[s], logged[s], rel_tol=1e-3, abs_tol=1e-3)]
    if not apart:
        return []
    example = f"{means[apart[0]]:.4g} against {logged[apart[0]]:.4g} at step {apart[0]}"
    return [
        f"mean reward of the completions is not the logged reward at {len(apart)} of {len(means)} steps ({example}): "
        "weights that the log does not hold, completions that it left out, or another column (--map reward=COLUMN)"
    ]


def _state(
    run: IngestedRun, sinks: Mapping[str, RolloutSink], steps: list[dict[str, Any]], done: int
) -> dict[str, Any]:
    units = {sink.unit for sink in sinks.values()} - {None}
    if len(units) > 1:
        raise UsageError(f"'{run.source}': lengths of rollouts and of evaluations differ in unit: give --tokenizer")
    if not units and any(row.get("length_mean") is not None for row in steps):
        units = {TOKENS}
    unit = next(iter(units), None)
    notes = [*run.notes, *(text for name, text in _NO_CLAIM_WITHOUT.items() if sinks["rollouts"].nulls_only(name))]
    if any(sink.end_unknown for sink in sinks.values()):
        notes.append(_END_UNKNOWN)
    return {
        "status": "completed",
        "source": str(run.source),
        "steps_done": done,
        "tables": {"steps": len(steps), **{name: sink.rows for name, sink in sinks.items()}},
        "rollouts": sinks["rollouts"].rows,
        "evals": sinks["evals"].rows,
        "length_unit": unit,
        "damaged": run.damage.count,
        "damaged_examples": run.damage.examples,
        "notes": notes,
    }


def _one_unit(spec: Mapping[str, Any], runs: Mapping[str, dict[str, Any]]) -> str | None:
    units = {state["length_unit"]: run_id for run_id, state in runs.items() if state["length_unit"]}
    if spec["length_unit"] and spec["runs"].keys() - runs.keys():
        units.setdefault(spec["length_unit"], "the runs already there")
    if len(units) > 1:
        raise UsageError(
            f"mixed units: lengths of {units[TOKENS]} are in tokens, of {units[CHARACTERS]} in characters: "
            "give --tokenizer"
        )
    return next(iter(units), None)


def _where(damage: Damage) -> str:
    return f": {damage.examples[0]}" if damage.examples else ""
