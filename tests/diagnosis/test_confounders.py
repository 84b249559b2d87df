"""Each confounder on a run that has it, and none on a healthy run."""

import numpy as np
import pandas as pd
import pytest

from lossbench.diagnosis.confounders import Run, confounders

STEPS = 50


def steps(**columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    healthy = {
        "reward_mean": np.linspace(0.3, 0.6, STEPS) + rng.normal(0, 0.01, STEPS), "length_mean": [20.0] * STEPS,
        "truncated_frac": [0.01] * STEPS, "zero_std_frac": [0.2] * STEPS, "clip_frac": [0.0] * STEPS,
        "grad_norm": [0.5] * STEPS,
    }  # fmt: skip
    return pd.DataFrame({"step": range(1, STEPS + 1), **healthy, **columns})


def test_a_healthy_run_has_none() -> None:
    right = pd.DataFrame({"length_tokens": range(100), "reward": [1.0] * 100})
    assert confounders(Run(steps(), right, max_grad_norm=1.0)) == []
    assert confounders(Run(pd.DataFrame({"step": [1, 2]}))) == []


@pytest.mark.parametrize(
    ("name", "run", "words"),
    [
        ("collapse", Run(steps(reward_mean=np.linspace(0.86, 0.29, STEPS))), "reward fell from 0.81 to 0.34"),
        ("collapse", Run(steps(length_mean=[1.0] * STEPS)), "end after 1.0 tokens"),
        ("truncation", Run(steps(truncated_frac=[0.0] * 40 + [0.3] * 10)), "30% of late completions are cut"),
        ("truncation", Run(steps(truncated_frac=[1.0] * STEPS)), "nearly all late completions"),
        ("dead-groups", Run(steps(zero_std_frac=[0.8] * STEPS)), "80% of late groups"),
        ("clipping", Run(steps(clip_frac=[0.1] * STEPS)), "10.0% of late tokens"),
        ("clipping", Run(steps(grad_norm=[4.0] * STEPS), max_grad_norm=1.0), "norm is 4, cut to 1"),
    ],
)
def test_each_is_named_with_its_number(name: str, run: Run, words: str) -> None:
    # Reward from .86 to .29 over 50 steps: its first ten average .86 - .57 * 4.5/49 = .81, the last ten .34.
    (found,) = confounders(run)
    assert found.name == name and words in found.sentence and found.remedy


def test_length_in_the_reward_of_right_answers() -> None:
    lengths = np.arange(100)
    right = pd.DataFrame({"length_tokens": lengths, "reward": 1.0 - lengths / 200})
    (found,) = confounders(Run(steps(), right))
    assert found.name == "length-in-reward" and "r = -1.00" in found.sentence
    assert not confounders(Run(steps(), right.head(49)))


def test_the_worst_comes_first() -> None:
    run = Run(steps(reward_mean=np.linspace(0.86, 0.29, STEPS), truncated_frac=[0.1] * STEPS))
    assert [c.name for c in confounders(run)] == ["collapse", "truncation"]
