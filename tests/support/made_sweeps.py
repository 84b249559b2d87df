"""Sweeps of random numbers in the layout of real ones, on which reports can be tried in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.loss.modes import parse_mode
from lossbench.store.write import write_json, write_table

SHARED = {
    "task": "selfcheck", "policy": "selfcheck", "num_generations": 8, "max_completion_length": 128,
    "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "learning_rate": 1e-4,
}  # fmt: skip
VERSIONS = {"python": "3.11.9", "lossbench": "0.1.0", "torch": "2.13.0", "trl": "1.16.0"}


@dataclass(frozen=True)
class Plan:
    """A sweep to make. `grow`: tokens that an arm's incorrect completions gain; correct ones lose a third as many."""

    arms: Sequence[str] = ("grpo", "dr_grpo", "dapo")
    seeds: int = 6
    steps: int = 40
    rows_per_step: int = 16
    grow: Mapping[str, float] | None = None
    claims: Sequence[str] = ()
    text: bool = True
    baseline: str = "grpo"
    accuracy: float | None = None

    def growth(self, arm: str) -> float:
        """Tokens that the arm's incorrect completions gain from first step to last."""
        if self.grow is not None:
            return self.grow.get(arm, 0.0)
        mode = parse_mode(arm.partition("[")[0])
        return 28.0 if mode.agg_mode == "seq-mean-token-mean" and "[" not in arm else 0.0


def make_sweep(folder: Path, plan: Plan | None = None) -> Path:
    """Write the sweep and return its folder."""
    plan = plan or Plan()
    runs: dict[str, Any] = {}
    for seed in range(plan.seeds):
        for arm in plan.arms:
            run_id, labels = run_labels(arm, seed)
            runs[run_id] = {**labels, "steps_planned": plan.steps}
            write_run(folder, run_id, runs[run_id], plan)
    write_json(folder / "sweep.json", sweep_spec(plan, runs))
    return folder


def sweep_spec(plan: Plan, runs: Mapping[str, Any]) -> dict[str, Any]:
    """What sweep.json holds."""
    return {
        "sweep_version": 1, "kind": "sweep", "name": "synthetic", "shared": {**SHARED, "steps": plan.steps},
        "plan_hash": "0123456789abcdef", "recipe": {**SHARED, "steps": plan.steps, "claims": list(plan.claims)},
        "baseline": plan.baseline, "claims": list(plan.claims), "claims_changed": False,
        "command": "lossbench sweep synthetic --seeds 6", "versions": VERSIONS,
        "git": {"commit": "f" * 40, "dirty": False}, "machine": {"platform": "Linux", "machine": "x86_64", "cores": 2},
        "runs": dict(runs),
    }  # fmt: skip


def run_labels(arm: str, seed: int) -> tuple[str, dict[str, Any]]:
    """The run's id, and what the plan says of it."""
    name, _, label = arm.partition("[")
    mode = parse_mode(name)
    run_id = f"{arm.replace('@', '.').replace('/', '-').replace(':', '-').replace('[', '-').replace(']', '')}-s{seed}"
    labels = {
        "arm": arm, "mode": mode.name, "loss_type": mode.loss_type, "agg_mode": mode.agg_mode,
        "scale_rewards": mode.scale_rewards, "seed": seed, "policy": label.rstrip("]") or "selfcheck",
        "policy_seed": seed // 4 % 2,
    }  # fmt: skip
    return run_id, labels


def write_run(folder: Path, run_id: str, labels: Mapping[str, Any], plan: Plan, steps: int | None = None) -> None:
    """One completed run's folder; `steps` stops it earlier, as a run that is still going would be."""
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True, exist_ok=True)
    columns = _columns(run_id, labels)
    rng = np.random.default_rng([labels["seed"], *run_id.encode()])
    rollouts = _rollouts(labels["arm"], plan, steps or plan.steps, rng)
    write_table(run_dir / "rollouts.parquet", "rollouts", _filled(columns, rollouts))
    write_table(run_dir / "steps.parquet", "steps", _filled(columns, step_rows(rollouts, rng)))
    state = {"status": "completed" if steps is None else "running", "steps_done": steps or plan.steps, "wall_s": 60.0}
    write_json(run_dir / "run.json", {**state, "steps_planned": plan.steps, "versions": VERSIONS})


