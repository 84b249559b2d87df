"""Diagnosis of a run: change of lengths, push of its loss, confounders, and the setting to change."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lossbench.diagnosis.confounders import Confounder, Run, confounders
from lossbench.diagnosis.trend import Change, change, fifth, late_mean
from lossbench.errors import UsageError, one_line
from lossbench.loss.equivalents import equivalents
from lossbench.loss.modes import COMPARED, Mode, parse_mode
from lossbench.metrics.push import BRANCHES, hazards, pushes, separation
from lossbench.metrics.step_sums import Columns, as_columns
from lossbench.processes import cores
from lossbench.store.read import Sweep
from lossbench.store.step_row import sampling_rows_sql

PUSHED = 0.1
"""A push on the stop logit smaller than this is about none; 1/L weights give half a unit and more."""
DOMINANT = 6.0
"""Severity from which a confounder comes before the loss: a collapse, or 30 % of completions cut."""
_MODE_SETTINGS = ("loss_type=", "scale_rewards=", "importance_sampling_level=")
_FLAT = 0.05  # a change by less than this share of the first length is slight
_ROWS = ["step", "group", "length_tokens", "terminated", "correct", "reward"]


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
    missing: tuple[str, ...] = ()

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
    if unknown := [run_id for run_id in chosen if run_id not in sweep.run_ids]:
        raise UsageError(f"no run '{unknown[0]}' in '{sweep.path}'; valid: {', '.join(sweep.run_ids)}")
    with ThreadPoolExecutor(cores()) as pool:
        found = [item for item in pool.map(lambda run_id: _one(sweep, run_id), chosen) if item is not None]
    if not found:
        raise UsageError(f"'{sweep.path}' has no run with a step to diagnose")
    return found


def _one(sweep: Sweep, run_id: str) -> Diagnosis | None:
    table = sweep.run_table(run_id, "steps")
    if not table.num_rows:  # worked out from the completions
        table = sweep.query(run_id, "rollouts", [*_ROWS, "generation"], sampling_rows_sql) or table
    steps = table.to_pandas().sort_values("step")
    if steps.empty:
        return None
    run = Run(steps, _late_right(sweep, run_id, steps), sweep.spec.get("recipe", {}).get("max_grad_norm"))
    mode = str(sweep.spec["runs"][run_id].get("mode"))
    return _diagnosis(run_id, mode, run, *_pushes(sweep, run_id, mode))


def from_series(series: Sequence[Mapping[str, Any]], mode: str) -> Diagnosis:
    """The diagnosis of a run from its step rows in memory, with `push_incorrect/MODE` and `push_correct/MODE`."""
    run = Run(pd.DataFrame(series))
    keys = ("push_incorrect", "push_correct")
    pushed = {name: {key: run.values(f"{key}/{name}") for key in keys} for name in (mode, *COMPARED)}
    return _diagnosis("this run", mode, run, pushed, None)


def _diagnosis(run_id: str, mode: str, run: Run, pushed: Mapping[str, Columns], apart: float | None) -> Diagnosis:
    names = ("length_incorrect", "length_correct", "length_mean", "reward_mean")
    wrong, right, length, reward = (change(run.values(name)) for name in names)
    late = (Push(name, *(late_mean(of[f"push_{branch}"]) for branch in BRANCHES)) for name, of in pushed.items())
    known = {push.mode: push for push in late if not np.isnan(push.wrong)}
    own = known.pop(mode, None)
    return Diagnosis(
        run_id, mode, len(run.steps), _headline(wrong, right), wrong, right, length, reward, own,
        tuple(known.values()), apart, tuple(confounders(run)), tuple(_missing(wrong or right, length, reward, own)),
    )  # fmt: skip


def _headline(wrong: Change | None, right: Change | None) -> str:
    """The sentence on the lengths of wrong and right answers."""
    parts = [_told(who, found) for who, found in (("wrong answers", wrong), ("right answers", right)) if found]
    sentence = "; ".join(parts) or "no completion has both a length and a verdict"
    return f"{sentence[0].upper()}{sentence[1:]}."


def _told(who: str, found: Change) -> str:
    if not found.interval:
        return f"{who} {found.ends} tokens (too few steps for an interval)"
    if not found.told:
        return f"{who}: can't tell ({found.ends} tokens, {found.interval})"
    slight = " slightly" if abs(found.difference) < _FLAT * found.first else ""
    return f"{who} {'grew' if found.difference > 0 else 'shrank'}{slight}, {found.ends} tokens ({found.interval})"


def _missing(branch: Change | None, length: Change | None, reward: Change | None, own: Push | None) -> Iterator[str]:
    if not branch:
        apart = "lengths of wrong and right answers apart: log completions with rewards (TRL: log_completions=True)"
        yield apart if length else "lengths in tokens"
    if reward is None:
        yield "rewards"
    if own is None:
        yield "pushes: completions with lengths, endings, rewards and groups"


def _late_right(sweep: Sweep, run_id: str, steps: pd.DataFrame) -> pd.DataFrame | None:
    """Length and reward of right completions of the last fifth of the steps; None where no completions are known."""
    import pyarrow.compute as pc

    first = steps["step"].iloc[-fifth(len(steps))]
    # A completion that was cut earns less for that alone.
    rows = (pc.field("step") >= int(first)) & pc.field("correct") & pc.field("terminated")
    table = sweep.run_table(run_id, "rollouts", ["step", "correct", "terminated", "length_tokens", "reward"], rows)
    frame = table.to_pandas().dropna(subset=["length_tokens", "reward"])
    return frame if len(frame) else None


def _pushes(sweep: Sweep, run_id: str, name: str) -> tuple[dict[str, Columns], float | None]:
    """The pushes of the run's own mode and of others on the same rows by step, and the realised separation."""
    rows, own = as_columns(sweep.run_table(run_id, "rollouts", _ROWS)), None
    if not len(rows["step"]) or any(np.isnan(rows[column]).all() for column in _ROWS):
        return {}, None
    with suppress(ValueError):  # a log of another trainer may name any
        own = parse_mode(name)
    forced = sweep.forced_tokens(run_id)
    pushed = pushes(rows, compared_modes(own), forced)
    apart = separation(hazards(rows, forced), pushed[own.name]) if own else np.nan
    return pushed, None if np.isnan(apart) else apart


