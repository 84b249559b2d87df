"""How reports word numbers and untrusted text, and which arms are compared."""

import math

import pytest

from lossbench.report.data import reference_of
from lossbench.report.markdown import escape, fenced
from lossbench.report.numbers import count, number_style, p_value, shortened, times
from lossbench.report.sections import written_to
from lossbench.text import clean


@pytest.mark.parametrize(
    ("unit", "scale", "value", "plain", "signed"),
    [
        ("tokens", 47.2, 47.24, "47.2", "+47.2"),
        ("tokens", 1970, 1970.4, "1,970", "+1,970"),
        ("tokens", 2.0, -2.345, "−2.35", "−2.35"),
        ("reward", 0.6, 0.6418, "0.642", "+0.642"),
        ("share", 0.1, 0.125, "12.5", "+12.5"),
        ("tokens", 20.0, -0.04, "0.0", "0.0"),  # a rounded zero has no sign
        ("tokens", 20.0, math.nan, "–", "–"),
    ],
)
def test_numbers_have_the_digits_of_their_scale(unit: str, scale: float, value: float, plain: str, signed: str) -> None:
    style = number_style(unit, scale)
    assert style.plain(value) == plain
    assert style.signed(value) == signed


def test_intervals_units_and_small_words() -> None:
    assert number_style("tokens", 20).interval(-1.0, 2.5) == "[−1.0, +2.5]"
    assert number_style("tokens", 20).interval(math.nan, 2.5) == "–"
    assert number_style("tokens", 20).with_unit(20) == "20.0 tokens"
    assert number_style("share").with_unit(0.031) == "3.1 %"
    assert number_style("reward").with_unit(0.5) == "0.500"
    assert (p_value(0.0078125), p_value(1e-6), p_value(math.nan)) == ("p = 0.0078", "p < 0.0001", "–")
    assert (times(2.061), count(1, "run"), count(2000, "run")) == ("2.06×", "1 run", "2,000 runs")


def test_long_text_loses_its_middle_and_says_how_much() -> None:
    text = "a" * 700 + "b" * 1234 + "c" * 250
    assert shortened(text) == "a" * 700 + "\n[… 1,234 characters left out …]\n" + "c" * 250
    assert shortened("short") == "short"


def test_unprintable_characters_become_visible() -> None:
    assert clean("a\x1b[31mb\x00\tc\nd") == r"a\u001b[31mb\u0000" + "\tc\nd"


def test_markdown_shows_text_as_it_is() -> None:
    assert escape("dr_grpo <b> | [x](y) `z` & *") == r"dr\_grpo \<b\> \| \[x\](y) \`z\` \& \*"
    assert escape("- item") == r"\- item"
    assert escape("1. item") == r"1\. item"
    assert escape("two\nlines") == "two lines"


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("plain") == "```\nplain\n```"
    assert fenced("```\n<script>") == "````\n```\n<script>\n````"


def test_arms_are_held_against_the_baseline_on_their_own_policy() -> None:
    policies = {
        "grpo": "p",
        "dr_grpo": "p",
        "grpo[null]": "n",
        "dr_grpo[null]": "n",
        "dapo[other]": "o",
        "gspo[other]": "o",
    }
    names = list(policies)
    found = {name: reference_of(name, names, "grpo", policies) for name in names}
    assert found == {
        "grpo": None, "dr_grpo": "grpo", "grpo[null]": None, "dr_grpo[null]": "grpo[null]",
        "dapo[other]": None, "gspo[other]": "dapo[other]",
    }  # fmt: skip


def test_a_labelled_arm_on_the_same_policy_is_held_against_the_baseline() -> None:
    policies = {"grpo": "p", "grpo[low-lr]": "p"}
    assert reference_of("grpo[low-lr]", list(policies), "grpo", policies) == "grpo"


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("lossbench sweep --seeds 2", None),
        ("lossbench sweep --out 'my runs/a' --seeds 2", "my runs/a"),
        ("lossbench sweep --out=results/b", "results/b"),
        ("lossbench sweep --out", None),
        ("lossbench sweep 'torn", None),
    ],
)
def test_the_folder_that_a_command_names(command: str, folder: str | None) -> None:
    assert written_to(command) == folder
