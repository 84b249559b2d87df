"""The mode that a log's own loss tells, and what keeps it from telling."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossbench.diagnosis.loss_log import identify_log
from lossbench.store.read import load
from lossbench.store.write import write_json, write_table

GROUP, GROUPS, STEPS = 4, 3, 6
HORIZON = 50


def advantages(rewards_PG, scale):
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdims=True)
    if scale == "none":
        return centred_PG
    std = rewards_PG.std(1, ddof=1, keepdims=True) if scale == "group" else rewards_PG.std(ddof=1)
    return centred_PG / (std + 1e-4)


WEIGHTS = {
    "token-mean": lambda lengths_PG: np.full_like(lengths_PG, 1 / lengths_PG.sum()),
    "seq-mean-token-mean": lambda lengths_PG: 1 / (lengths_PG.size * lengths_PG),
    "seq-mean-token-sum": lambda lengths_PG: np.full_like(lengths_PG, 1 / lengths_PG.size),
    "seq-mean-token-sum-norm": lambda lengths_PG: np.full_like(lengths_PG, 1 / (lengths_PG.size * HORIZON)),
    "token-sum": np.ones_like,
    "prompt-mean": lambda lengths_PG: 1 / (GROUPS * lengths_PG.sum(1, keepdims=True) + 0 * lengths_PG),
}


def logged(folder, weights, scale="none", *, decimals=4, every=1, seed=0, kl=None, rewards=True, dead=True):
    """A run whose losses are -sum of w A L, rounded as a Trainer rounds them."""
    rng = np.random.default_rng(seed)
    labels = {"run_id": "r", "mode": "grpo", "loss_type": "grpo", "agg_mode": "x", "scale_rewards": "none", "seed": 0}
    steps, rollouts = [], []
    for step in range(1, STEPS + 1):
        lengths_PG = rng.integers(1, 60, (GROUPS, GROUP)).astype(float)
        rewards_PG = rng.integers(0, 2, (GROUPS, GROUP)) + 0.1 * rng.integers(0, 3, (GROUPS, GROUP))
        if dead and step % 2:
            rewards_PG[0] = 0.5
        loss = -(weights(lengths_PG) * advantages(rewards_PG, scale) * lengths_PG).sum()
        if step % every == 0:
            steps.append({**labels, "step": step, "loss": round(float(loss), decimals), "kl": kl})
        rollouts += [
            {**labels, "step": step, "generation": step, "group": p, "sample": g, "prompt_id": p,
             "length_tokens": int(lengths_PG[p, g]), "terminated": True, "correct": True,
             "reward": float(rewards_PG[p, g]) if rewards else None}
            for p in range(GROUPS) for g in range(GROUP)
        ]  # fmt: skip
    run = folder / "runs" / "r"
    run.mkdir(parents=True)
    write_json(folder / "sweep.json", {"kind": "ingested", "runs": {"r": {**labels, "arm": "grpo"}}})
    write_json(run / "run.json", {"status": "completed"})
    write_table(run / "steps.parquet", "steps", steps)
    write_table(run / "rollouts.parquet", "rollouts", rollouts)
    return identify_log(load(folder), "r")


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("agg_mode", sorted(WEIGHTS.keys() - {"seq-mean-token-mean"}))
def test_each_mode_is_named_from_losses_of_four_decimals(agg_mode, scale, tmp_path):
    found = logged(tmp_path, WEIGHTS[agg_mode], scale)
    assert found.modes == (f"grpo@{agg_mode}/{scale}",), found.sentence
    assert found.steps == STEPS
    if agg_mode == "seq-mean-token-sum-norm":
        assert found.horizon == pytest.approx(HORIZON, rel=0.01)
        assert "with H = " in found.sentence
    else:
        assert found.horizon is None


def test_modes_that_the_log_cannot_tell_apart_are_all_named(tmp_path):
    # Without a group of equal rewards the live tokens are all tokens.
    found = logged(tmp_path, WEIGHTS["token-mean"], dead=False)
    assert found.modes == ("grpo@token-mean/none", "grpo@live-token-mean/none")
    assert " or " in found.sentence


def test_a_loss_of_zero_is_a_per_sequence_mean_or_too_small(tmp_path):
    # Every group's advantages add up to 0, and 1/L times L is 1: the loss is 0 whatever the rewards.
    found = logged(tmp_path, WEIGHTS["seq-mean-token-mean"])
    assert found.modes == ()
    assert found.sentence.startswith("a per-sequence mean")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), power=st.sampled_from([-0.5, 0.3, 0.5, 2.0]))
def test_other_row_weights_are_never_named(seed, power, tmp_path_factory):
    def weights(lengths_PG):
        return lengths_PG**power / lengths_PG.size * (1 + 0.2 * np.sin(lengths_PG))

    found = logged(tmp_path_factory.mktemp("log"), weights, seed=seed)
    assert found.modes == (), found.sentence


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"every": 2}, "a mean over 2 steps"),
        ({"kl": 0.1}, "KL term"),
        ({"rewards": False}, "log_completions=True"),
    ],
)
def test_what_keeps_a_log_from_telling_is_said(changes, why, tmp_path):
    found = logged(tmp_path, WEIGHTS["token-mean"], **changes)
    assert found.modes == () and found.sentence.startswith("can't tell, because") and why in found.sentence


@pytest.mark.slow
def test_the_committed_study_is_named_run_by_run():
    sweep = load("results/reference/dr_grpo")
    spec = json.loads((sweep.path / "sweep.json").read_text())["runs"]
    first = {run["arm"]: run_id for run_id, run in reversed(spec.items())}
    named = {arm: identify_log(sweep, first[arm]).modes for arm in ("grpo", "dr_grpo", "dapo")}
    assert named == {
        "grpo": (),
        "dr_grpo": ("grpo@seq-mean-token-sum-norm/none",),
        "dapo": ("grpo@token-mean/group",),
    }
