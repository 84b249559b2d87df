"""Length-bias metrics: one number per run and metric, and the sums they come from.

`summarise` reads each run's completions once and keeps only sums per step; report, comparison and verdicts work on the
resulting `Summary`. *Late* is the last fifth of a run's planned steps, *early* the first fifth, by the step that first
used the completion. All means are pooled over completions (groups, tokens) of the window; NaN if absent.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from lossbench.loss.modes import PRESETS, Mode, parse_mode
from lossbench.metrics.push import PUSH_COLUMNS, measured_sql, pushed_sums, separation
from lossbench.metrics.step_sums import (
    EVAL_COLUMNS,
    LOG_COLUMNS,
    ROLLOUT_COLUMNS,
    Columns,
    add_step_log,
    as_columns,
    completions_sql,
    evaluations_sql,
    last_of_each_step,
    lengths_sql,
    pooled,
    pooled_by_block,
    sums_from_step_log,
)
from lossbench.metrics.trajectory import Trajectory, common_reward, plateau_step, slope_after, trajectory
from lossbench.processes import cores

if TYPE_CHECKING:
    from lossbench.store.read import Sweep

Role = Literal["primary", "evaluation", "guard", "mechanism", "start", "cost"]


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
    ("token_efficiency", "token efficiency", "M4: sum of rewards per 1,000 generated tokens, over the whole run; "
     "null where a reward is negative",
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
    ("late_truncated_frac_incorrect", "late truncation of incorrect",
     "share of incorrect completions cut at the cap, late", "share", "guard"),
    ("late_length_terminated", "late terminated length", "mean length of completions that ended by themselves, late",
     "tokens", "guard"),
    ("late_zero_std_frac", "late dead groups", "share of groups whose rewards are all equal, late", "share", "guard"),
    ("late_entropy", "late entropy", "mean entropy per token, late", "nats", "guard"),
    ("late_clip_frac", "late clip fraction", "share of tokens with an active clip or cap, late", "share", "guard"),
    ("late_grad_norm", "late gradient norm", "mean gradient norm before clipping, late", "norm", "guard"),
    ("late_kl", "late KL", "mean KL to the reference policy per token, late", "nats", "guard"),
    ("late_hazard_incorrect", "late hazard of incorrect",
     "chance that an incorrect completion ends at a free token, late", "per token", "mechanism"),
    ("late_hazard_correct", "late hazard of correct", "chance that a correct completion ends at a free token, late",
     "per token", "mechanism"),
    ("late_stop_odds", "late odds of stopping",
     "odds that a correct completion ends at a free token over those of an incorrect one, late",
     "odds ratio", "mechanism"),
    ("early_hazard_incorrect", "early hazard of incorrect", "the same of incorrect completions, early",
     "per token", "mechanism"),
    ("early_hazard_correct", "early hazard of correct", "the same of correct completions, early",
     "per token", "mechanism"),
    ("late_push_incorrect", "late push on incorrect",
     "U: push of the run's mode on the stop logit of incorrect completions, per unit of their weight, late; positive: "
     "stops sooner", "push", "mechanism"),
    ("late_push_correct", "late push on correct", "U of correct completions, late", "push", "mechanism"),
    ("late_added_incorrect", "late added push on incorrect",
     "V: the same per unit of all weight, so that branches add up, late", "push", "mechanism"),
    ("late_added_correct", "late added push on correct", "V of correct completions, late", "push", "mechanism"),
    ("separation", "separation per push",
     "growth of log(odds of stopping of correct / of incorrect completions) per unit of V correct - V incorrect; null "
     "where the push is about 0", "per push", "mechanism"),
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

_MOST_THREADS = 8
_NO_LENGTHS = pa.table({name: pa.array([], pa.float64()) for name in ("late", "correct", "length_tokens", "rows")})

RUN_COLUMNS = ["run_id", "arm", "mode", "seed", "policy", "policy_seed", "status", "complete", "source"]
"""Columns that lead `run_metrics`; `source` is rollouts, steps (means of logged means) or none."""


@dataclass(frozen=True)
class RunSummary:
    """One run reduced.

    - row: its row of `run_metrics` without the metrics at the common reward
    - sums: its `step_sums`, one row per step
    - lengths: how often each length occurs: columns late (0 early, 1 late), correct (0, 1), length_tokens, rows
    - path: its smoothed trajectory
    - late_pushes: mode → push quantities of the late window, for its own and every compared mode on the same rows
    """

    run_id: str
    row: dict[str, Any]
    sums: Columns
    lengths: Columns
    path: Trajectory
    late_pushes: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Summary:
    """A sweep reduced to what analysis and report need.

    `runs` are the planned runs, as in `Sweep.runs`; `metrics` is `run_metrics`; `by_run` has each run's reduction under
    its run_id; `common_reward` is the reward of `tokens_to_reward` and `length_at_reward`; `problems` names what could
    not be read; `only_characters` is whether completions have lengths, but none in tokens: no metric is made of those.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    by_run: dict[str, RunSummary]
    common_reward: float
    problems: tuple[str, ...] = ()
    only_characters: bool = False


