"""The folder that a watched run fills: a sweep of one run in lossbench's schema, readable while it grows."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError
from lossbench.locks import LOCK_FILE, exclusive
from lossbench.loss.modes import Mode, folder_name
from lossbench.store.provenance import versions
from lossbench.store.read import RUN_FILE, SWEEP_FILE, is_sweep, read_json
from lossbench.store.schema import SCHEMA_VERSION
from lossbench.store.step_row import Rollout
from lossbench.store.write import PartWriter, write_json

KIND = "ingested"
"""Recorded under another trainer: the report shows what such a run has."""
_SETTINGS = (
    "max_completion_length", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps",
    "steps_per_generation", "num_iterations", "learning_rate", "beta", "max_grad_norm", "temperature",
)  # fmt: skip


def rank() -> int:
    """Number of this process among those of the run."""
    return int(os.environ.get("RANK", "0"))


class WatchFolder:
    """Writer of the run's tables, step by step; each process of a run has files of its own, the first one the plan."""

    def __init__(self, folder: Path, mode: Mode, config: Any) -> None:
        self.rank = rank()
        self.folder, self.mode, self.seed = folder, mode, int(getattr(config, "seed", 0) or 0)
        digest = hashlib.sha256(f"{mode.name}|{self.seed}".encode()).hexdigest()[:8]
        self.run_id = f"{folder_name(mode.name)}-s{self.seed}-{digest}"
        self._steps = max(0, getattr(config, "max_steps", None) or 0) or None
        self._recipe = {name: getattr(config, name, None) for name in _SETTINGS}
        self._state: dict[str, Any] = {
            "status": "running", "source": "lossbench.watch", "length_unit": "tokens", "forced_tokens": 0,
            "versions": versions(), "notes": [], "steps_done": 0,
        }  # fmt: skip
        self._writer: PartWriter | None = None
        self._held = ExitStack()

    def record(self, step: int, rows: Sequence[Rollout], figures: Mapping[str, Any] | None) -> None:
        """Write the completions that step `step` first uses, and its figures; without figures they are an evaluation.

        A run that goes on drops what it will redo. Raises UsageError where the folder holds a sweep that lossbench ran,
        or another process records the same run.
        """
        if figures is None:
            dropped = ("generation", "advantage")
            cells = [{name: value for name, value in vars(row).items() if name not in dropped} for row in rows]
            self._append(step - 1, "evals", cells)
            return
        self._append(step, "rollouts", [vars(row) for row in rows])
        if self.rank == 0:
            self._append(step, "steps", [figures])

    def _append(self, step: int, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        writer = self._writer or self._start(step)
        labels = {"run_id": self.run_id, **self.mode.labels, "seed": self.seed, "step": step}
        writer.append(table, step, [{**labels, **row} for row in rows])
        self._state["steps_done"] = max(self._state["steps_done"], step)

    def _start(self, step: int) -> PartWriter:
        if is_sweep(self.folder) and read_json(self.folder / SWEEP_FILE).get("kind") != KIND:
            raise UsageError(f"'{self.folder}' is a sweep that lossbench ran: give watch another folder to save in")
        run_dir = self.folder / "runs" / self.run_id
        self._writer = PartWriter(run_dir, self.rank)
        refusal = f"'{run_dir}' is being recorded by another process: give watch another folder to save in"
        self._held.enter_context(exclusive(self.folder / f"{LOCK_FILE}-watch-{self.run_id}-{self.rank}", refusal))
        self._writer.keep_up_to(step - 1)
        if self.rank == 0:
            self._write_plan(self.folder / SWEEP_FILE)
            write_json(run_dir / RUN_FILE, self._state)
        return self._writer

    def _write_plan(self, path: Path) -> None:
        plan = read_json(path) if path.exists() else {
            "kind": KIND, "schema_version": SCHEMA_VERSION, "recipe": {"name": self.folder.name, **self._recipe},
            "versions": versions(), "length_unit": "tokens", "sources": ["lossbench.watch"], "runs": {},
        }  # fmt: skip
        plan["runs"][self.run_id] = {
            **self.mode.labels, "arm": self.mode.name, "seed": self.seed, "policy": None, "policy_seed": None,
            "steps_planned": self._steps,
        }  # fmt: skip
        write_json(path, plan)

    def close(self) -> None:
        """Record the end: completed where all planned steps were made or none were planned, else interrupted."""
        if self._writer is not None and self.rank == 0:
            whole = not self._steps or self._steps <= self._state["steps_done"]
            state = {**self._state, "status": "completed" if whole else "interrupted"}
            write_json(self.folder / "runs" / self.run_id / RUN_FILE, state)
        self._held.close()
