"""A sweep's folder: its plan on disk, what is done in it, and who holds it."""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.locks import GATE, exclusive
from lossbench.store.provenance import command_line, git_state, machine, versions
from lossbench.store.read import RUN_FILE, SWEEP_FILE, read_json
from lossbench.store.write import PARTS, refuse_links, write_json
from lossbench.sweep.recipe import Recipe
from lossbench.training.checkpoint import CHECKPOINTS, newest_checkpoint
from lossbench.training.contents import Contents
from lossbench.training.hashed_fields import hash_of, hashed_fields
from lossbench.training.run_spec import RunSpec

SWEEP_VERSION = 1
JOB_FILE = "job.json"  # in a run's folder: the job of a cluster that may work on it now


def default_folder(recipe: Recipe, processes: int = 1, root: Path = Path("results")) -> Path:
    """`results/<recipe>-<hash6>`: the same command finds the same folder again."""
    return root / f"{recipe.name}-{hash_of(shared_by_all(recipe, processes))[:6]}"


def fresh_folder(folder: Path) -> Path:
    """`folder`, or with the first free number behind it."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([folder], numbered) if not candidate.exists())


def new_folder(folder: Path) -> Path:
    """Make `folder`, or the next with a number behind it where another call has just made that one."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        while True:
            candidate = fresh_folder(folder)
            with suppress(FileExistsError):
                candidate.mkdir()
                return candidate
    except OSError as error:
        raise UsageError(f"cannot make '{folder}': {error.strerror}") from None


def check_folder(folder: Path, recipe: Recipe, runs: Sequence[RunSpec], processes: int = 1) -> None:
    """Refuse a folder that cannot be written or belongs to another plan; writes nothing. Raises UsageError."""
    if (folder / SWEEP_FILE).exists():
        known = read_json(folder / SWEEP_FILE)
        _refuse_other_plan(folder, known, shared_by_all(recipe, processes))
        _refuse_other_runs(folder, known.get("runs", {}), runs)
    elif folder.is_dir() and any(path for path in folder.iterdir() if not path.name.startswith(".")):
        raise UsageError(f"'{folder}' is not empty and not a sweep: choose another --out")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        fault = "writable" if existing.is_dir() else "a folder"
        raise UsageError(f"cannot write to '{folder}': '{existing}' is not {fault}")


def shared_by_all(recipe: Recipe, processes: int = 1) -> dict[str, Any]:
    """Settings shared by all runs of one folder."""
    return {**recipe.shared(), **({"processes": processes} if processes > 1 else {})}


