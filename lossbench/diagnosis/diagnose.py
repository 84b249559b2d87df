"""Diagnosis of a run: change of lengths, push of its loss, confounders, and the setting to change."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from lossbench.diagnosis.closing import what_happened
from lossbench.diagnosis.confounders import Confounder, Run, confounders
from lossbench.diagnosis.trend import SHARE, Change, change
from lossbench.diagnosis.watch_metrics import compared_modes
from lossbench.errors import UsageError, one_line
from lossbench.loss.equivalents import equivalents
from lossbench.loss.modes import COMPARED, Mode, parse_mode
from lossbench.metrics.push import hazards, pushes, separation
from lossbench.metrics.step_sums import as_columns
from lossbench.processes import cores
from lossbench.store.read import RUN_FILE, Sweep, read_json
from lossbench.store.step_row import sampling_rows_sql
from lossbench.tasks import TASKS

PUSHED = 0.1
"""A push on the stop logit smaller than this is about none; 1/L weights give half a unit and more."""
DOMINANT = 6.0
"""Severity from which a confounder comes before the loss: a collapse, or 30 % of completions cut."""
_MODE_SETTINGS = ("loss_type=", "scale_rewards=", "importance_sampling_level=")
_ROWS = ("step", "group", "length_tokens", "terminated", "correct", "reward")


@dataclass(frozen=True)
class Push:
    """A mode's mean push on the stop logit of wrong and right answers over the late steps; positive stops sooner."""

    mode: str
    wrong: float
    right: float

    @property
    def on_wrong(self) -> str:
        """Its direction on wrong answers, in a word."""
        return "longer" if self.wrong < -PUSHED else "shorter" if self.wrong > PUSHED else "no push"


@dataclass(frozen=True)
class Diagnosis:
    """One run's diagnosis; what its log does not hold is None or empty."""

    run_id: str
    mode: str
    steps: int
    headline: str
    wrong: Change | None
    right: Change | None
    length: Change | None
    reward: Change | None
    own_push: Push | None = None
    other_pushes: tuple[Push, ...] = ()
    separation: float | None = None
    confounders: tuple[Confounder, ...] = ()
    missing: tuple[str, ...] = field(default_factory=tuple)

    @property
    def better_mode(self) -> str | None:
        """A mode that would not have pushed wrong answers to grow on these rows, where the run's own did."""
        if self.own_push is None or self.own_push.wrong >= -PUSHED:
            return None
        return next((push.mode for push in reversed(self.other_pushes) if abs(push.wrong) <= PUSHED), None)

    @property
    def advice(self) -> str:
        """Advice on what to change, in one sentence."""
        worst = self.confounders[0] if self.confounders else None
        if worst is not None and worst.severity >= DOMINANT:
            return f"First of all: {worst.remedy}."
        if self.better_mode is not None:
            grew = self.wrong is not None and self.wrong.told and self.wrong.difference > 0
            came = "and they grew" if grew else "though it does not show so far"
            return f"The loss pushes wrong answers to grow, {came}: {self.better_mode} would not push them."
        if self.own_push is not None:
            return f"{self.mode} does not push wrong answers to grow: nothing in the loss asks for a change."
        return "Log completions with rewards and groups: curves alone do not show what the loss pushes."

    @property
    def paste(self) -> str | None:
        """TRL's settings for the better mode, on one line."""
        if self.better_mode is None:
            return None
        entry = equivalents(parse_mode(self.better_mode))[0]
        chosen = [line.strip().rstrip(",") for line in entry.settings if line.strip().startswith(_MODE_SETTINGS)]
        return f"{entry.framework}: {', '.join(chosen)} (all of them: lossbench modes {self.better_mode})"


def diagnose(sweep: Sweep, runs: list[str] | None = None) -> list[Diagnosis]:
    """A diagnosis per run of the sweep that has any step, in plan order. Raises UsageError where none has."""
    chosen = runs or sweep.run_ids
    for run_id in chosen:
        if run_id not in sweep.run_ids:
            raise UsageError(f"no run '{run_id}' in '{sweep.path}'; valid: {', '.join(sweep.run_ids)}")
    with ThreadPoolExecutor(cores()) as pool:
        found = [item for item in pool.map(lambda run_id: _one(sweep, run_id), chosen) if item is not None]
    if not found:
        raise UsageError(f"'{sweep.path}' has no run with a step to diagnose")
    return found


def _one(sweep: Sweep, run_id: str) -> Diagnosis | None:
    steps = _steps(sweep, run_id)
    if steps.empty:
        return None
    run = Run(steps, _late_right(sweep, run_id, steps), sweep.spec.get("recipe", {}).get("max_grad_norm"))
    mode = str(sweep.spec["runs"][run_id].get("mode"))
    found = _diagnosis(run_id, mode, run, *_pushes(sweep, run_id))
    return replace(found, missing=tuple(_missing(found)))


def _diagnosis(
    run_id: str, mode: str, run: Run, own: Push | None, others: tuple[Push, ...], apart: float | None
) -> Diagnosis:
    headline, wrong, right = what_happened(run.steps.to_dict("records"))
    length, reward = change(run.values("length_mean")), change(run.values("reward_mean"))
    found = tuple(confounders(run))
    return Diagnosis(
        run_id, mode, len(run.steps), headline, wrong, right, length, reward, own, others, apart, found
    )  # fmt: skip


def _steps(sweep: Sweep, run_id: str) -> pd.DataFrame:
    """The run's step rows in order, worked out from its completions where it has no others."""
    table = sweep.run_table(run_id, "steps")
    if not table.num_rows:
        columns = [*_ROWS, "generation"]
        table = sweep.query(run_id, "rollouts", columns, sampling_rows_sql) or table
    return table.to_pandas().sort_values("step")


