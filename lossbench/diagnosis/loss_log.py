"""The loss mode behind a log, told by the loss that its on-policy steps logged.

In the first step on a generation every ratio is 1, so the loss of a ratio-type surrogate is -Σ w_i A_i L_i: lengths,
rewards and groups predict the logged number under every aggregation and advantage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lossbench.loss.advantages import TRL_SCALES, advantages
from lossbench.loss.aggregations import AGGREGATIONS, format_number
from lossbench.loss.modes import CLIP, make_mode
from lossbench.loss.window import window_weights
from lossbench.metrics.step_sums import Columns, as_columns, select
from lossbench.store.read import Sweep

RTOL = 2e-3
"""Share of a predicted loss by which a logged one may miss it beyond its rounding."""
_FEWEST_STEPS = 3
_NOISE = 1e-6  # advantages are of size 1 and float32 sums leave about 1e-7 of a loss that is 0
_DECIMALS = 12
_ROWS = ["step", "generation", "group", "length_tokens", "reward", "token_weight"]


@dataclass(frozen=True)
class LogFinding:
    """Modes that predict a log's loss over `steps` on-policy steps, in full spelling; `sentence` says so, or why none
    can be told. `horizon` is the constant H of the first, in tokens, where it has one."""

    modes: tuple[str, ...]
    horizon: float | None
    steps: int
    sentence: str


def identify_log(sweep: Sweep, run_id: str) -> LogFinding:
    """Name the mode that a run was trained with. Reads its `steps` and `rollouts` tables."""
    steps, rows = (as_columns(sweep.run_table(run_id, *wanted)) for wanted in (
        ("steps", ["step", "loss", "kl"]), ("rollouts", _ROWS)
    ))  # fmt: skip
    if why := _why_not(steps, rows):
        return LogFinding((), None, 0, f"can't tell, because {why}")
    known = {int(step): loss for step, loss in zip(steps["step"], steps["loss"], strict=True) if np.isfinite(loss)}
    rounds = [made for made in _rounds(rows) if int(made["step"].min()) in known]
    if len(rounds) < _FEWEST_STEPS:
        few = f"can't tell, because only {len(rounds)} steps log a loss and the completions that it is of"
        return LogFinding((), None, len(rounds), few)
    return _matched(rounds, np.array([known[int(made["step"].min())] for made in rounds]))


def _why_not(steps: Columns, rows: Columns) -> str:
    step = np.sort(steps["step"][np.isfinite(steps["loss"])])
    if not len(step):
        return "the log has no loss"
    if not len(rows["step"]) or any(np.isnan(rows[name]).all() for name in ("group", "length_tokens", "reward")):
        return "the log has no completions with lengths, rewards and groups (TRL: log_completions=True)"
    if np.nan_to_num(steps["kl"]).any():
        return "its loss holds a KL term (beta > 0)"
    if len(step) > 1 and np.diff(step).min() > 1:
        return f"it logs a mean over {np.diff(step).min():.0f} steps (TRL: logging_steps=1)"
    return ""


def _rounds(rows: Columns) -> Iterator[Columns]:
    """The rows of each generation (of each step, where generations are not known) that is known whole."""
    made_R = rows["step"] if np.isnan(rows["generation"]).any() else rows["generation"]
    order = np.argsort(made_R, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(made_R[order])) + 1):
        made = select(rows, at)
        if not any(np.isnan(made[name]).any() for name in ("step", "group", "length_tokens", "reward")):
            yield made


def _matched(rounds: list[Columns], logged_S: np.ndarray) -> LogFinding:
    decimals = next((d for d in range(_DECIMALS) if np.array_equal(np.round(logged_S, d), logged_S)), _DECIMALS)
    rounding, count = max(0.6 * 10.0**-decimals, _NOISE), len(logged_S)
    if np.count_nonzero(np.abs(logged_S) > 10 * rounding) < _FEWEST_STEPS:
        said = "a per-sequence mean, whose loss is 0 on-policy, or a loss too small to tell"
        return LogFinding((), None, count, f"{said} ({count} steps, largest {np.abs(logged_S).max():.1g})")
    found: dict[str, float | None] = {}
    for entry in AGGREGATIONS.values():
        if entry.depends_on_split or entry.takes_alpha:
            continue
        for scale in TRL_SCALES:
            at_1_S, at_2_S = (np.array([_predicted(entry.name, scale, made, h) for made in rounds]) for h in (1.0, 2.0))
            factor, constant = 1.0, not np.allclose(at_1_S, at_2_S)
            if constant:
                factor = float(logged_S @ at_1_S) / float(at_1_S @ at_1_S)
            missed_S = np.abs(logged_S - factor * at_1_S) - RTOL * np.abs(factor * at_1_S)
            if factor > 0 and missed_S.max() <= rounding:
                found[make_mode(CLIP, entry.name, scale).triple] = 1 / factor if constant else None
    exact = [mode for mode, horizon in found.items() if horizon is None] or list(found)
    if not exact:
        why = "another loss, rewards other than the trained ones, or steps that are off-policy"
        return LogFinding((), None, count, f"none of the modes that a log can tell predicts its loss: {why}")
    constant = found[exact[0]]
    with_constant = "" if constant is None else f" with H = {format_number(float(f'{constant:.4g}'))}"
    said = f"{' or '.join(exact)}{with_constant}: predicts the loss of {count} on-policy steps"
    return LogFinding(tuple(exact), constant, count, said)


def _predicted(agg_mode: str, scale: str, made: Columns, horizon: float) -> float:
    """The on-policy loss of the first step on a generation, whose advantages are relative to all its rows."""
    groups_R, lengths_R = made["group"].astype(np.int64), made["length_tokens"]
    first = made["step"] == made["step"].min()
    advantages_N = advantages(made["reward"], groups_R, scale, lengths_R)[first]
    lengths_N = np.where(made["token_weight"] == 0, 0.0, lengths_R)[first]  # rows may be masked out of the loss
    weights_N = window_weights(agg_mode, lengths_N, groups_R[first], horizon=horizon, advantages_N=advantages_N)
    return -float(np.sum(weights_N * advantages_N * lengths_N))
