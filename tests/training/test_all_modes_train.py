"""Every loss type and aggregation of the two articles the project starts from trains through TRL for real."""

import math

import pandas as pd
import pytest

from lossbench.loss.modes import parse_mode
from lossbench.training.run import execute
from lossbench.training.run_spec import RunSpec, Settings

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"]
AGG_MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
BEYOND = [
    "gspo", "luspo", "vespo", "gmpo@prompt-mean/batch", "grpo@length-power:0.5/none", "cispo@delta-l:0.75/none",
    "dppo@balanced/loo", "reinforce@live-token-mean/none+whiten-tokens", "grpo@token-mean/length-weighted+group",
]  # fmt: skip

# Two optimizer steps per generation, so that ratios leave 1 and every surrogate's own part is passed through.
SETTINGS = Settings(
    steps=3, num_generations=4, per_device_train_batch_size=8, steps_per_generation=2, max_completion_length=24,
    eval_samples=0, learning_rate=1e-3,
)  # fmt: skip


def spec_of(text):
    mode = parse_mode(text)
    return RunSpec(arm=mode.name, mode=mode, seed=0, policy="selfcheck", policy_seed=0, settings=SETTINGS)


@pytest.mark.parametrize("mode", [*LOSS_TYPES, *(f"grpo@{agg}/none" for agg in AGG_MODES), *BEYOND])
def test_it_trains(mode, tmp_path):
    execute(spec_of(mode), tmp_path)
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["generation"].iloc[0] == 1 and pd.isna(steps["generation"].iloc[1])  # 16 rows serve two steps
    assert pd.isna(steps["reward_mean"].iloc[1])  # nothing was sampled for it: null, not a copy
    assert all(math.isfinite(value) for value in steps["loss"])
    assert steps["grad_norm"].max() > 0
    rollouts = pd.read_parquet(tmp_path / "rollouts.parquet")
    assert rollouts.groupby("step").size().tolist() == [8, 8, 8]
    looks_at_advantages = parse_mode(mode).aggregation.entry.needs_advantages
    assert (rollouts["token_weight"] > 0).all() or (looks_at_advantages and rollouts["token_weight"].any())
