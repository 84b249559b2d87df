"""A sweep's folder: its plan on disk, what is done in it, and who holds it."""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.store.provenance import command_line, git_state, machine, versions
from lossbench.store.read import RUN_FILE, SWEEP_FILE, read_json
from lossbench.store.write import write_json
from lossbench.sweep.recipe import Recipe, plan_hash
from lossbench.training.spec import RunSpec

SWEEP_VERSION = 1


def default_folder(recipe: Recipe, root: Path = Path("results")) -> Path:
    """`results/<recipe>-<hash6>`: the same command finds the same folder again."""
    return root / f"{recipe.name}-{plan_hash(recipe.shared())[:6]}"


def fresh_folder(folder: Path) -> Path:
    """`folder`, or with the first free number behind it."""
    candidate, number = folder, 2
    while candidate.exists():
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return candidate


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that cannot be written or belongs to another plan; writes nothing."""
    if (folder / SWEEP_FILE).exists():
        _refuse_other_plan(folder, recipe)
    elif folder.is_dir() and any(path for path in folder.iterdir() if not path.name.startswith(".")):
        raise UsageError(f"'{folder}' is not empty and not a sweep: choose another --out")
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError(f"cannot write to '{folder}': '{existing}' is not a folder")
    if not os.access(existing, os.W_OK) or _read_only(existing):
        raise UsageError(f"cannot write to '{folder}': '{existing}' is not writable")


def _read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _refuse_other_plan(folder: Path, recipe: Recipe) -> None:
    theirs, ours = read_json(folder / SWEEP_FILE).get("shared", {}), recipe.shared()
    changed = [
        f"{key}: {json.dumps(theirs.get(key))} there, {json.dumps(ours.get(key))} here"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    ]
    if changed:
        raise UsageError(f"'{folder}' belongs to another plan ({'; '.join(changed)}): choose another --out or --fresh")


def write_plan(folder: Path, recipe: Recipe, runs: list[RunSpec]) -> None:
    """Create the folder, or extend its plan with runs that are new; earlier entries stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SWEEP_FILE
    known = read_json(path) if path.exists() else {}
    planned: dict[str, Any] = dict(known.get("runs", {}))
    planned.update({spec.run_id: _planned(spec) for spec in runs})
    claims = known.get("claims", recipe.claims)
    plan = {
        "sweep_version": SWEEP_VERSION,
        "kind": "sweep",
        "name": recipe.name,
        "shared": recipe.shared(),
        "plan_hash": plan_hash(recipe.shared()),
        "recipe": recipe.model_dump(mode="json"),
        "baseline": recipe.baseline,
        "claims": claims,
        "claims_changed": known.get("claims_changed", False) or claims != recipe.claims,
        "command": known.get("command", command_line()),
        "versions": known.get("versions", versions()),
        "git": known.get("git", git_state()),
        "machine": known.get("machine", machine()),
        "runs": planned,
    }
    if plan != known:
        write_json(path, plan)


def _planned(spec: RunSpec) -> dict[str, Any]:
    labels = {key: value for key, value in spec.labels().items() if key != "run_id"}
    return {
        "arm": spec.arm, **labels, "policy": spec.policy, "policy_seed": spec.policy_seed,
        "steps_planned": spec.settings.steps,
    }  # fmt: skip


def run_dir(folder: Path, run_id: str) -> Path:
    """The folder of one run."""
    return folder / "runs" / run_id


def run_state(folder: Path, run_id: str) -> dict[str, Any]:
    """What run.json says; `pending` where there is none. A completed run without its tables is not done."""
    path = run_dir(folder, run_id)
    if not (path / RUN_FILE).exists():
        return {"status": "pending"}
    try:
        state = read_json(path / RUN_FILE)
    except UsageError as error:
        return {"status": "pending", "reason": str(error)}
    if state.get("status") == "completed" and not _is_whole(path):
        return {**state, "status": "interrupted", "reason": "its tables are missing or damaged"}
    return state


def _is_whole(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return all(pq.ParquetFile(path / f"{table}.parquet").metadata is not None for table in ("steps", "rollouts"))
    except (OSError, pa.ArrowException):
        return False


def mark(folder: Path, run_id: str, status: str, reason: str | None, spec: RunSpec) -> None:
    """Record the end of a run that could not record it itself."""
    path = run_dir(folder, run_id)
    path.mkdir(parents=True, exist_ok=True)
    state: Mapping[str, Any] = {"spec": spec.model_dump(mode="json"), "steps_planned": spec.settings.steps}
    with suppress(UsageError):
        state = read_json(path / RUN_FILE)
    write_json(path / RUN_FILE, {**state, "status": status, "reason": reason or state.get("reason")})


class Lock:
    """Holds a sweep's folder against another sweep; the kernel lets go of it when this process dies."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"

    def __enter__(self) -> "Lock":
        self._handle = self.path.open("w")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._handle.close()
            raise UsageError(
                f"another sweep is running in '{self.path.parent}': wait for it, or give another --out"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()