def compared_modes(mode: Mode | None) -> list[Mode]:
    """The run's own mode where it is known, and what others would have pushed on the same rows."""
    found = [*([mode] if mode else []), *map(parse_mode, COMPARED)]
    return list({mode.name: mode for mode in found}.values())


def lines(found: Diagnosis) -> list[str]:
    """The diagnosis as at most twelve lines of text."""
    out = [f"{found.run_id}: {found.steps} steps of {found.mode}", f"  {found.headline}"]
    if not (found.wrong or found.right) and found.length:
        out[1] = f"  Mean length {_curve(found.length)}."
    if found.reward:
        out.append(f"  Reward {_curve(found.reward)}.")
    if push := found.own_push:
        ways = f"wrong {push.wrong:+.2f} ({push.on_wrong}), right {push.right:+.2f}"
        out.append(f"  Push of {push.mode} on stopping: {ways}.")
    if found.other_pushes:
        others = "; ".join(f"{p.mode} {p.wrong:+.2f}, {p.right:+.2f}" for p in found.other_pushes)
        out.append(f"  On the same rows (wrong, right): {others}.")
    if found.own_push:
        came = "none to tell" if found.separation is None else f"{found.separation:+.4f} log odds per unit of push"
        out.append(f"  Separation that came: {came}. How much of a push cancels, only a probe tells.")
    out += [f"  Also: {one_line(c.sentence)}; {c.remedy}." for c in found.confounders[:3]]
    if found.missing:
        out.append(f"  Not in this log: {'; '.join(found.missing)}.")
    return [*out, f"  {found.advice}", *([f"  {found.paste}"] if found.paste else [])]


def _curve(found: Change) -> str:
    if not found.interval:
        return found.ends
    return f"{found.ends} ({found.interval})" + ("" if found.told else ", can't tell a change")
