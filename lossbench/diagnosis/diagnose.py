"""The diagnosis of a run: what happened to length, what its loss pushed, what else could be the cause, what to change."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lossbench.diagnosis.closing import what_happened
from lossbench.diagnosis.confounders import Confounder, Run, confounders
from lossbench.diagnosis.trend import SHARE, Change, change
from lossbench.errors import UsageError, one_line
from lossbench.loss.modes import Mode, parse_mode
from lossbench.metrics.push import hazards, pushes, separation
from lossbench.metrics.step_sums import as_columns
from lossbench.processes import cores
from lossbench.store.read import RUN_FILE, Sweep, read_json

COMPARED = ("grpo", "dapo", "dr_grpo")
"""Modes whose push on the same rows stands beside the run's own."""
PUSHED = 0.1
"""A push on the stop logit smaller than this is about none; 1/L weights give half a unit and more."""
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
    def advice(self) -> str:
        """What to change, in one sentence."""
        worst = self.confounders[0] if self.confounders else None
        if worst is not None and worst.severity >= 2:
            return f"First: {worst.remedy}."
        if self.own_push is not None and self.own_push.wrong < -PUSHED:
            flat = next((p.mode for p in self.other_pushes[::-1] if abs(p.wrong) <= PUSHED), None)
            if self.wrong is not None and self.wrong.told and self.wrong.difference > 0 and flat:
                return f"The loss pushes wrong answers to grow, and they grow: {flat} would not push them."
            return f"The loss pushes wrong answers to grow; whether they will, only a probe tells ({flat} would not)."
        if self.own_push is not None:
            return f"{self.mode} does not push wrong answers to grow: nothing in the loss asks for a change."
        return "Log completions with rewards and groups: curves alone do not show what the loss pushes."


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
    steps = sweep.run_table(run_id, "steps").to_pandas().sort_values("step")
    if steps.empty:
        return None
    series = steps.to_dict("records")
    headline, wrong, right = what_happened(series)
    run = Run(steps, _late_right(sweep, run_id, steps), sweep.spec.get("recipe", {}).get("max_grad_norm"))
    length, reward = change(run.values("length_mean")), change(run.values("reward_mean"))
    own, others, apart = _pushes(sweep, run_id)
    return Diagnosis(
        run_id, str(sweep.spec["runs"][run_id].get("mode")), len(steps), headline, wrong, right, length, reward,
        own, others, apart, tuple(confounders(run)), tuple(_missing(wrong, right, length, reward, own)),
    )  # fmt: skip


def _late_right(sweep: Sweep, run_id: str, steps: Any) -> Any:
    """Length and reward of right completions of the last fifth of the steps; None where no completions are known."""
    import pyarrow.compute as pc

    first = steps["step"].iloc[-max(1, round(SHARE * len(steps)))]
    rows = (pc.field("step") >= int(first)) & pc.field("correct")
    table = sweep.run_table(run_id, "rollouts", ["step", "correct", "length_tokens", "reward"], rows)
    frame = table.to_pandas().dropna(subset=["length_tokens", "reward"])
    return frame if len(frame) else None


def _pushes(sweep: Sweep, run_id: str) -> tuple[Push | None, tuple[Push, ...], float | None]:
    """The late push of the run's own mode and of others on the same rows, and the realised separation."""
    rows = as_columns(sweep.run_table(run_id, "rollouts", list(_ROWS)))
    if not len(rows["step"]) or any(np.isnan(rows[name]).all() for name in _ROWS):
        return None, (), None
    own = _mode(sweep.spec["runs"][run_id].get("mode"))
    others = [parse_mode(name) for name in COMPARED]
    modes = [*([own] if own else []), *(mode for mode in others if mode != own)]
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
    """Tokens that the run's task dictates: recorded with the run, 0 where it is not."""
    path = sweep.run_dir(run_id) / RUN_FILE
    return int(read_json(path).get("forced_tokens") or 0) if path.exists() else 0


def _late(columns: dict[str, np.ndarray]) -> tuple[float, float]:
    """Mean pushes on wrong and right answers over the last fifth of the steps; NaN where no step has one."""
    size = max(1, round(SHARE * len(columns["step"])))
    late = [columns[f"push_{branch}"][-size:] for branch in ("incorrect", "correct")]
    wrong, right = (float(np.nanmean(v)) if not np.isnan(v).all() else float("nan") for v in late)
    return wrong, right


def _missing(*parts: Any) -> Iterator[str]:
    wrong, right, length, reward, own = parts
    if wrong is None and right is None and length is not None:
        yield "lengths of wrong and right answers apart: log completions with rewards (TRL: log_completions=True)"
    if length is None and wrong is None:
        yield "lengths in tokens"
    if reward is None:
        yield "rewards"
    if own is None:
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
        out.append(
            f"  Push of {push.mode} on stopping: wrong {push.wrong:+.2f} ({push.on_wrong}), right {push.right:+.2f}."
        )
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
    return out


def _ends(found: Change) -> str:
    interval = "" if found.low is None or found.high is None else f" (change [{found.low:+.2g}, {found.high:+.2g}])"
    told = "" if found.told or found.low is None else ", can't tell a change"
    return f"{found.first:.3g} → {found.last:.3g}{interval}{told}"
