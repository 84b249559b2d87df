"""Status of the runs of a sweep, one row each."""

from typing import Any

from lossbench.store.read import Sweep

COLUMNS = ["run_id", "status", "step", "steps_planned", "reward", "length_tokens", "wall_s", "reason", "log"]


def run_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """A row per planned run: status, steps made, last reward and length, seconds; reason and log of a bad end."""
    rows = []
    for run in sweep.runs.to_dict("records"):
        steps = sweep.run_table(run["run_id"], "steps", ["step", "reward_mean", "length_mean", "wall_s"]).to_pandas()
        sampled = steps.dropna(subset=["reward_mean"])
        ended_badly = run["status"] in ("failed", "interrupted")
        rows.append(
            {
                "run_id": run["run_id"],
                "status": run["status"],
                "step": int(steps["step"].max()) if len(steps) else 0,
                "steps_planned": run["steps_planned"],
                "reward": float(sampled["reward_mean"].iloc[-1]) if len(sampled) else None,
                "length_tokens": float(sampled["length_mean"].iloc[-1]) if len(sampled) else None,
                "wall_s": round(float(steps["wall_s"].sum()), 1) if len(steps) else None,
                "reason": run["reason"] if ended_badly else None,
                "log": run["log"] if ended_badly else None,
            }
        )
    return rows
