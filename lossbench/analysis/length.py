"""Length-bias metrics: one number per run and metric, and the sums they come from.

`summarise` reads each run's completions once and keeps only sums per step; report, comparison and verdicts work on the
resulting `Summary`. *Late* is the last fifth of a run's planned steps, *early* the first fifth, by the step that first
used the completion. All means are pooled over completions (groups, tokens) of the window; NaN where there are none.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from lossbench.analysis.sums import EVAL_COLUMNS, ROLLOUT_COLUMNS, add_step_log, pooled, step_sums, sums_from_step_log
from lossbench.analysis.trajectory import Trajectory, common_reward, plateau_step, slope_after, trajectory

if TYPE_CHECKING:
    from lossbench.store.read import Sweep

Role = Literal["primary", "evaluation", "guard", "start", "cost"]


@dataclass(frozen=True)
class Metric:
    """One column of `run_metrics`: what it is, in which unit, and what it serves for."""

    name: str
    label: str
    doc: str
    unit: str
    role: Role


def _metrics(*rows: tuple[str, str, str, str, Role]) -> dict[str, Metric]:
    table = {row[0]: Metric(*row) for row in rows}
    if len(table) != len(rows):
        raise ValueError("two metrics share a name")
    return table


METRICS: dict[str, Metric] = _metrics(
    ("late_length_incorrect", "late incorrect length", "M1: mean length of incorrect completions, late",
     "tokens", "primary"),
    ("late_length_mean", "late mean length", "M2: mean length of all completions, late", "tokens", "primary"),
    ("late_length_correct", "late correct length", "mean length of correct completions, late", "tokens", "primary"),
    ("late_gap_within_prompt", "late gap within prompt",
     "M3: mean over late groups with both kinds of (mean incorrect length - mean correct length of the group); each "
     "group counts once, so the mix of hard and easy prompts cannot make it", "tokens", "primary"),
    ("token_efficiency", "token efficiency", "M4: sum of rewards per 1,000 generated tokens, over the whole run",
     "reward per 1,000 tokens", "primary"),
    ("late_reward", "late reward", "M5: mean reward, late", "reward", "primary"),
    ("late_accuracy", "late accuracy", "share of correct completions, late", "share", "primary"),
    ("tokens_to_reward", "tokens to common reward",
     "M4: tokens generated until the smoothed reward reaches a level that every run of the sweep gets to",
     "tokens", "primary"),
    ("length_at_reward", "length at common reward", "M4: smoothed mean length where that reward is reached",
     "tokens", "primary"),
    ("length_slope_plateau", "length slope after plateau",
     "M2: Theil-Sen slope of mean length after the reward plateau (trajectory.plateau_step); descriptive",
     "tokens per 100 steps", "primary"),
    ("length_slope_plateau_ols", "length slope (least squares)", "the same slope by least squares, as a check",
     "tokens per 100 steps", "primary"),
    ("eval_length_incorrect", "evaluated incorrect length", "M1 on the last evaluation", "tokens", "evaluation"),
    ("eval_length_mean", "evaluated mean length", "M2 on the last evaluation", "tokens", "evaluation"),
    ("eval_length_correct", "evaluated correct length", "mean correct length on the last evaluation",
     "tokens", "evaluation"),
    ("eval_gap_within_prompt", "evaluated gap within prompt", "M3 on the last evaluation", "tokens", "evaluation"),
    ("eval_reward", "evaluated reward", "M5 on the last evaluation", "reward", "evaluation"),
    ("eval_accuracy", "evaluated accuracy", "share of correct completions of the last evaluation",
     "share", "evaluation"),
    ("late_truncated_frac", "late truncation", "share of completions cut at the cap, late", "share", "guard"),
    ("late_length_terminated", "late terminated length", "mean length of completions that ended by themselves, late",
     "tokens", "guard"),
    ("late_zero_std_frac", "late dead groups", "share of groups whose rewards are all equal, late", "share", "guard"),
    ("late_entropy", "late entropy", "mean entropy per token, late", "nats", "guard"),
    ("late_clip_frac", "late clip fraction", "share of tokens with an active clip or cap, late", "share", "guard"),
    ("late_grad_norm", "late gradient norm", "mean gradient norm before clipping, late", "norm", "guard"),
    ("late_kl", "late KL", "mean KL to the reference policy per token, late", "nats", "guard"),
    ("early_reward", "early reward", "mean reward, early", "reward", "start"),
    ("early_accuracy", "early accuracy", "share of correct completions, early", "share", "start"),
    ("early_length_mean", "early mean length", "mean length, early", "tokens", "start"),
    ("early_length_incorrect", "early incorrect length", "mean length of incorrect completions, early",
     "tokens", "start"),
    ("early_length_correct", "early correct length", "mean length of correct completions, early", "tokens", "start"),
    ("early_length_cv", "early length spread", "standard deviation of length over its mean, early", "ratio", "start"),
    ("early_jensen_gap", "early Jensen gap",
     "K2: mean(1/L) - 1/mean(L), early; the size of the bias of 1/L weights before training makes it",
     "1/tokens", "start"),
    ("early_truncated_frac", "early truncation", "share of completions cut at the cap, early", "share", "start"),
    ("tokens_total", "tokens generated", "completion tokens of the whole run", "tokens", "cost"),
    ("wall_s", "wall-clock time", "wall-clock time of the run's steps", "s", "cost"),
)  # fmt: skip
"""Every metric, in the order of the columns of `run_metrics`."""

RUN_COLUMNS = ["run_id", "arm", "mode", "seed", "policy", "policy_seed", "status", "complete", "source"]
"""Columns that lead `run_metrics`; `source` is rollouts, steps (means of logged means) or none."""


@dataclass(frozen=True)
class Summary:
    """A sweep reduced to what analysis and report need.

    - runs: the sweep's planned runs, as in `Sweep.runs`
    - metrics: `run_metrics`, one row per run
    - sums: `sums.step_sums` of all runs with `run_id` and `arm`, one row per run and step
    - evals: the same for evaluations, one row per run and evaluation step
    - lengths: run_id, arm, window (early, late), correct (bool), length_tokens, rows: how often each length occurs
    - paths: run_id → smoothed `Trajectory`
    - common_reward: the reward of `tokens_to_reward` and `length_at_reward`
    - problems: what could not be read
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    sums: pd.DataFrame
    evals: pd.DataFrame
    lengths: pd.DataFrame
    paths: dict[str, Trajectory]
    common_reward: float
    problems: tuple[str, ...] = ()


