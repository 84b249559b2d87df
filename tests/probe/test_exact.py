"""The probe on a policy whose expected drift is known in closed form or by long simulation."""

import numpy as np
import pytest
from support.hazard_policy import (
    CORRECT,
    WRONG,
    HazardPolicy,
    HazardSource,
    closed_form,
    draw,
    hazard_score,
    length_slope,
)

from lossbench.loss.advantages import advantages
from lossbench.loss.modes import parse_mode
from lossbench.loss.window import window_weights
from lossbench.probe.batches import Sampling
from lossbench.probe.drift import DriftTable, matched_difference
from lossbench.probe.prober import Prober, ProbeSettings, joined
from lossbench.probe.projections import Projections, projections_of
from lossbench.stats import t_interval
from lossbench.store.write import as_arrow

POLICY = HazardPolicy(accuracy=0.3, stop_correct=0.15, stop_wrong=0.1)
GROUPS, GROUP_SIZE, PAIRS = 4, 8, 120
ROWS = GROUPS * GROUP_SIZE
ROW_ALONE = {
    "seq-mean-token-mean": lambda n: 1 / n,
    "length-power:0": lambda n: 1 / n,
    "length-power:0.5": lambda n: n**-0.5,
    "length-power:1.5": lambda n: n**0.5,
    "length-power:2": lambda n: n * 1.0,
}


@pytest.fixture(scope="module")
def probe() -> Projections:
    settings = ProbeSettings(Sampling(ROWS, GROUP_SIZE), pairs=PAIRS, metrics=("plain",), random_directions=1)
    prober = Prober(POLICY, HazardSource(POLICY, GROUPS, GROUP_SIZE), settings)
    assert prober.engine.name == "local"
    columns = joined([prober.pair(number) for number in range(PAIRS)])
    return projections_of(as_arrow("probe", {**columns, "policy": ["hazard"] * len(columns["pair"])}).to_pandas())[0]


@pytest.mark.parametrize("direction", ["incorrect", "correct"])
@pytest.mark.parametrize("agg_mode", ROW_ALONE)
def test_drift_agrees_with_the_closed_form(probe, agg_mode, direction):
    expected = closed_form(POLICY, ROW_ALONE[agg_mode], ROWS, GROUP_SIZE)[direction]
    found = DriftTable(probe).drift(parse_mode(f"grpo@{agg_mode}/none"), direction, "plain", "row-weight")
    error = (found.high - found.low) / 2 / 1.98  # t quantile of 119 degrees of freedom
    assert abs(found.drift - expected) < 3 * error
    assert np.sign(expected) == (1 if direction == "incorrect" else -1) * (-1 if agg_mode[-3:] in ("1.5", "r:2") else 1)


@pytest.mark.parametrize(
    "mode", ["grpo@token-mean/none", "grpo@prompt-mean/none", "grpo@delta-l:1/none", "grpo", "dapo"]
)
def test_drift_agrees_with_a_long_simulation_where_the_weight_looks_at_other_rows(probe, mode):
    expected, error_expected = simulated_drift(parse_mode(mode), windows=1000)
    found = DriftTable(probe).drift(parse_mode(mode), "incorrect", "plain", "row-weight")
    error = (found.high - found.low) / 2 / 1.98
    assert abs(found.drift - expected) < 3 * np.hypot(error, error_expected)


def simulated_drift(mode, windows: int) -> tuple[float, float]:
    """Mean and standard error of the matched drift on incorrect length, with the exact gradient of the mean length."""
    import torch

    rng = np.random.default_rng(11)
    correct_WN, lengths_WN = draw(rng, POLICY, (windows, ROWS))
    groups_N = torch.arange(ROWS) // GROUP_SIZE
    pull_W, size_W = np.zeros((2, windows)), np.zeros((2, windows))
    hazard = POLICY.stops[WRONG]
    for window in range(windows):
        lengths_N = torch.from_numpy(lengths_WN[window])
        adv_N = advantages(torch.from_numpy(correct_WN[window].astype(float)), groups_N, mode.scale_rewards)
        along_N = ~correct_WN[window] * hazard_score(lengths_WN[window], hazard) * 2 * length_slope(hazard)
        for i, agg_mode in enumerate((mode.aggregation, "seq-mean-token-sum")):
            weights_N = window_weights(agg_mode, lengths_N, groups_N, horizon=128.0)
            pull_W[i, window] = (weights_N * adv_N * along_N).sum()
            size_W[i, window] = weights_N[adv_N != 0].sum()
    _, values_W = matched_difference(pull_W[0], pull_W[1], size_W[0], size_W[1])
    return float(values_W.mean()), float(values_W.std(ddof=1) / windows**0.5)


def test_the_interval_covers_the_closed_form_as_often_as_it_says():
    """400 probes of 40 pairs of 32 completions; projections by the hazard policy's formulas, directions estimated."""
    repetitions, pairs = 400, 40
    rng = np.random.default_rng(5)
    correct, lengths = draw(rng, POLICY, (repetitions, pairs, 2, ROWS))
    score = np.where(correct, hazard_score(lengths, POLICY.stops[CORRECT]), hazard_score(lengths, POLICY.stops[WRONG]))
    wrong = ~correct
    count = wrong.sum(-1, keepdims=True)
    centred = np.where(wrong, lengths - (lengths * wrong).sum(-1, keepdims=True) / count, 0)
    direction = (centred * score).sum(-1, keepdims=True) / (count - 1)
    projection = wrong * score * 2 * direction[:, :, ::-1]
    by_group = correct.reshape(*correct.shape[:-1], GROUPS, GROUP_SIZE).astype(float)
    advantage = (by_group - by_group.mean(-1, keepdims=True)).reshape(correct.shape)
    weights = {"mode": 1 / (ROWS * lengths), "base": np.full(lengths.shape, 1 / ROWS)}
    pull = {name: (w * advantage * projection).sum(-1).mean(-1) for name, w in weights.items()}
    size = {name: (w * (advantage != 0)).sum(-1).mean(-1) for name, w in weights.items()}
    _, values = matched_difference(pull["mode"], pull["base"], size["mode"], size["base"])
    expected = closed_form(POLICY, lambda n: 1 / n, ROWS, GROUP_SIZE)["incorrect"]
    intervals = [t_interval(row) for row in values]
    covered = np.mean([interval.low <= expected <= interval.high for interval in intervals])
    assert 0.92 <= covered <= 0.98
    assert abs(values.mean() - expected) < 4 * values.std() / values.size**0.5
