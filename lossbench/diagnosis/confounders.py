"""Confounders of completion length in one run beside its loss: checks, each with its number and remedy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lossbench.diagnosis.trend import change, late_mean

_LENGTH_IN_REWARD, _REWARD_LOST, _ONE_TOKEN = 0.2, 0.3, 2.0
_LEAST_ROWS = 50
# name, column of steps, late share above which it is a finding, severity at that share, sentence, remedy
_SHARES = (
    ("truncation", "truncated_frac", 0.05, 1.0, "{:.0%} of late completions are cut at the cap",
     "raise the cap (max_completion_length): uncut, they would be longer than the lengths shown"),
    ("dead-groups", "zero_std_frac", 0.5, 1.0, "{:.0%} of late groups have equal rewards and give no gradient",
     "prompts of middling difficulty, larger groups"),
    ("clipping", "clip_frac", 0.01, 0.2, "the ratio is clipped on {:.1%} of late tokens",
     "fewer steps per generation, or a wider epsilon"),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Input of the checks: the run's `steps` table in order of steps, its right completions, and its settings.

    `right` holds `length_tokens` and `reward` of late completions that ended and were right, or is None where no
    completions are known. `max_grad_norm` is None where it is unknown or off.
    """

    steps: pd.DataFrame
    right: pd.DataFrame | None = None
    max_grad_norm: float | None = None

    def late(self, column: str) -> float:
        """Mean of a column over the last fifth of the steps; NaN where it has no value there."""
        return late_mean(self.values(column))

    def values(self, column: str) -> np.ndarray:
        """A column as floats (S), NaN where it is null or missing."""
        if column not in self.steps:
            return np.full(len(self.steps), np.nan)
        return self.steps[column].to_numpy(dtype=float, na_value=np.nan)


@dataclass(frozen=True)
class Confounder:
    """One finding: how far beyond its limit (1 is at the limit), the sentence with its number, and what to do."""

    name: str
    severity: float
    sentence: str
    remedy: str


def _collapse(run: Run) -> Iterator[Confounder]:
    reward = change(run.values("reward_mean"))
    remedy = "lower the learning rate or add a KL term (beta); no mean over such a run describes a policy"
    if reward and reward.told and reward.first > 0 and reward.last < (1 - _REWARD_LOST) * reward.first:
        severity = 10 * (reward.first - reward.last) / reward.first
        yield Confounder("collapse", severity, f"reward fell from {reward.first:.2f} to {reward.last:.2f}", remedy)
    if (length := run.late("length_mean")) < _ONE_TOKEN:
        yield Confounder("collapse", 10.0, f"completions end after {length:.1f} tokens on average", remedy)


def _shares(run: Run) -> Iterator[Confounder]:
    for name, column, limit, severity, sentence, remedy in _SHARES:
        share = run.late(column)
        if share > limit:
            said = sentence.format(share).replace("100% of", "nearly all")
            yield Confounder(name, severity * share / limit, said, remedy)


def _clipped_norm(run: Run) -> Iterator[Confounder]:
    norm, limit = run.late("grad_norm"), run.max_grad_norm
    if limit and norm > limit:
        sentence = f"the gradient norm is {norm:.2g}, cut to {limit:g} (late): the step no longer depends on its scale"
        yield Confounder("clipping", min(norm / limit, 5.0) / 5, sentence, "max_grad_norm=0 shows whether it matters")


def _length_in_reward(run: Run) -> Iterator[Confounder]:
    if run.right is None or len(run.right) < _LEAST_ROWS:
        return
    lengths, rewards = (run.right[name].to_numpy(dtype=float) for name in ("length_tokens", "reward"))
    if lengths.std() == 0 or rewards.std() == 0:
        return
    r = float(np.corrcoef(lengths, rewards)[0, 1])
    if abs(r) > _LENGTH_IN_REWARD:
        sentence = f"the reward of right answers goes with their length (r = {r:+.2f})"
        remedy = "reward the answer alone, or judge length under a reward without a length term"
        yield Confounder("length-in-reward", abs(r) / _LENGTH_IN_REWARD, sentence, remedy)


def confounders(run: Run) -> list[Confounder]:
    """All findings, the worst first."""
    checks = (_collapse, _shares, _clipped_norm, _length_in_reward)
    return sorted((found for check in checks for found in check(run)), key=lambda c: -c.severity)