def run_metrics(sweep: "Sweep", reward_threshold: float | None = None) -> pd.DataFrame:
    """One row per run with the columns `RUN_COLUMNS` and `METRICS`."""
    return summarise(sweep, reward_threshold).metrics


def summarise(sweep: "Sweep", reward_threshold: float | None = None) -> Summary:
    """Read a sweep run by run and reduce it; `reward_threshold` replaces the common reward of its runs."""
    parts = [RunSummary.read(sweep, row) for row in sweep.runs.to_dict("records")]
    paths = {part.run_id: part.path for part in parts}
    complete = [part.path for part in parts if part.row["complete"]]
    threshold = common_reward(complete) if reward_threshold is None else reward_threshold
    rows = []
    for part in parts:
        tokens, length = part.path.at_reward(threshold) if np.isfinite(threshold) else (np.nan, np.nan)
        rows.append({**part.row, "tokens_to_reward": tokens, "length_at_reward": length})
    return Summary(
        runs=sweep.runs,
        metrics=pd.DataFrame(rows, columns=[*RUN_COLUMNS, *METRICS]),
        sums=_stack([part.sums for part in parts]),
        evals=_stack([part.evals for part in parts]),
        lengths=_stack([part.lengths for part in parts]),
        paths=paths,
        common_reward=threshold,
        problems=tuple(sweep.problems),
    )


def _stack(frames: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=["run_id", "arm", "step"])


@dataclass(frozen=True)
class RunSummary:
    """What `summarise` keeps of one run."""

    run_id: str
    row: dict
    sums: pd.DataFrame
    evals: pd.DataFrame
    lengths: pd.DataFrame
    path: Trajectory

    @classmethod
    def read(cls, sweep: "Sweep", run: dict) -> "RunSummary":
        """Reduce the run that `run`, a row of `sweep.runs`, describes."""
        run_id = str(run["run_id"])
        return cls.reduce(
            run,
            rollouts=_frame(sweep.run_table(run_id, "rollouts", ROLLOUT_COLUMNS)),
            steps=_frame(sweep.run_table(run_id, "steps")),
            evals=_frame(sweep.run_table(run_id, "evals", EVAL_COLUMNS)),
        )

    @classmethod
    def reduce(cls, run: dict, rollouts: pd.DataFrame, steps: pd.DataFrame, evals: pd.DataFrame) -> "RunSummary":
        """Reduce one run's tables (columns as in the schema; empty frames where a table is absent)."""
        names = {"run_id": str(run["run_id"]), "arm": str(run["arm"])}
        source = "rollouts" if len(rollouts) else "steps" if len(steps) else "none"
        sums = sums_from_step_log(steps) if source == "steps" else step_sums(rollouts)
        sums = add_step_log(sums, steps)
        planned = _steps_planned(run, sums)
        path = trajectory(sums, planned)
        metrics = {
            "early": pooled(sums[is_early(sums["step"], planned)]),
            "late": pooled(sums[is_late(sums["step"], planned)]),
        }
        eval_sums = step_sums(evals)
        row = {
            **{column: run.get(column) for column in RUN_COLUMNS},
            "complete": run.get("status") == "completed",
            "source": source,
            **_windows(metrics["early"], metrics["late"]),
            **_whole_run(sums, steps, path, metrics["late"]["reward"]),
            **_last_evaluation(eval_sums),
        }
        lengths = length_counts(rollouts, planned).assign(**names)
        return cls(names["run_id"], row, sums.assign(**names), eval_sums.assign(**names), lengths, path)


