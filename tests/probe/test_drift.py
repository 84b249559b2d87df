"""From projections to drift: hand-worked windows, the matching of sizes, dose-response, and agreement with training."""

import numpy as np
import pytest

from lossbench.loss.modes import parse_mode
from lossbench.probe.dose_response import (
    branch_model,
    dose_response,
    length_facts,
    mechanism,
    zero_crossing,
)
from lossbench.probe.drift import DriftTable, matched_difference, summarise
from lossbench.probe.forecast import forecast
from lossbench.probe.projections import Projections, Window
from lossbench.probe.realised import order_checks, rank_agreement

SEQ_MEAN = "grpo@seq-mean-token-mean/none"


def window(pair: int, half: int, projection, correct=(True, False, False, True), rewards=None, lengths=(2, 4, 8, 2)):
    correct_N = np.array(correct)
    blocks = {("plain", "incorrect"): np.array(projection, dtype=float),
              ("plain", "random-0"): np.array([1.0, -1.0, 2.0, 0.5])}  # fmt: skip
    return Window(
        pair, half, np.array(lengths), np.array([0, 0, 1, 1]),
        correct_N.astype(float) if rewards is None else np.array(rewards, dtype=float),
        correct_N, np.ones(4, bool), blocks,
    )  # fmt: skip


def probe(*windows: Window) -> Projections:
    return Projections("policy", 0, list(windows), {"horizon": 16})


def test_one_pair_by_hand():
    # rewards 1 0 | 0 1, so A = .5 -.5 | -.5 .5; s = 3 1 -2 4 in both halves
    # sum/N:    w = 1/4:           (1.5 - .5 + 1 + 2) / 4 = 1.0
    # 1/(N L):  w L = 1/4:         (.75 - .125 + .125 + 1) / 4 = .4375; mean of 1/L: (.5 + .25 + .125 + .5) / 4 = .34375
    # matched:  scale = 1 / .34375 = 2.90909; .4375 * 2.90909 - 1 = .272727
    table = DriftTable(probe(window(0, 0, [3, 1, -2, 4]), window(0, 1, [3, 1, -2, 4])))
    found = table.drift(parse_mode(SEQ_MEAN), "incorrect", "plain", "row-weight")
    assert found.scale == pytest.approx(1 / 0.34375)
    assert found.drift == pytest.approx(0.4375 / 0.34375 - 1)
    assert found.raw == pytest.approx(0.4375 / 0.34375)
    assert (found.low, found.t, found.pairs, found.note) == (None, None, 1, "one pair: no interval")
    # z = 1 -1 2 .5: sum/N (.5 + .5 - 1 + .25)/4 = .0625; 1/(NL): (.25 + .125 - .125 + .125)/4 = .09375; scale 2/3
    by_norm = table.drift(parse_mode(SEQ_MEAN), "incorrect", "plain", "gradient-norm")
    assert by_norm.scale == pytest.approx(0.0625 / 0.09375)
    assert by_norm.drift == pytest.approx(0.4375 * 2 / 3 - 1)


def test_a_baseline_weighted_by_length_is_compared_with_the_mean_by_hand():
    # baselines sum(L r) / sum(L) = 2/6 | 2/10, so A = 2/3 -1/3 | -.2 .8; s = 3 1 -2 4; w = 1/4 in both modes
    # (2 - 1/3 + .4 + 3.2) / 4 = 1.316667, against 1.0 about the groups' means
    table = DriftTable(probe(window(0, 0, [3, 1, -2, 4]), window(0, 1, [3, 1, -2, 4])))
    mode = parse_mode("grpo@seq-mean-token-sum-norm/length-weighted")
    assert table.drift(mode, "incorrect", "plain", "row-weight").drift == pytest.approx(5.266667 / 4 - 1)