def run_metrics(sweep: "Sweep", reward_threshold: float | None = None) -> pd.DataFrame:
    """One row per run with the columns `RUN_COLUMNS` and `METRICS`."""
    return summarise(sweep, reward_threshold).metrics


def summarise(sweep: "Sweep", reward_threshold: float | None = None) -> Summary:
    """Read a sweep run by run and reduce it; `reward_threshold` replaces the common reward of its completed runs."""
    with ThreadPoolExecutor(min(cores(), _MOST_THREADS)) as pool:
        runs = records(sweep.runs)
        modes = known_modes(run["mode"] for run in runs)
        parts = list(pool.map(lambda run: reduce_run(sweep, run, modes), runs))
    sweep.problems.sort()  # threads find them in any order
    complete = [part.path for part in parts if part.row["complete"]]
    threshold = common_reward(complete) if reward_threshold is None else reward_threshold
    rows = []
    for part in parts:
        tokens, length = part.path.at_reward(threshold) if np.isfinite(threshold) else (np.nan, np.nan)
        rows.append({**part.row, "tokens_to_reward": tokens, "length_at_reward": length})
    metrics = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *METRICS])
    only_characters = sweep.spec.get("length_unit") == "characters" and bool(metrics["late_length_mean"].isna().all())
    by_run = {part.run_id: part for part in parts}
    return Summary(sweep.runs, metrics, by_run, threshold, tuple(sweep.problems), only_characters)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a data frame as dictionaries."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def known_modes(names: Iterable[Any]) -> list[Mode]:
    """The modes of `names` that lossbench knows, and the presets: those whose pushes are worked out."""
    found = {}
    for name in (*names, *PRESETS):
        with suppress(ValueError):  # a log of another trainer may name any
            mode = parse_mode(str(name))
            found[mode.name] = mode
    return list(found.values())


def reduce_run(sweep: "Sweep", run: dict[str, Any], modes: Sequence[Mode] = ()) -> RunSummary:
    """Reduce the tables of one run; `run` is its row of `Sweep.runs`, `modes` are those whose pushes are worked out."""
    run_id = str(run["run_id"])
    rollouts = sweep.query(run_id, "rollouts", ROLLOUT_COLUMNS, completions_sql)
    log = last_of_each_step(as_columns(sweep.run_table(run_id, "steps", LOG_COLUMNS)))
    source = "rollouts" if rollouts is not None and len(rollouts) else "steps" if len(log["step"]) else "none"
    sums, by_mode, apart = sums_from_step_log(log), {}, float("nan")
    if rollouts is not None and source == "rollouts":
        rows = sweep.query(run_id, "rollouts", PUSH_COLUMNS, measured_sql)
        stopped, by_mode = pushed_sums(as_columns(rows), modes, sweep.forced_tokens(run_id))
        sums = {**as_columns(rollouts), **stopped, **by_mode.get(str(run["mode"]), {})}
        if str(run["mode"]) in by_mode:
            rates = {name: _per_step(sums, name) for name in ("hazard_incorrect", "hazard_correct")}
            apart = separation(rates, sums)
    made = sums["step"]
    sums = add_step_log(sums, log)
    planned = _steps_planned(run, sums)
    path = trajectory(sums)
    early = pooled(sums, is_early(sums["step"], planned))
    late = pooled(sums, is_late(sums["step"], planned))
    evals = sweep.query(run_id, "evals", EVAL_COLUMNS, evaluations_sql)
    lengths = sweep.query(run_id, "rollouts", ROLLOUT_COLUMNS, lambda source: lengths_sql(source, planned))
    row = {
        **{column: run.get(column) for column in RUN_COLUMNS},
        "complete": run.get("status") == "completed",
        "source": source,
        **_windows(early, late),
        **_whole_run(sums, log, path, late["reward"]),
        "separation": apart,
        **_last_evaluation(evals),
    }
    late_steps = is_late(made, planned)
    late_pushes = {name: _pushed(pooled(columns, late_steps)) for name, columns in by_mode.items()}
    return RunSummary(run_id, row, sums, as_columns(_NO_LENGTHS if lengths is None else lengths), path, late_pushes)