def _refuse_other_plan(folder: Path, known: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    if known.get("kind") != "sweep":
        raise UsageError(f"'{folder}' holds logs of another trainer, not a sweep of lossbench: choose another --out")
    if changed := _changes(known.get("shared", {}), ours):
        raise UsageError(f"'{folder}' belongs to another plan ({changed}): choose another --out or --fresh")


def _changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{key}: {json.dumps(theirs.get(key))} there, {json.dumps(ours.get(key))} here"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    )


def _refuse_other_runs(folder: Path, planned: Mapping[str, Any], runs: Sequence[RunSpec]) -> None:
    """One arm and seed is one run: a second one under other settings would count twice in every figure."""
    known = {(run["arm"], run["seed"]): run_id for run_id, run in planned.items()}
    for spec in runs:
        there = known.get((spec.arm, spec.seed), spec.run_id)
        if there != spec.run_id:
            raise UsageError(
                f"'{folder}' has mode '{spec.arm}', seed {spec.seed} with other settings of its own "
                f"({_difference(run_dir(folder, there), spec)}): choose another --out, or give the mode another label"
            )


def _difference(there: Path, spec: RunSpec) -> str:
    """The settings in which a run of the folder differs from `spec`, as far as its run.json tells."""
    recorded = read_json(there / RUN_FILE).get("spec", {}) if (there / RUN_FILE).exists() else {}
    theirs, ours = ({**fields, **fields.get("settings", {})} for fields in (recorded, hashed_fields(spec)))
    hashed = ours.keys() - {"settings"} if recorded else ()
    changed = _changes({key: theirs.get(key) for key in hashed}, {key: ours[key] for key in hashed})
    return changed or f"run {there.name} there, {spec.run_id} here"


def check_run_folders(folder: Path, runs: Sequence[RunSpec]) -> None:
    """Refuse links, which could lead anywhere, and checkpoints that belong to other runs. Raises UsageError."""
    for spec in runs:
        refuse_links(folder, *(f"runs/{spec.run_id}/{name}" for name in (PARTS, CHECKPOINTS, "log.txt", "tensorboard")))
        newest_checkpoint(run_dir(folder, spec.run_id), spec)


def check_jobs(folder: Path, runs: Sequence[RunSpec], executor: str) -> None:
    """Refuse runs on which jobs of another executor may be at work. Raises UsageError."""
    for spec in runs:
        path = run_dir(folder, spec.run_id) / JOB_FILE
        if path.exists() and (theirs := read_json(path))["executor"] != executor:
            raise UsageError(
                f"run {spec.run_id} was handed to {theirs['executor']} as job {theirs['job']}: go on with "
                f"--executor {theirs['executor']}, or end that job and remove '{path}'"
            )


def check_contents(folder: Path, contents: Contents) -> None:
    """Refuse to add runs that read other contents than those that the folder already holds. Raises UsageError."""
    known = read_json(folder / SWEEP_FILE) if (folder / SWEEP_FILE).exists() else {}
    there = known.get("contents", {})
    changed = [key for key, found in contents.items() if there.get(key, found)["sha256"] != found["sha256"]]
    made = (run_dir(folder, run_id) for run_id in known.get("runs", {}))
    if changed and any(has_results(path) for path in made):
        raise UsageError(
            f"'{folder}' was made with other contents of {', '.join(changed)}; its runs and new ones would not be one "
            "experiment: start over with --fresh, or give another --out"
        )


def has_results(run: Path) -> bool:
    """Whether the run is completed, or left a checkpoint that it would continue from."""
    with suppress(UsageError):
        if read_json(run / RUN_FILE).get("status") == "completed":
            return True
    return any(run.glob(f"{CHECKPOINTS}/checkpoint-*"))


def reproducing_commands(spec: Mapping[str, Any]) -> list[str]:
    """The fewest, in the order they were given, of the commands recorded in sweep.json that together make its runs."""
    wanted, commands = set(spec.get("runs") or {}), []
    for call in reversed(_calls(spec)):
        if wanted & set(call.get("runs", ())):
            wanted -= set(call["runs"])
            commands.insert(0, str(call.get("command")))
    return commands


def _calls(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls that sweep.json records; before there was a list it kept the first one's."""
    first = {name: spec.get(name) for name in ("command", "versions", "git", "machine")}
    return spec.get("calls") or ([{**first, "runs": list(spec.get("runs", {}))}] if spec.get("command") else [])


def write_plan(
    folder: Path, recipe: Recipe, runs: Sequence[RunSpec], processes: int = 1, claims_fingerprint: str | None = None,
    *, mine: Sequence[RunSpec] | None = None, command: str | None = None, contents: Contents | None = None,
) -> None:  # fmt: skip
    """Create the folder, or extend its plan with runs that are new; earlier entries stay as they are.

    `claims_fingerprint` stands for the wording and margins of the recipe's claims as they are now, before the runs.
    `mine` are the runs that this call, given as `command`, covers (none where nothing was left to make); `contents`
    fingerprints what they read.
    """
    made = {"command": command or command_line(), "versions": versions(), "git": git_state(), "machine": machine()}
    call = {**made, "runs": [spec.run_id for spec in (runs if mine is None else mine)]}
    shared, path = shared_by_all(recipe, processes), folder / SWEEP_FILE
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / GATE):
        known = read_json(path) if path.exists() else {}
        claims, calls = known.get("claims", recipe.claims), _calls(known)
        plan = {
            "sweep_version": SWEEP_VERSION, "kind": "sweep", "name": recipe.name,
            "shared": shared, "plan_hash": hash_of(shared),
            "recipe": recipe.model_dump(mode="json"), "baseline": recipe.baseline,
            "claims": claims, "claims_changed": known.get("claims_changed", False) or claims != recipe.claims,
            "claims_fingerprint": known.get("claims_fingerprint", claims_fingerprint),
            **{name: known.get(name, value) for name, value in made.items()},
            "calls": [*calls, *([call] if call["runs"] and call not in calls else ())],
            "contents": known.get("contents", {}) | (contents or {}),
            "runs": known.get("runs", {}) | {spec.run_id: _planned(spec) for spec in runs},
        }  # fmt: skip
        if plan != known:
            write_json(path, plan)


def _planned(spec: RunSpec) -> dict[str, Any]:
    labels = {key: value for key, value in spec.labels().items() if key != "run_id"}
    policy = {"policy": spec.policy, "policy_seed": spec.policy_seed}
    return {"arm": spec.arm, **labels, **policy, "steps_planned": spec.settings.steps}


def run_dir(folder: Path, run_id: str) -> Path:
    """The folder of one run."""
    return folder / "runs" / run_id


def run_state(folder: Path, run_id: str) -> dict[str, Any]:
    """State in run.json; `pending` if it is missing. A completed run without its tables is not done."""
    path = run_dir(folder, run_id)
    if not (path / RUN_FILE).exists():
        return {"status": "pending"}
    try:
        state = read_json(path / RUN_FILE)
    except UsageError as error:
        return {"status": "pending", "reason": str(error)}
    if state.get("status") == "completed" and not _is_whole(path, state.get("tables", {})):
        return {**state, "status": "interrupted", "reason": "its tables are missing or damaged"}
    return state


def _is_whole(path: Path, tables: Mapping[str, int]) -> bool:
    """Whether the tables that run.json counts are there with all their rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return all(pq.read_metadata(path / f"{name}.parquet").num_rows == rows for name, rows in tables.items())
    except (OSError, pa.ArrowException):
        return False


def mark(folder: Path, run_id: str, status: str, reason: str | None, spec: RunSpec) -> None:
    """Record the end of a run that could not record it itself."""
    path = run_dir(folder, run_id)
    path.mkdir(parents=True, exist_ok=True)
    state: Mapping[str, Any] = {"spec": spec.model_dump(mode="json"), "steps_planned": spec.settings.steps}
    with suppress(UsageError):
        state = read_json(path / RUN_FILE)
    state = {**state, "status": status, "reason": reason or state.get("reason")}
    try:
        write_json(path / RUN_FILE, state)
    except OSError as error:
        if error.errno != errno.ENOSPC or (path / RUN_FILE).is_symlink():
            raise
        # A full disk has no room for a second copy, but it has that of the first.
        (path / RUN_FILE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