def test_modes_with_the_baselines_weights_differ_by_exactly_nothing():
    table = DriftTable(probe(*(window(p, h, [p + 3, h, -2, 4]) for p in range(4) for h in (0, 1))))
    for name in ("dr_grpo", "grpo@token-sum/none", "grpo@length-power:1/none", "grpo@delta-l:0/none"):
        found = table.drift(parse_mode(name), "incorrect", "plain", "row-weight")
        assert (found.drift, found.low, found.high, found.t) == (0, 0, 0, None)
        assert found.note.startswith("weights proportional to seq-mean-token-sum's")
        assert found.raw == pytest.approx(table.drift(parse_mode("dr_grpo"), "incorrect", "plain", "row-weight").raw)


def test_token_mean_keeps_its_small_bias_under_one_constant():
    # the token count differs between the windows, so one constant for the probe cannot make token-mean the baseline
    windows = [window(p, h, [3, 1, -2, 4], lengths=(2, 4, 8 + 4 * p, 2)) for p in range(3) for h in (0, 1)]
    found = DriftTable(probe(*windows)).drift(parse_mode("grpo@token-mean/none"), "incorrect", "plain", "row-weight")
    # pulls by 1/T: 4/T with T = 16, 20, 24; sizes 1/T; scale = .25 / mean(1/T): the mean pull is the baseline's exactly
    assert found.drift == pytest.approx(0, abs=1e-12)
    assert found.low < 0 < found.high or found.low == found.high == 0


def test_absent_directions_and_rewards_that_never_differ_are_said():
    everywhere = [window(p, h, [1, 2, 3, 4]) for p in range(3) for h in (0, 1)]
    no_rewards = DriftTable(probe(*(window(p, 0, [1, 2, 3, 4], rewards=[1, 1, 1, 1]) for p in range(3))))
    assert no_rewards.drift(parse_mode("grpo"), "incorrect", "plain", "row-weight").note.startswith(
        "no group has rewards that differ"
    )
    missing = DriftTable(probe(*everywhere)).drift(parse_mode("grpo"), "correct", "plain", "row-weight")
    assert missing.drift is None and missing.note == "no batch has this direction"
    all_right = [window(p, 0, [1, 2, 3, 4], correct=(True,) * 4, rewards=[1, 0, 0, 1]) for p in range(2)]
    for item in all_right:
        item.projections.pop(("plain", "incorrect"))
    found = DriftTable(probe(*all_right)).drift(parse_mode("grpo"), "incorrect", "plain", "row-weight")
    assert found.drift is None and found.note == "no incorrect completions"
    everywhere[0].projections.pop(("plain", "incorrect"))
    everywhere[1].projections.pop(("plain", "incorrect"))
    partial = DriftTable(probe(*everywhere)).drift(parse_mode("grpo"), "incorrect", "plain", "row-weight")
    assert partial.pairs == 2 and partial.note == "pairs without two incorrect completions in a batch: 1"


def test_the_interval_counts_the_error_of_the_scale():
    # equal pulls, sizes that vary: the mean is certain but for the scale, whose influence is the only spread
    mode, baseline = np.full(4, 2.0), np.full(4, 1.0)
    scale, values = matched_difference(mode, baseline, np.array([1.0, 2, 3, 2]), np.full(4, 4.0))
    assert scale == 2.0  # 4 / mean(1, 2, 3, 2)
    # 2 * 2 - 1 = 3, less 2 * 2 * (size / 2 - 1)
    assert values.tolist() == [5.0, 3.0, 1.0, 3.0]
    root, values = matched_difference(mode, baseline, np.array([1.0, 2, 3, 2]), np.full(4, 8.0), power=0.5)
    assert root == 2.0 and values.tolist() == [4.0, 3.0, 2.0, 3.0]


def test_summary_by_hand():
    mean, low, high, t, median, sign_p = summarise(np.array([1.0, 2.0, 3.0, 6.0]))
    # sd = sqrt((4 + 1 + 0 + 9) / 3) = 2.1602, over 2: 1.0801; t(.975, 3) = 3.1824
    assert (mean, median) == (3.0, 2.5)
    assert t == pytest.approx(3 / 1.0801, rel=1e-4)
    assert (low, high) == (pytest.approx(3 - 3.4374, abs=1e-3), pytest.approx(3 + 3.4374, abs=1e-3))
    assert sign_p == 0.125  # 2 / 2^4
    assert summarise(np.zeros(0)) == (None, None, None, None, None, None)