def _frame(table: pa.Table) -> pd.DataFrame:
    """A data frame whose flags are numbers, so that a null makes a column float rather than slow objects."""
    flags = [i for i, field in enumerate(table.schema) if pa.types.is_boolean(field.type)]
    for i in flags:
        table = table.set_column(i, table.schema.names[i], table.column(i).cast(pa.int8()))
    return table.to_pandas()


def _steps_planned(run: dict, sums: pd.DataFrame) -> int:
    planned = run.get("steps_planned")
    if planned is not None and not pd.isna(planned):
        return int(planned)
    return int(sums["step"].max()) if len(sums) else 0


def is_late(step: pd.Series | np.ndarray, steps_planned: int) -> pd.Series | np.ndarray:
    """Whether steps (numbered from 1) lie in the last fifth of `steps_planned`."""
    return (steps_planned - step) * 5 < steps_planned


def is_early(step: pd.Series | np.ndarray, steps_planned: int) -> pd.Series | np.ndarray:
    """Whether steps (numbered from 1) lie in the first fifth of `steps_planned`."""
    return (step - 1) * 5 < steps_planned


def _windows(early: dict[str, float], late: dict[str, float]) -> dict[str, float]:
    """The metrics that are pooled quantities of the early or the late window."""
    row = {f"early_{name}": early[name] for name in early if f"early_{name}" in METRICS}
    row |= {f"late_{name}": late[name] for name in late if f"late_{name}" in METRICS}
    mean = early["length_mean"]
    if mean > 0:
        variance = max(0.0, early["length_square_mean"] - mean**2)
        row["early_length_cv"] = float(np.sqrt(variance)) / mean
        row["early_jensen_gap"] = early["inverse_length_mean"] - 1 / mean
    return row


def _whole_run(sums: pd.DataFrame, steps: pd.DataFrame, path: Trajectory, late_reward: float) -> dict[str, float]:
    """Efficiency, slope after the plateau, tokens and time."""
    total = sums.sum(numeric_only=True)
    tokens = total.get("tokens", 0.0)
    slope, slope_ols = slope_after(sums, plateau_step(path, late_reward))
    rewarded_length = total.get("length_sum", 0.0) if total.get("reward_rows", 0.0) else 0.0
    wall = steps["wall_s"].sum(min_count=1) if len(steps) else np.nan
    return {
        "token_efficiency": 1000 * total["reward_sum"] / rewarded_length if rewarded_length else np.nan,
        "length_slope_plateau": slope,
        "length_slope_plateau_ols": slope_ols,
        "tokens_total": tokens if tokens > 0 else np.nan,
        "wall_s": float(wall),
    }


def _last_evaluation(eval_sums: pd.DataFrame) -> dict[str, float]:
    """The evaluation metrics, from the last evaluation after training began."""
    trained = eval_sums[eval_sums["step"] > 0]
    if not len(trained):
        return {}
    last = pooled(trained[trained["step"] == trained["step"].max()])
    return {f"eval_{name}": value for name, value in last.items() if f"eval_{name}" in METRICS}


def length_counts(rollouts: pd.DataFrame, steps_planned: int) -> pd.DataFrame:
    """How many completions of one run have which length: window (early, late), correct, length_tokens, rows."""
    known = rollouts[rollouts["length_tokens"].notna() & rollouts["correct"].notna() & rollouts["step"].notna()]
    parts = []
    for window, inside in (("early", is_early), ("late", is_late)):
        rows = known[inside(known["step"].astype(int), steps_planned)]
        counted = rows.groupby(["correct", "length_tokens"], observed=True).size().rename("rows").reset_index()
        parts.append(counted.assign(window=window))
    table = pd.concat(parts, ignore_index=True)
    return table.astype({"correct": bool, "length_tokens": int})[["window", "correct", "length_tokens", "rows"]]
