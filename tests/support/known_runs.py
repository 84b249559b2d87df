"""Sweeps made of known numbers, written with the real store: each cell says which completions a run has."""

from pathlib import Path
from typing import Any

import numpy as np

from lossbench.loss.modes import parse_mode
from lossbench.store.write import write_json, write_table


def rollout_rows(
    step: int, incorrect: list[int], correct: list[int], cap: int = 1000, group: int = 0
) -> list[dict[str, Any]]:
    """One group of one step: completions of the given lengths, rewarded where correct and below the cap."""
    lengths = [(length, False) for length in incorrect] + [(length, True) for length in correct]
    return [
        {
            "generation": step, "step": step, "prompt_id": group, "group": group, "sample": sample,
            "length_tokens": length, "terminated": length < cap, "reward": float(right and length < cap),
            "correct": right,
        }
        for sample, (length, right) in enumerate(lengths)
    ]  # fmt: skip


def write_run(folder: Path, run_id: str, rows: list[dict[str, Any]], status: str = "completed", **tables: Any) -> None:
    """One run's folder with its rollouts, its state and any further table."""
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True)
    if rows:
        write_table(run_dir / "rollouts.parquet", "rollouts", rows)
    for name, table in tables.items():
        write_table(run_dir / f"{name}.parquet", name, table)
    write_json(run_dir / "run.json", {"status": status})


def write_plan(folder: Path, runs: dict[str, dict[str, Any]], **recipe: Any) -> None:
    """The sweep's plan: run_id → at least arm and seed; the rest of a planned run is filled in."""
    plan = {}
    for run_id, run in runs.items():
        mode = parse_mode(run["arm"].partition("[")[0])
        known = {
            "mode": mode.name, "loss_type": mode.loss_type, "agg_mode": mode.agg_mode,
            "scale_rewards": mode.scale_rewards, "policy": "selfcheck", "policy_seed": 0, "steps_planned": 10,
        }  # fmt: skip
        plan[run_id] = known | run
    write_json(folder / "sweep.json", {"runs": plan, "recipe": recipe, "plan_hash": "0"})


def write_sweep(folder: Path, arms: dict[str, float], seeds: int, steps: int = 10, rng_seed: int = 0) -> Path:
    """A sweep whose arms differ in late incorrect length: it goes from 20 to the arm's value, plus noise by seed.

    Every step has four groups of eight completions; the share of correct ones rises from a quarter to five eighths, and
    correct completions are 15 tokens long, give or take. Seeds from 4 on start from policy 1.
    """
    rng = np.random.default_rng(rng_seed)
    runs: dict[str, dict[str, Any]] = {}
    for seed in range(seeds):
        for arm, late in arms.items():
            run_id = f"r{len(runs)}"
            runs[run_id] = {"arm": arm, "seed": seed, "policy_seed": seed // 4, "steps_planned": steps}
            end = late + rng.normal(0, 1)
            rows = []
            for step in range(1, steps + 1):
                share = (step - 1) / max(1, steps - 1)
                right = 2 + round(3 * min(1.0, 1.5 * share))
                for group in range(4):
                    wrong = rng.poisson(20 + (end - 20) * share, 8 - right) + 1
                    rows += rollout_rows(step, wrong.tolist(), (rng.poisson(14, right) + 1).tolist(), group=group)
            write_run(folder, run_id, rows)
    write_plan(folder, runs, max_completion_length=1000)
    return folder
