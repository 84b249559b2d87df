"""The row of a step: worked out in memory and by SQL, it is the same."""

from dataclasses import replace
from types import SimpleNamespace

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossbench.store.step_row import (
    SAMPLED,
    StepStats,
    equal_rewards,
    sampling_row,
    sampling_rows_sql,
    step_row,
    step_sums_sql,
)
from lossbench.store.write import as_arrow

REWARDS = st.none() | st.sampled_from([0.0, 0.3, 0.1 + 0.2, 1.0, -2.5])
ROW = st.fixed_dictionaries({
    "group": st.integers(0, 3), "length_tokens": st.integers(0, 50), "terminated": st.booleans(),
    "reward": REWARDS, "correct": st.none() | st.booleans(),
})  # fmt: skip


def by_sql(sql_of, rows):
    completions = as_arrow("rollouts", rows)
    with duckdb.connect() as database:
        return database.register("completions_here", completions).sql(sql_of("completions_here")).fetchall()


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12))
def test_rows_in_memory_and_rows_of_a_table_give_one_row(rows):
    rows = [{"step": 3, "generation": 2, **row} for row in rows]
    wanted = sampling_row([SimpleNamespace(**row) for row in rows])
    ((step, *found, tokens),) = by_sql(sampling_rows_sql, rows)
    names = ["generation", *SAMPLED, "zero_std_frac"]
    assert step == 3 and tokens == sum(row["length_tokens"] for row in rows)
    assert dict(zip(names, found, strict=True)) == pytest.approx({name: wanted[name] for name in names})


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([0.3, 0.1 + 0.2], 1.0),
        ([0.3, 0.3001], 0.0),
        ([1e9 / 3, 1e9 / 3 * (1 + 2**-52)], 1.0),  # one unit in the last place, far above 1e-8
        ([0.0, 1e-9], 1.0),
        ([-1.0, 1.0], 0.0),
        ([None, 0.5], 1.0),
    ],
)
def test_rewards_equal_but_for_rounding_have_no_spread(rewards, share):
    rows = [
        {"step": 1, "generation": 1, "group": 0, "length_tokens": 4, "terminated": True, "reward": reward,
         "correct": True}
        for reward in rewards
    ]  # fmt: skip
    assert sampling_row([SimpleNamespace(**row) for row in rows])["zero_std_frac"] == share
    assert by_sql(sampling_rows_sql, rows)[0][-2] == share
    known = [reward for reward in rewards if reward is not None]
    assert equal_rewards(min(known), max(known)) == bool(share)


def test_a_group_over_two_steps_counts_once_in_its_first():
    row = {"generation": 1, "group": 0, "length_tokens": 4, "terminated": True, "reward": 1.0, "correct": True}
    rows = [row | {"step": 1}, row | {"step": 2, "length_tokens": 10, "correct": False, "reward": 0.0}]
    found = by_sql(
        lambda source: f"SELECT step, groups, mixed_groups, mixed_gap_sum FROM ({step_sums_sql(source)})", rows
    )
    # One group with both kinds: 10 - 4 tokens, in step 1.
    assert found == [(1, 1, 1, 6), (2, 0, 0, 0)]
    # Without a generation, a group is that of its step.
    alone = by_sql(sampling_rows_sql, [row | {"generation": None} for row in rows])
    assert [row[-2] for row in alone] == [1.0, 1.0]


def test_a_step_in_which_a_length_is_unknown_has_no_token_count():
    row = {"step": 1, "generation": 1, "group": 0, "terminated": True, "reward": 1.0, "correct": True}
    found = by_sql(sampling_rows_sql, [row | {"length_tokens": 4}, row | {"length_tokens": None}])
    assert found[0][-1] is None and found[0][3] == 4


def test_training_columns_are_means_per_token():
    stats = StepStats(
        step=3, loss=float("nan"), tokens=4, entropy_sum=2.0, clipped_tokens=1.0, kl_sum=6.0, weight_sum=1.0,
        grad_norm=0.5, lr=1e-4, wall_s=1.0,
    )  # fmt: skip
    row = step_row(stats)
    assert (row["entropy"], row["clip_frac"], row["kl"]) == (2 / 4, 1 / 4, 6 / 4) and row["loss"] is None
    nothing = step_row(replace(stats, tokens=0, kl_sum=None, clipped_tokens=None))
    assert (nothing["entropy"], nothing["clip_frac"], nothing["kl"]) == (None, None, None)
