"""Claims over policies: growth against the cancelled share, and the sign of the drift."""

import numpy as np
import pytest

from lossbench.claims.judge import judge
from lossbench.claims.policies import PolicyPoint, rank_correlation
from lossbench.claims.registry import CLAIMS
from lossbench.stats import Interval

NO_METRICS = None


def point(cancelled=0.5, growth=10.0, drift=(50.0, 40.0, 60.0), kind="selfcheck", seed=0):
    return PolicyPoint(kind, seed, growth, cancelled, Interval(*drift))


def verdict(claim, points):
    return judge(CLAIMS[claim], NO_METRICS, points=points)


def test_rank_correlation_by_hand():
    # ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6 (1 + 1 + 1 + 1 + 0) / (5 (25 - 1)) = 1 - 24/120 = .8
    found, _ = rank_correlation(np.array([1.0, 2, 3, 4, 5]), np.array([20.0, 10, 40, 30, 500]))
    assert found.estimate == pytest.approx(0.8)
    assert found.low < 0.8 < found.high <= 1


def test_the_interval_of_independent_values_covers_zero():
    rng = np.random.default_rng(3)
    covers = 0
    for _ in range(40):
        found, p = rank_correlation(rng.normal(size=24), rng.normal(size=24))
        assert (p <= 0.05) == (found.low > 0 or found.high < 0) or 0.04 < p < 0.06
        covers += found.low <= 0 <= found.high
    assert covers >= 34  # 38 expected of 40


def test_growth_that_falls_with_the_cancelled_share_supports_and_the_reverse_contradicts():
    shares = np.linspace(0.1, 1.0, 12)
    rising = [point(cancelled=share, growth=40 * (1 - share), seed=i) for i, share in enumerate(shares)]
    falling = [point(cancelled=share, growth=40 * share, seed=i) for i, share in enumerate(shares)]
    assert verdict("C12", rising).status == "supported"
    assert verdict("C12", rising).effect.estimate == pytest.approx(1.0)
    assert verdict("C12", falling).status == "contradicted"


def test_policies_without_a_share_or_too_few_are_not_tested():
    assert verdict("C12", [point(cancelled=np.nan)] * 9 + [point(), point()]).status == "not tested"
    assert verdict("C12", []).status == "not tested"


def test_within_kinds_the_means_of_kinds_count_for_nothing():
    # Between kinds growth rises with what is left, within each kind it falls: the note tells.
    points = [point(cancelled=1 - left / 10 - step / 100, growth=10 * left - step, kind=str(left), seed=step)
              for left in (1, 4, 7) for step in range(4)]  # fmt: skip
    found = verdict("C12", points)
    assert found.effect.estimate > 0.7
    assert found.notes[0].startswith("within kinds of policy, pooled: -1.00")


def test_signs_by_hand():
    up, down, open_ = point(), point(growth=-3.0, drift=(-20.0, -30.0, -10.0)), point(drift=(5.0, -5.0, 15.0))
    # Six of six equal signs by chance: 1/64 = .0156
    found = verdict("C14", [up] * 4 + [down] * 2 + [open_] * 5)
    assert (found.status, found.n) == ("supported", 6)
    assert found.p == pytest.approx(1 / 64)
    assert verdict("C14", [up] * 5 + [open_] * 5).status == "not tested"
    wrong = point(growth=-3.0)
    assert verdict("C14", [wrong] * 10).status == "contradicted"
    assert verdict("C14", [wrong, up] * 5).status == "inconclusive"