def _columns(run_id: str, labels: Mapping[str, Any]) -> dict[str, Any]:
    names = ("mode", "loss_type", "agg_mode", "scale_rewards", "seed")
    return {"run_id": run_id, **{name: labels[name] for name in names}}


def _filled(columns: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: [value] * len(rows["step"]) for name, value in columns.items()}, **rows}


def _rollouts(arm: str, plan: Plan, steps: int, rng: np.random.Generator) -> dict[str, Any]:
    """Geometric lengths whose mean moves with the step; `grow` is the arm's, seeds differ a little."""
    per_step, n = plan.rows_per_step, plan.rows_per_step * steps
    row = np.arange(n)
    step, inside = row // per_step + 1, row % per_step
    progress = step / plan.steps
    rise = 0.2 + 0.45 * np.minimum(1.0, 1.6 * progress) + 0.03 * rng.standard_normal()
    correct = rng.random(n) < (rise if plan.accuracy is None else plan.accuracy)
    grown = plan.growth(arm) * progress * (1 + 0.12 * rng.standard_normal())
    means = np.where(correct, 17 - grown / 3.5, 19 + grown) + 1.5 * rng.standard_normal()
    length = np.minimum(128, 2 + rng.geometric(1 / np.maximum(means, 2.0)))
    ended = length < 128
    rows: dict[str, Any] = {
        "generation": step, "step": step, "prompt_id": rng.integers(0, 100, n), "group": inside // 8,
        "sample": inside % 8, "length_tokens": length, "terminated": ended, "correct": correct,
        "reward": (correct & ended).astype(float),
        "advantage": correct - 0.5, "token_weight": 1 / (per_step * length),
    }  # fmt: skip
    if plan.text:
        rows["prompt"] = ["3+4="] * n
        rows["completion"] = [
            f"70{'yn'[int(not ok)] * max(0, int(k) - 3)}" for ok, k in zip(correct, length, strict=True)
        ]
    return rows


def step_rows(rollouts: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A steps table for completions with the columns step and length_tokens."""
    step = np.unique(rollouts["step"])
    n = len(step)
    tokens = np.bincount(rollouts["step"], weights=rollouts["length_tokens"])[step]
    return {
        "step": step, "generation": step, "entropy": 0.6 - 0.002 * step + 0.01 * rng.standard_normal(n),
        "clip_frac": np.zeros(n), "grad_norm": 0.4 + 0.05 * rng.random(n), "tokens": tokens.astype(int),
        "lr": np.full(n, 1e-4), "wall_s": np.full(n, 0.3), "loss": 0.01 * rng.standard_normal(n),
    }  # fmt: skip


def constant_sweep(folder: Path, lengths: dict[str, list[int]], status: str = "completed") -> Path:
    """One run per arm and seed, in which every incorrect completion has the given length; correct ones have 10."""
    runs = {}
    for arm, by_seed in lengths.items():
        for seed, length in enumerate(by_seed):
            run_id, labels = run_labels(arm, seed)
            runs[run_id] = {**labels, "steps_planned": 5}
            rows = [
                {"step": step, "generation": step, "group": 0, "sample": i, "length_tokens": length if i else 10,
                 "terminated": True, "reward": float(not i), "correct": not i}
                for step in range(1, 6) for i in range(2)
            ]  # fmt: skip
            run_dir = folder / "runs" / run_id
            run_dir.mkdir(parents=True)
            write_table(run_dir / "rollouts.parquet", "rollouts", rows)
            write_json(run_dir / "run.json", {"status": status})
    write_json(folder / "sweep.json", sweep_spec(Plan(list(lengths)), runs))
    return folder
