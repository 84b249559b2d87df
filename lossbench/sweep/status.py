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
        found = {name: run[name] for name in ("run_id", "status", "steps_planned")}
        found |= {name: run[name] for name in ("reason", "log") if run["status"] in ("failed", "interrupted")}
        if len(steps):
            found |= {"step": int(steps["step"].max()), "wall_s": round(float(steps["wall_s"].sum()), 1)}
        if len(sampled):
            last = sampled.iloc[-1]
            found |= {"reward": float(last["reward_mean"]), "length_tokens": float(last["length_mean"])}
        rows.append({name: found.get(name, 0 if name == "step" else None) for name in COLUMNS})
    return rows