def _per_step(sums: Columns, quantity: str) -> np.ndarray:
    return pooled_by_block(sums, np.arange(len(sums["step"])), len(sums["step"]), quantity)


def _pushed(values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in values if name.startswith(("push_", "added_"))}


def _steps_planned(run: dict[str, Any], sums: Columns) -> int:
    planned = run.get("steps_planned")
    if planned is not None and np.isfinite(planned):
        return int(planned)
    return int(sums["step"].max()) if len(sums["step"]) else 0


def is_late(step: np.ndarray, steps_planned: int) -> np.ndarray:
    """Whether steps (numbered from 1) lie in the last fifth of `steps_planned`."""
    return (steps_planned - step) * 5 < steps_planned


def is_early(step: np.ndarray, steps_planned: int) -> np.ndarray:
    """Whether steps (numbered from 1) lie in the first fifth of `steps_planned`."""
    return (step - 1) * 5 < steps_planned


def _windows(early: dict[str, float], late: dict[str, float]) -> dict[str, float]:
    """The metrics that are pooled quantities of the early or the late window."""
    row = {f"early_{name}": early[name] for name in early if f"early_{name}" in METRICS}
    row |= {f"late_{name}": late[name] for name in late if f"late_{name}" in METRICS}
    mean, square = early["length_mean"], early["length_square_mean"]
    if mean > 0 and np.isfinite(square):  # a log of means has no spread
        row["early_length_cv"] = max(0.0, square - mean**2) ** 0.5 / mean
        row["early_jensen_gap"] = early["inverse_length_mean"] - 1 / mean
    right, wrong = late["hazard_correct"], late["hazard_incorrect"]
    if 0 < wrong < 1 and 0 < right < 1:
        row["late_stop_odds"] = right / (1 - right) / (wrong / (1 - wrong))
    return row


def _whole_run(sums: Columns, log: Columns, path: Trajectory, late_reward: float) -> dict[str, float]:
    """Efficiency, slope after the plateau, tokens and time."""
    slope, slope_ols = slope_after(sums, plateau_step(path, late_reward))
    rewarded_tokens, tokens = float(sums["rewarded_length_sum"].sum()), float(np.nansum(sums["tokens"]))
    # Where a reward can be negative, more tokens look like more reward for each.
    efficient = rewarded_tokens > 0 and not (sums["lowest_reward"] < 0).any()
    wall = log["wall_s"][~np.isnan(log["wall_s"])]
    return {
        "token_efficiency": 1000 * float(sums["reward_sum"].sum()) / rewarded_tokens if efficient else np.nan,
        "length_slope_plateau": slope,
        "length_slope_plateau_ols": slope_ols,
        "tokens_total": tokens if tokens > 0 else np.nan,
        "wall_s": float(wall.sum()) if wall.size else np.nan,
    }


def _last_evaluation(evals: pa.Table | None) -> dict[str, float]:
    """The evaluation metrics, from the last evaluation after training began."""
    sums = as_columns(evals) if evals is not None else {"step": np.zeros(0)}
    if not sums["step"].max(initial=0) > 0:
        return {}
    last = pooled(sums, sums["step"] == sums["step"].max())
    return {f"eval_{name}": value for name, value in last.items() if f"eval_{name}" in METRICS}