def from_series(series: Sequence[Mapping[str, Any]], mode: str) -> Diagnosis:
    """The diagnosis of a run from its step rows in memory, with `push_incorrect/MODE` and `push_correct/MODE`."""
    run = Run(pd.DataFrame(series))
    found = [
        Push(name, run.late(f"push_incorrect/{name}"), run.late(f"push_correct/{name}"))
        for name in dict.fromkeys((mode, *COMPARED))
    ]
    known = [push for push in found if not np.isnan(push.wrong)]
    own = next((push for push in known if push.mode == mode), None)
    return _diagnosis("this run", mode, run, own, tuple(push for push in known if push != own), None)


def _late_right(sweep: Sweep, run_id: str, steps: Any) -> Any:
    """Length and reward of right completions of the last fifth of the steps; None where no completions are known."""
    import pyarrow.compute as pc

    first = steps["step"].iloc[-max(1, round(SHARE * len(steps)))]
    # A completion that was cut earns less for that alone.
    rows = (pc.field("step") >= int(first)) & pc.field("correct") & pc.field("terminated")
    table = sweep.run_table(run_id, "rollouts", ["step", "correct", "terminated", "length_tokens", "reward"], rows)
    frame = table.to_pandas().dropna(subset=["length_tokens", "reward"])
    return frame if len(frame) else None


def _pushes(sweep: Sweep, run_id: str) -> tuple[Push | None, tuple[Push, ...], float | None]:
    """The late push of the run's own mode and of others on the same rows, and the realised separation."""
    rows = as_columns(sweep.run_table(run_id, "rollouts", list(_ROWS)))
    if not len(rows["step"]) or any(np.isnan(rows[name]).all() for name in _ROWS):
        return None, (), None
    own = _mode(sweep.spec["runs"][run_id].get("mode"))
    modes = compared_modes(own)
    forced = _forced_tokens(sweep, run_id)
    pushed = pushes(rows, modes, forced)
    late = {name: _late(columns) for name, columns in pushed.items()}
    found = [Push(mode.name, *late[mode.name]) for mode in modes]
    known = [push for push in found if not np.isnan(push.wrong)]
    mine = next((push for push in known if own and push.mode == own.name), None)
    apart = separation(hazards(rows, forced), pushed[own.name]) if own else float("nan")
    return mine, tuple(push for push in known if push != mine), None if np.isnan(apart) else apart


def _mode(name: Any) -> Mode | None:
    try:
        return parse_mode(str(name))
    except ValueError:
        return None


def _forced_tokens(sweep: Sweep, run_id: str) -> int:
    """Tokens that the run's task dictates: recorded with the run, else those of a built-in task, else 0."""
    path = sweep.run_dir(run_id) / RUN_FILE
    recorded = read_json(path).get("forced_tokens") if path.exists() else None
    task = TASKS.get(sweep.spec.get("recipe", {}).get("task", ""))
    return int(recorded if recorded is not None else getattr(task, "forced_tokens", 0))


def _late(columns: dict[str, np.ndarray]) -> tuple[float, float]:
    """Mean pushes on wrong and right answers over the last fifth of the steps; NaN where no step has one."""
    size = max(1, round(SHARE * len(columns["step"])))
    late = [columns[f"push_{branch}"][-size:] for branch in ("incorrect", "correct")]
    wrong, right = (float(np.nanmean(v)) if not np.isnan(v).all() else float("nan") for v in late)
    return wrong, right


def _missing(found: Diagnosis) -> Iterator[str]:
    if found.wrong is None and found.right is None and found.length is not None:
        yield "lengths of wrong and right answers apart: log completions with rewards (TRL: log_completions=True)"
    if found.length is None and found.wrong is None:
        yield "lengths in tokens"
    if found.reward is None:
        yield "rewards"
    if found.own_push is None:
        yield "pushes: completions with lengths, endings, rewards and groups"


def lines(found: Diagnosis) -> list[str]:
    """The diagnosis as at most twelve lines of text."""
    out = [f"{found.run_id}: {found.steps} steps of {found.mode}", f"  {found.headline}"]
    if found.wrong is None and found.right is None and found.length is not None:
        out[1] = f"  Mean length {_ends(found.length)}."
    if found.reward is not None:
        out.append(f"  Reward {_ends(found.reward)}.")
    if found.own_push is not None:
        push = found.own_push
        ways = f"wrong {push.wrong:+.2f} ({push.on_wrong}), right {push.right:+.2f}"
        out.append(f"  Push of {push.mode} on stopping: {ways}.")
    if found.other_pushes:
        others = "; ".join(f"{p.mode} {p.wrong:+.2f}, {p.right:+.2f}" for p in found.other_pushes)
        out.append(f"  On the same rows (wrong, right): {others}.")
    if found.own_push is not None:
        came = "none to tell" if found.separation is None else f"{found.separation:+.4f} log odds per unit of push"
        out.append(f"  Separation that came: {came}. How much of a push cancels, only a probe tells.")
    out += [f"  Also: {one_line(c.sentence)}; {c.remedy}." for c in found.confounders[:3]]
    if found.missing:
        out.append(f"  Not in this log: {'; '.join(found.missing)}.")
    out.append(f"  {found.advice}")
    return [*out, f"  {found.paste}"] if found.paste else out


def _ends(found: Change) -> str:
    interval = "" if found.low is None or found.high is None else f" (change [{found.low:+.2g}, {found.high:+.2g}])"
    told = "" if found.told or found.low is None else ", can't tell a change"
    return f"{found.first:.3g} → {found.last:.3g}{interval}{told}"