def geometric_probe(mean_length: float, accuracy: float = 0.5) -> Projections:
    """One window of lengths at the quantiles of a geometric distribution, the same for both classes."""
    quantiles = (np.arange(4000) + 0.5) / 4000
    lengths = np.ceil(np.log(1 - quantiles) / np.log(1 - 1 / mean_length)).astype(int)
    count = round(len(lengths) * accuracy / (1 - accuracy))
    right = lengths[np.linspace(0, len(lengths) - 1, count).astype(int)]
    both = np.concatenate([lengths, right])
    correct = np.arange(len(both)) >= len(lengths)
    blank = Window(0, 0, both, np.arange(len(both)) // 2, correct.astype(float), correct, correct, {})
    return Projections("policy", 0, [blank])


@pytest.mark.parametrize(
    ("alpha", "stated"), [(-0.5, 0.897), (0, 0.749), (0.25, 0.616), (0.5, 0.440), (0.75, 0.230), (1, 0), (1.5, -0.486)]
)
def test_branch_model_on_geometric_lengths(alpha, stated):
    """E[w S] / E[w] for geometric lengths of mean 50, in closed form or by simulation elsewhere."""
    assert branch_model(geometric_probe(50), alpha) == pytest.approx(stated, abs=0.01)


def test_branch_model_shortens_the_correct_and_weighs_all_by_accuracy():
    lengths = geometric_probe(50, accuracy=0.2)
    incorrect, correct = branch_model(lengths, 0, "incorrect"), branch_model(lengths, 0, "correct")
    assert correct == pytest.approx(-incorrect, rel=0.01)
    assert branch_model(lengths, 0, "all") == pytest.approx(0.8 * incorrect + 0.2 * correct)


def random_probe(seed: int = 0, pairs: int = 6) -> Projections:
    rng = np.random.default_rng(seed)
    windows = []
    for pair in range(pairs):
        for half in (0, 1):
            correct = np.array([True, False] * 8)
            lengths = rng.geometric(0.1, 16)
            blocks = {(m, d): rng.normal(size=16) - 0.2 * lengths * ~correct for m in ("plain", "adam")
                      for d in ("incorrect", "correct", "all", "random-0", "random-1")}  # fmt: skip
            groups = np.repeat([0, 1], 8)
            windows.append(Window(pair, half, lengths, groups, correct.astype(float), correct, correct, blocks))
    return Projections("policy", 0, windows, {"horizon": 64})


def test_dose_response_meets_theory_at_the_reference_and_zero_at_one():
    dose = dose_response(DriftTable(random_probe()), "incorrect", "plain", (0.0, 0.5, 1.0, 1.5))
    assert [point.alpha for point in dose.points] == [0, 0.5, 1, 1.5]
    assert dose.points[0].theory == pytest.approx(dose.points[0].drift.drift)
    assert dose.points[2].drift.drift == 0 and dose.zero == 1.0


def test_zero_crossing_of_a_broken_line():
    assert zero_crossing([0, 1, 2], [2.0, 1.0, -3.0]) == 1.25  # 1 + 1 / 4
    assert zero_crossing([0, 1], [2.0, 1.0]) is None
    assert zero_crossing([0, 1], [2.0, 0.0]) == 1
    assert zero_crossing([0, 1, 2], [2.0, None, -2.0]) == 1


def test_mechanism_and_lengths():
    found = mechanism(random_probe(), parse_mode(SEQ_MEAN))
    assert found.elasticity_incorrect == pytest.approx(-1) and found.elasticity_all == pytest.approx(-1)
    assert found.sign_length_imbalance == pytest.approx(0, abs=1e-12)  # each row weighs 1/N and advantages cancel
    assert mechanism(random_probe(), parse_mode("dr_grpo")).elasticity_all == pytest.approx(0, abs=1e-12)
    # bnpo of one row per micro-batch divides by the row's own length
    assert mechanism(random_probe(), parse_mode("bnpo"), micro_batch_rows=1).elasticity_all == pytest.approx(-1)
    assert mechanism(random_probe(), parse_mode("bnpo")).elasticity_all == pytest.approx(0, abs=1e-12)
    facts = {row.direction: row for row in length_facts(probe(window(0, 0, [1, 2, 3, 4])))}
    # incorrect lengths 4 and 8: mean 6, gap (1/4 + 1/8)/2 - 1/6, sd 2
    assert facts["incorrect"].length_mean == 6 and facts["incorrect"].length_cv == pytest.approx(1 / 3)
    assert facts["incorrect"].jensen_gap == pytest.approx(3 / 16 - 1 / 6)


def test_forecast_grows_with_steps_and_its_noise_with_their_root():
    table, mode = DriftTable(random_probe(pairs=120)), parse_mode(SEQ_MEAN)
    size = {"rows_per_step": 16, "learning_rate": 1e-3, "seeds": 8}
    short, long = forecast(table, mode, steps=100, **size), forecast(table, mode, steps=400, **size)
    assert long.change_tokens == pytest.approx(4 * short.change_tokens)
    assert long.noise_tokens == pytest.approx(2 * short.noise_tokens)
    matched = table.drift(mode, "incorrect", "adam", "gradient-norm")
    assert short.change_tokens == pytest.approx(1e-3 * 100 * matched.drift)
    assert long.power >= short.power
    assert (short.low_tokens, short.high_tokens) == pytest.approx((1e-3 * 100 * matched.low, 1e-3 * 100 * matched.high))
    assert short.low_tokens * short.high_tokens > 0 and short.pairs_needed is None


def test_a_drift_that_may_be_zero_has_no_forecast_but_the_pairs_it_needs():
    table = DriftTable(random_probe(pairs=3))
    found = forecast(table, parse_mode(SEQ_MEAN), steps=100, rows_per_step=16, learning_rate=1e-3, seeds=8)
    drift = table.drift(parse_mode(SEQ_MEAN), "incorrect", "adam", "gradient-norm")
    assert drift.low < 0 < drift.high
    assert found.change_tokens is found.power is None
    # t = mean / (sd / sqrt 3): a test with a power of .8 needs ((1.96 + .84) sd / mean)^2 = 3 (2.8 / t)^2 pairs
    assert found.pairs_needed == np.ceil(3 * (2.8 / drift.t) ** 2)


def test_rank_agreement():
    assert rank_agreement([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]).correlation.estimate == pytest.approx(0.9)  # 1 - 6*2/(5*24)
    found = rank_agreement([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])
    # atanh .9 = 1.4722, error sqrt((1 + .405) / 2) = .8382: tanh(1.4722 -+ 1.96 * .8382)
    assert found.correlation.low == pytest.approx(-0.169, abs=2e-3)
    assert found.correlation.high == pytest.approx(0.996, abs=2e-3)
    assert np.isnan(rank_agreement([1, 1, 1], [1, 2, 3]).correlation.estimate)


def test_orders_of_drift_and_training_are_compared_pair_by_pair():
    table = DriftTable(random_probe(pairs=30))
    drift = table.drift(parse_mode(SEQ_MEAN), "incorrect", "plain", "row-weight")
    assert drift.low is not None and (drift.low > 0 or drift.high < 0)
    sign = np.sign(drift.drift)
    seeds = range(6)
    lengths = {
        SEQ_MEAN: {seed: 20 + 5 * sign + 0.1 * seed for seed in seeds},
        "dr_grpo": dict.fromkeys(seeds, 20.0),
        "grpo@token-sum/none": dict.fromkeys(seeds, 30 * sign),
        "grpo": dict.fromkeys(seeds, 1.0),
    }
    verdicts = {(check.mode_a, check.mode_b): check.verdict for check in order_checks(table, lengths)}
    assert verdicts[SEQ_MEAN, "dr_grpo"] == "agree"
    assert verdicts["dr_grpo", "grpo@token-sum/none"] == "only the lengths differ"
    assert all("grpo" not in pair for pair in verdicts)  # its scale_rewards is another
    few = {name: {seed: values[seed] for seed in range(3)} for name, values in lengths.items()}
    assert order_checks(table, few)[0].verdict == "only the drift differs"  # three seeds cannot reach .05
