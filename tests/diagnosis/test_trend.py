"""First to last fifth of a run, and how often the interval of a change covers the truth."""

import numpy as np
import pytest

from lossbench.diagnosis.trend import change


def test_the_fifths_are_of_the_steps_made() -> None:
    # 10 steps: the first two average (0 + 1) / 2, the last two (8 + 9) / 2.
    found = change(np.arange(10.0))
    assert found is not None
    assert (found.first, found.last, found.difference) == (0.5, 8.5, 8.0)
    assert found.low is None and not found.told


def test_steps_without_a_value_do_not_count() -> None:
    values = np.full(50, 3.0)
    values[:9] = np.nan  # the first ten steps hold one value, too few for an interval
    found = change(values)
    assert found is not None and found.first == 3.0 and found.low is None
    values[9] = np.nan
    assert change(values) is None


def test_a_clear_change_is_told_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(3)
    found = change(np.concatenate([rng.normal(24, 2, 100), rng.normal(58, 2, 100)]))
    assert found is not None and found.told
    assert found.low is not None and found.high is not None
    assert found.low < found.difference < found.high
    assert found.difference == pytest.approx(34, abs=1)


def test_flat_runs_are_told_to_change_about_as_rarely_as_stated() -> None:
    # Independent steps, 200 of them: 40 in each window. A percentile bootstrap is a little narrow at that size.
    rng = np.random.default_rng(0)
    told = [bool(c and c.told) for c in (change(rng.normal(20, 5, 200), seed) for seed in range(300))]
    assert np.mean(told) < 0.13


def test_the_same_values_give_the_same_interval() -> None:
    values = np.random.default_rng(1).normal(0, 1, 100)
    assert change(values) == change(values)
