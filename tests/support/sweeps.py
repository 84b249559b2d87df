"""Recipes of a few quick steps, an executor that only pretends, and runs that are killed at a chosen moment."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

import lossbench
from lossbench.store.write import write_json
from lossbench.sweep.executors.base import Ended, Executor, Progress
from lossbench.sweep.folder import run_dir, run_state, write_plan
from lossbench.sweep.plan import plan
from lossbench.sweep.recipe import Recipe, make_recipe
from lossbench.training.run_spec import RunSpec

QUICK: dict[str, Any] = {
    "modes": ["grpo", "dr_grpo"], "seeds": [0], "steps": 4, "per_device_train_batch_size": 8, "num_generations": 2,
    "max_completion_length": 6, "eval_samples": 0, "text": False,
}  # fmt: skip
QUICK_FLAGS = [
    word
    for key in ("per_device_train_batch_size", "num_generations", "max_completion_length", "eval_samples")
    for word in ("--set", f"{key}={QUICK[key]}")
]


def quick_recipe(**changes: Any) -> Recipe:
    """Two modes, one seed, four steps of eight short completions, unless changed."""
    return make_recipe({"name": "quick", **QUICK, **changes}, "quick")


def quick_run(**changes: Any) -> RunSpec:
    """The first run of such a recipe."""
    return plan(quick_recipe(**changes))[0]


class Pretend(Executor):
    """An executor whose runs end at once, as `ends` says of each: None for completed, else the reason of a failure."""

    def __init__(self, slots: int = 2, ends: Callable[[RunSpec], str | None] = lambda spec: None) -> None:
        self.slots = slots
        self.ends = ends
        self.started: list[str] = []
        self.most_at_once = 0
        self.stopped = 0
        self._going: list[tuple[RunSpec, Path]] = []

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        self.started.append(spec.run_id)
        self._going.append((spec, run_dir))
        self.most_at_once = max(self.most_at_once, len(self._going))

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        spec, folder = self._going.pop(0)
        yield Progress(spec.run_id, 1, 0.5, 10.0)
        reason = self.ends(spec)
        if reason is None:
            folder.mkdir(parents=True)
            write_json(folder / "run.json", {"spec": spec.model_dump(mode="json"), "status": "completed"})
        yield Ended(spec.run_id, reason)

    def stop(self) -> None:
        self.stopped += 1
        self._going.clear()


class Watcher:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.reasons: dict[str, str | None] = {}

    def started(self, spec: RunSpec) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        self.reasons[spec.run_id] = reason


def planned(folder: Path, recipe: Recipe) -> list[RunSpec]:
    """The recipe's runs, planned in `folder`."""
    runs = plan(recipe)
    write_plan(folder, recipe, runs)
    return runs


def statuses(folder: Path, runs: list[RunSpec]) -> list[str]:
    return [run_state(folder, spec.run_id)["status"] for spec in runs]


def bytes_below(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tables(folder: Path, spec: RunSpec) -> dict[str, pd.DataFrame]:
    """The finished run's tables without the wall clock."""
    return {
        path.stem: pd.read_parquet(path).drop(columns="wall_s", errors="ignore")
        for path in sorted(run_dir(folder, spec.run_id).glob("*.parquet"))
    }


def assert_same_tables(folder: Path, other: Path, spec: RunSpec) -> None:
    """Equal to the last bit, wall clock apart."""
    ours, theirs = tables(folder, spec), tables(other, spec)
    assert ours.keys() == theirs.keys() and "rollouts" in ours
    for name in ours:
        pd.testing.assert_frame_equal(ours[name], theirs[name], check_exact=True)


def assert_readable(folder: Path) -> None:
    """The folder can be read, nothing in it is damaged, and no step counts twice."""
    sweep = lossbench.load(folder)
    assert not sweep.steps.duplicated(["run_id", "step"]).any()
    assert not sweep.rollouts.duplicated(["run_id", "generation", "group", "sample"]).any()
    assert len(sweep.runs) and sweep.problems == []


# ---- runs that are killed; the functions below run in a run's own process -------------------------------------------


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _patch(owner: Any, name: str, before: Callable[..., None], nth: int = 1) -> None:
    """Have the `nth` call of `owner.name` go through `before` first."""
    original, calls = getattr(owner, name), []

    def patched(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            before(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, patched)


def _half_write(temporary: Path, path: Path) -> None:
    """Leave half of the file under a temporary name, as a writer that was killed does."""
    temporary.write_bytes(temporary.read_bytes()[: temporary.stat().st_size // 2])
    _die()


def _kill_at(moment: str) -> None:
    import lossbench.store.write as write
    import lossbench.training.run as run
    import lossbench.training.trainer as trainer

    if moment == "before run.json says running":
        _patch(run, "write_json", _die)
    elif moment == "while loading the policy":
        _patch(run, "load_policy", _die)
    elif moment == "in the initial evaluation":
        _patch(run, "evaluate", _die)
    elif moment == "in generation":
        _patch(trainer, "sample", _die, nth=3)
    elif moment == "in the reward function":
        _patch(run.TaskReward, "__call__", _die, nth=2)
    elif moment == "writing a part file":
        _patch(Path, "replace", _half_write, nth=7)
    elif moment == "before a part file is renamed":
        _patch(Path, "replace", _die, nth=7)
    elif moment == "writing a checkpoint":
        _patch(trainer.ModeTrainer, "_save_optimizer_and_scheduler", _die, nth=2)
    elif moment == "before a checkpoint is sealed":
        _patch(run, "seal", _die, nth=2)
    elif moment == "between the joined tables":
        _patch(write.pq, "read_table", _die, nth=6)
    elif moment == "before run.json says completed":
        _patch(run, "write_json", _die, nth=2)
    elif moment == "before the parts are dropped":
        _patch(write.PartWriter, "drop_parts", _die)
    elif moment == "before the checkpoints are dropped":
        _patch(run, "drop_checkpoints", _die)
    else:
        raise ValueError(moment)


def killed_run(spec: RunSpec, folder: Path, on_step: Any) -> None:
    """Make the run, but die at the moment that `moment.json` of the sweep names, once."""
    from lossbench.training.run import execute

    order = folder.parent.parent / "moment.json"
    if order.exists():
        moment = json.loads(order.read_text())
        order.unlink()
        _kill_at(moment)
    execute(spec, folder, on_step)


MOMENTS = (
    "before run.json says running",
    "while loading the policy",
    "in the initial evaluation",
    "in generation",
    "in the reward function",
    "writing a part file",
    "before a part file is renamed",
    "writing a checkpoint",
    "before a checkpoint is sealed",
    "between the joined tables",
    "before run.json says completed",
    "before the parts are dropped",
    "before the checkpoints are dropped",
)


def idle_run(spec: RunSpec, folder: Path, on_step: Any) -> None:
    """A run that does nothing but say that it is completed."""
    write_json(folder / "run.json", {"spec": spec.model_dump(mode="json"), "status": "completed"})
