"""Advantages by hand, for every centre, scale and whitening; and the modes that are spelled with them."""

import math

import numpy as np
import pytest

from lossbench.loss.advantages import PARTS, advantages, parse_advantage
from lossbench.loss.modes import grid_modes, make_mode, parse_mode
from lossbench.loss.same_experiment import Setup, equalities

# Two prompts of three rows: rewards 1, 0, 0 of lengths 2, 4, 6; rewards 1, 1, 1 of lengths 1, 1, 2.
REWARDS, GROUPS, LENGTHS = [1, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [2, 4, 6, 1, 1, 2]
STD = math.sqrt(1 / 3)  # of 1, 0, 0: (4/9 + 1/9 + 1/9)/2
BATCH_STD = math.sqrt((4 * (1 / 3) ** 2 + 2 * (2 / 3) ** 2) / 5)  # mean 2/3
BY_HAND = {
    "none": [2 / 3, -1 / 3, -1 / 3, 0, 0, 0],
    "group": [2 / 3 / (STD + 1e-4), -1 / 3 / (STD + 1e-4), -1 / 3 / (STD + 1e-4), 0, 0, 0],
    "batch": [2 / 3 / (BATCH_STD + 1e-4), -1 / 3 / (BATCH_STD + 1e-4), -1 / 3 / (BATCH_STD + 1e-4), 0, 0, 0],
    "mean-scaled": [2, -1, -1, 0, 0, 0],  # over 1/3
    "loo": [1, -1 / 2, -1 / 2, 0, 0, 0],  # 1 − 0, 0 − 1/2
    "length-weighted": [5 / 6, -1 / 6, -1 / 6, 0, 0, 0],  # baseline 2/12
    "length-weighted-loo": [1, -2 / 8, -2 / 6, 0, 0, 0],  # baselines 0, 2/(2+6), 2/(2+4)
    "center-batch": [1 / 3, -2 / 3, -2 / 3, 1 / 3, 1 / 3, 1 / 3],  # mean 2/3
    "loo+group": [1 / (STD + 1e-4), -1 / 2 / (STD + 1e-4), -1 / 2 / (STD + 1e-4), 0, 0, 0],
    # rows: mean 0, s² = (4/9 + 1/9 + 1/9)/5 = 2/15
    "none+whiten-rows": [x / math.sqrt(2 / 15 + 1e-8) for x in (2 / 3, -1 / 3, -1 / 3, 0, 0, 0)],
    # tokens: m = (2·2/3 − 10/3)/16 = −1/8; s² = (2·(19/24)² + 10·(5/24)² + 4·(1/8)²)/15
    "none+whiten-tokens": [
        (x + 1 / 8) / math.sqrt((2 * (19 / 24) ** 2 + 10 * (5 / 24) ** 2 + 4 / 64) / 15 + 1e-8)
        for x in (2 / 3, -1 / 3, -1 / 3, 0, 0, 0)
    ],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_two_prompts_by_hand(name: str) -> None:
    assert advantages(REWARDS, GROUPS, name, LENGTHS).tolist() == pytest.approx(BY_HAND[name], rel=1e-12, abs=1e-15)
    order = [3, 0, 5, 1, 4, 2]
    shuffled = advantages(*(np.array(values)[order] for values in (REWARDS, GROUPS)), name, np.array(LENGTHS)[order])
    assert shuffled.tolist() == pytest.approx([BY_HAND[name][i] for i in order], rel=1e-12, abs=1e-15)


def test_every_part_is_worked_out_and_says_where_it_comes_from() -> None:
    assert {part.name for name in BY_HAND for part in parse_advantage(name).parts} == set(PARTS)
    assert all(part.source for part in PARTS.values())


@pytest.mark.parametrize("name", BY_HAND)
def test_a_missing_reward_is_left_out_and_gets_nothing(name: str) -> None:
    got = advantages([1, 0, 0, 1, 1, 1, math.nan], [*GROUPS, 0], name, [*LENGTHS, 50])
    assert got.tolist() == pytest.approx([*BY_HAND[name], 0], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", [*BY_HAND, "center-batch+batch+whiten-tokens"])
@pytest.mark.parametrize(
    ("rewards", "groups", "lengths"),
    [
        ([0.7], [0], [5]),  # one row
        ([0.7, 0.7], [0, 1], [5, 3]),  # groups of one
        ([0.3, 0.1 + 0.2], [0, 0], [5, 3]),  # equal but for rounding
        ([0.0, 0.0, 0.0], [0, 0, 0], [1, 2, 3]),  # a mean of 0
        ([1.0, 1.0], [0, 0], [0, 0]),  # all masked
        ([math.nan, math.nan], [0, 0], [1, 2]),
    ],
)
def test_nothing_to_learn_is_zero(name: str, rewards: list, groups: list, lengths: list) -> None:
    assert advantages(rewards, groups, name, lengths).tolist() == pytest.approx([0] * len(rewards), abs=1e-11)


def test_a_row_with_all_tokens_of_the_others_masked_has_no_length_weighted_baseline() -> None:
    # the others of row 0 have no token; those of row 1 are row 0 and an empty one: baseline 1
    assert advantages([1, 0, 0], [0, 0, 0], "length-weighted-loo", [4, 0, 0]).tolist() == [0, -1, -1]


@pytest.mark.parametrize("name", ["group", "batch"])
def test_a_deviation_of_0_divides_nothing_even_without_eps(name: str) -> None:
    assert advantages([1, 1], [0, 0], name, eps=0).tolist() == [0, 0]


def test_whitened_groups_without_spread_are_moved() -> None:
    got = advantages(REWARDS, GROUPS, "none+whiten-tokens", LENGTHS)
    assert (got[3:] > 0).all()
    assert float((np.array(LENGTHS) * got).sum()) == pytest.approx(0, abs=1e-12)


def test_a_mean_scale_refuses_negative_rewards() -> None:
    with pytest.raises(ValueError, match=r"mean-scaled.*-1; valid: 0 or more"):
        advantages([-1, 1], [0, 0], "mean-scaled")


@pytest.mark.parametrize(
    ("text", "name", "scale_rewards"),
    [
        ("grpo@token-mean/loo", "grpo@token-mean/loo", "none"),
        ("grpo@token-mean/none+loo", "grpo@token-mean/loo", "none"),
        ("grpo@token-mean/group+loo", "grpo@token-mean/loo+group", "group"),
        ("grpo@token-mean/whiten-tokens", "grpo@token-mean/none+whiten-tokens", "none"),
        ("grpo@token-mean/center-mean+group", "dapo", "group"),
        ("grpo@token-mean/mean-scaled", "grpo@token-mean/mean-scaled", "none"),
        ("cispo@balanced/center-batch+batch+whiten-rows", "cispo@balanced/center-batch+batch+whiten-rows", "batch"),
    ],
)
def test_one_canonical_name(text: str, name: str, scale_rewards: str) -> None:
    mode = parse_mode(text)
    assert (mode.name, mode.scale_rewards) == (name, scale_rewards)
    assert parse_mode(mode.name) == parse_mode(mode.triple) == mode
    assert mode.labels["advantage_name"] == mode.triple.rpartition("/")[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grpo@token-mean/lo", ["unknown advantage 'lo'", "'loo'", "whiten-tokens"]),
        ("grpo@token-mean/loo+length-weighted", ["two of one kind", "'loo'", "valid:"]),
        ("grpo@token-mean/group+none", ["two of one kind", "valid:"]),
        ("grpo@token-mean/loo+", ["unknown advantage ''"]),
    ],
)
def test_what_does_not_compose_is_one_line(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse_mode(text)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_advantages_are_an_axis_of_a_grid() -> None:
    modes = grid_modes(["grpo", "dr_grpo"], advantages=["none", "loo"])
    assert [mode.advantage for mode in modes] == ["none", "loo", "none", "loo"]
    with pytest.raises(ValueError, match="one axis"):
        grid_modes(["grpo"], scale_rewards=["none"], advantages=["loo"])
    with pytest.raises(ValueError, match="unknown scale_rewards 'loo'"):
        grid_modes(["grpo"], scale_rewards=["loo"])


def test_what_the_new_modes_equal_on_policy() -> None:
    def kinds(first: str, second: str, **setup) -> list[tuple[str, float]]:
        modes = [parse_mode(first), parse_mode(second)]
        return [(found.kind, round(found.ratio, 9)) for found in equalities(modes, Setup(**setup))]

    # loo is G/(G−1) times the group's mean as centre: 4/3 at groups of four
    assert kinds("dr_grpo", "grpo@seq-mean-token-sum-norm/loo") == [("constant", round(4 / 3, 9))]
    assert kinds("grpo@token-mean/none", "grpo@token-mean/length-weighted") == []
    for name in ("dppo", "reinforce"):
        assert kinds("dapo", f"{name}@token-mean/group") == [("same", 1.0)]
        assert kinds("dapo", f"{name}@token-mean/group", on_policy=False) == []
    # one number per step: no difference where all groups have spread, no constant one where some have none
    assert kinds("dapo", "grpo@live-token-mean/group", num_generations=8) == [("same", 1.0)]
    assert kinds("dapo", "grpo@live-token-mean/group", num_generations=2) == []
    assert kinds("dapo", "grpo@balanced/group") == []
    assert make_mode("reinforce", "token-mean").surrogate.clipped_of is None
