"""The tests and intervals of paired runs, against scipy and against sums done by hand."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from lossbench.metrics.paired import paired
from lossbench.stats import (
    EXACT_PAIRS,
    bootstrap_interval,
    detectable_d_z,
    holm,
    non_inferiority,
    power_paired_t,
    ratio_interval,
    seeds_needed,
    sign_flip_p,
    smallest_p,
    t_interval,
    tost,
)


def test_sign_flip_p_by_hand():
    # d = 1, 2, -1: the eight sums are ±4, ±2, ±2, 0, 0; the observed one is 2, and 4, 2, 2 reach it.
    assert sign_flip_p(np.array([1.0, 2.0, -1.0]), "greater") == 3 / 8
    # At most 2: all but 4.
    assert sign_flip_p(np.array([1.0, 2.0, -1.0]), "less") == 7 / 8
    assert sign_flip_p(np.array([1.0, 2.0, -1.0]), "two-sided") == 6 / 8


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
@pytest.mark.parametrize("n", [2, 5, 9])
def test_sign_flip_p_agrees_with_scipy(alternative, n):
    differences = np.random.default_rng(n).normal(0.5, 1, n)
    reference = scipy_stats.permutation_test(
        (differences,),
        np.sum,
        permutation_type="samples",
        alternative=alternative,
        n_resamples=np.inf,
        vectorized=False,
    )
    # scipy's two-sided p doubles the smaller tail; both count |sum| here because the null distribution is symmetric.
    assert sign_flip_p(differences, alternative) == pytest.approx(reference.pvalue)


def test_sign_flip_p_of_many_pairs_is_sampled_and_close_to_normal():
    differences = np.random.default_rng(3).normal(0.3, 1, EXACT_PAIRS + 20)
    p = float(sign_flip_p(differences, "greater"))
    z = differences.sum() / math.sqrt((differences**2).sum())
    assert p == pytest.approx(scipy_stats.norm.sf(z), abs=0.01)
    assert p == float(sign_flip_p(differences, "greater"))


def test_sign_flip_p_is_exact_up_to_the_limit_and_counts_the_observed_pattern_beyond_it():
    # 18 pairs of one sign: 2 of 2^18 patterns. 20 pairs: none of the 100,000 patterns drawn has all signs alike, so
    # (0 + 1) / (100,000 + 1).
    assert sign_flip_p(np.ones(EXACT_PAIRS)) == 2 / 2**18
    assert sign_flip_p(np.ones(20), "greater") == 1 / 100_001


def test_sign_flip_p_ties_and_nothing():
    assert sign_flip_p(np.zeros(4), "greater") == 1 and sign_flip_p(np.zeros(4)) == 1
    assert np.isnan(sign_flip_p(np.array([1.0, np.nan])))
    assert np.isnan(sign_flip_p(np.array([])))
    # 0.1 + 0.2 and 0.3 differ in the last bit: a tie must stay a tie.
    assert sign_flip_p(np.array([0.1, 0.2, -0.3]), "greater") == pytest.approx(5 / 8)


@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed-pairs"])
def test_false_positive_rate_on_null_data(noise):
    rng = np.random.default_rng(7)
    shape = (1000, 8)
    if noise == "normal":
        differences = rng.normal(0, 1, shape)
    elif noise == "heavy":
        differences = rng.standard_t(2, shape)
    else:
        differences = rng.exponential(1, shape) - rng.exponential(1, shape)
    for level in (0.05, 0.01):
        for alternative in ("greater", "two-sided"):
            rate = float((sign_flip_p(differences, alternative) <= level).mean())
            assert rate <= level + 3 * math.sqrt(level * (1 - level) / 1000)


def test_smallest_p_and_seeds_needed():
    assert smallest_p(8, "greater") == 1 / 256 and smallest_p(8) == 1 / 128
    assert smallest_p(0) == 1
    # 1/16 > .05 ≥ 1/32; 2/32 > .05 ≥ 2/64; 1/64 > .01 ≥ 1/128
    assert seeds_needed(0.05, "greater") == 5
    assert seeds_needed(0.05, "two-sided") == 6
    assert seeds_needed(0.01, "greater") == 7


def test_t_interval_agrees_with_scipy():
    values = np.array([1.0, 4.0, 2.0, 7.0])
    reference = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = t_interval(values)
    assert interval.estimate == 3.5
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))
    single = t_interval([2.0])
    assert single.estimate == 2 and np.isnan(single.low) and np.isnan(t_interval([]).estimate)


def test_ratio_interval_is_on_the_log_scale():
    # Ratios 2 and 8: geometric mean 4, and the interval of the logs is symmetric around log 4.
    interval = ratio_interval([4.0, 8.0], [2.0, 1.0])
    assert interval.estimate == pytest.approx(4)
    assert math.log(interval.high / 4) == pytest.approx(math.log(4 / interval.low))
    assert np.isnan(ratio_interval([1.0, -1.0], [1.0, 1.0]).estimate)


@pytest.mark.parametrize("statistic", ["difference", "ratio"])
def test_bootstrap_interval(statistic):
    rng = np.random.default_rng(0)
    a, b = rng.normal(20, 2, 40), rng.normal(10, 1, 40)
    interval = bootstrap_interval(a, b, np.random.default_rng(1), statistic)
    again = bootstrap_interval(a, b, np.random.default_rng(1), statistic)
    assert interval == again
    if statistic == "difference":
        # With 40 pairs the percentile bootstrap is close to the t interval.
        wanted = t_interval(a - b)
        assert interval.estimate == pytest.approx(wanted.estimate)
        assert (interval.low, interval.high) == pytest.approx((wanted.low, wanted.high), abs=0.15)
    else:
        assert interval.low < a.mean() / b.mean() == interval.estimate < interval.high


def test_power_and_detectable_effect():
    # Table of the paired t test at 80 % power, two-sided .05 (n = 3, 4, 5, 6, 8, 10).
    table = {3: 3.26, 4: 2.13, 5: 1.68, 6: 1.43, 8: 1.16, 10: 1.00}
    for n, d_z in table.items():
        assert detectable_d_z(n) == pytest.approx(d_z, abs=0.01)
    assert power_paired_t(detectable_d_z(8), 8) == pytest.approx(0.8)
    assert power_paired_t(0.0, 8) == pytest.approx(0.05)
    # Six pairs reject two-sided at .05 only where all have one sign: p is 2/64, the next 4/64.
    assert power_paired_t(1.44, 6) == pytest.approx(scipy_stats.norm.cdf(1.44) ** 6 + scipy_stats.norm.cdf(-1.44) ** 6)
    # Four pairs give no two-sided p below 2/16, so their exact test has no power at all.
    assert power_paired_t(100.0, 4) == 0
    simulated = np.random.default_rng(2).normal(1.16, 1, (4000, 8))
    assert (sign_flip_p(simulated) <= 0.05).mean() == pytest.approx(0.8, abs=0.05)


def test_non_inferiority_is_the_shifted_test():
    differences = np.array([-0.01, -0.02, 0.01, -0.005, 0.0])
    # Shifted by .03 all five are positive: the observed sum is the largest of 32.
    assert non_inferiority(differences, 0.03) == 1 / 32
    assert non_inferiority(differences - 0.05, 0.03) == 1
    with pytest.raises(ValueError, match="margin"):
        non_inferiority(differences, 0)


def test_tost_is_the_ninety_percent_interval():
    differences = np.array([0.01, -0.02, 0.015, 0.0, 0.02, -0.01])
    bound = t_interval(differences, 0.90)
    reach = max(abs(bound.low), abs(bound.high))
    assert tost(differences, -reach * 1.001, reach * 1.001) < 0.05 < tost(differences, -reach * 0.999, reach * 0.999)
    reference = max(
        scipy_stats.ttest_1samp(differences, -0.03, alternative="greater").pvalue,
        scipy_stats.ttest_1samp(differences, 0.03, alternative="less").pvalue,
    )
    assert tost(differences, -0.03, 0.03) == pytest.approx(reference)
    assert tost([0.0, 0.0], -1, 1) == 0 and tost([2.0, 2.0], -1, 1) == 1 and np.isnan(tost([0.0], -1, 1))


def test_holm_by_hand():
    # Sorted: .01 × 4 = .04; .02 × 3 = .06; .03 × 2 = .06; .9 × 1 = .9, each at least the one before.
    assert holm({"a": 0.03, "b": 0.01, "c": 0.9, "d": 0.02}) == pytest.approx(
        {"a": 0.06, "b": 0.04, "c": 0.9, "d": 0.06}
    )


def test_holm_never_falls_from_one_rank_to_the_next():
    # 3 x .01 = .03, 2 x .02 = .04, and 1 x .021 = .021 is raised to the .04 before it.
    assert holm({"a": 0.01, "b": 0.02, "c": 0.021}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})


def test_ratio_interval_has_the_confidence_asked_for():
    # Log ratios 0 and log 4 over two pairs: mean log 2, standard error log 2; t(1 df) at 90 % is 6.3138.
    interval = ratio_interval([1, 4], [1, 1], 0.9)
    assert [interval.low, interval.high] == pytest.approx([2 / 2**6.3138, 2 * 2**6.3138], rel=1e-4)


def test_holm_keeps_the_size_of_the_announced_family():
    adjusted = holm({"a": 0.01, "b": float("nan")})
    assert adjusted["a"] == 0.02 and np.isnan(adjusted["b"])


def test_paired_uses_common_seeds_and_names_the_rest():
    result = paired({0: 1.0, 1: 3.0, 42: 9.0, 7: float("nan")}, {0: 2.0, 1: 1.0, 5: 4.0, 7: 1.0})
    assert result.seeds == (0, 1) and result.n == 2
    assert result.only_a == (42,) and result.only_b == (5,) and result.undefined == (7,)
    assert result.differences == (-1.0, 2.0)
    assert result.difference == 0.5 and result.mean_a == 2 and result.mean_b == 1.5
    # Sums of ±1 ±2: 3, 1, -1, -3; the observed one is 1.
    assert result.p_greater == 0.5 and result.p_two_sided == 1


def test_identical_runs_are_no_difference():
    values = {seed: float(seed) + 1 for seed in range(8)}
    result = paired(values, values)
    assert result.difference == result.ci_low == result.ci_high == 0 and result.p_two_sided == 1
    assert "no difference" in result.statement


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ({}, {0: 1.0}, "no runs"),
        ({0: 1.0}, {1: 1.0}, "no common seeds"),
        ({0: 1.0}, {0: 2.0}, "only one pair"),
        ({0: float("nan"), 1: 1.0}, {0: 2.0, 1: 1.0}, "no value"),
    ],
)
def test_what_cannot_be_tested_says_why(a, b, reason):
    result = paired(a, b)
    assert result.reason is not None and result.reason.startswith("cannot be tested because")
    assert reason in result.statement


def test_few_seeds_are_told_what_they_cannot_reach():
    result = paired(dict(enumerate([1.0, 2.0, 3.0])), dict(enumerate([0.0, 0.0, 0.0])))
    assert "smallest attainable p is 0.25" in result.statement


def test_holm_never_lets_a_larger_p_pass_a_smaller_one():
    # .01 × 3, .02 × 2 and .021 × 1, of which the last is below the one before.
    assert holm({"a": 0.01, "b": 0.02, "c": 0.021}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})


def test_a_sampled_p_counts_the_observed_pattern():
    # 20 equal differences: no drawn pattern reaches their sum, so (0 + 1)/(2 × 50,000 + 1).
    assert sign_flip_p(np.ones(20), "greater") == pytest.approx(1 / 100_001)


def test_the_standardised_effect_has_n_minus_one():
    # -1 and 2: mean .5, standard deviation 3/√2 = 2.1213 with n - 1 (1.5 with n).
    result = paired({0: -1.0, 1: 2.0}, {0: 0.0, 1: 0.0})
    assert result.d_z == pytest.approx(0.2357, abs=1e-4)
