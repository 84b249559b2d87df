"""How reports word numbers and untrusted text; which arms are compared; which colours stay apart."""

import itertools
import math

import numpy as np
import pytest

from lossbench.report.data import reference_of, reverse
from lossbench.report.markdown import escape, fenced
from lossbench.report.numbers import count, number_style, p_value, shortened, times
from lossbench.report.sections import written_to
from lossbench.report.style import PALETTE, arm_styles
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


def test_a_comparison_turned_round_is_that_of_b_with_a() -> None:
    from lossbench.metrics.paired import paired

    a, b = {0: 2.0, 1: 3.5, 2: 5.0}, {0: 1.0, 1: 3.0, 2: 2.5}
    turned, direct = reverse(paired(a, b)), paired(b, a)
    for name in (
        "n",
        "mean_a",
        "mean_b",
        "difference",
        "ci_low",
        "ci_high",
        "p_greater",
        "p_less",
        "p_two_sided",
        "d_z",
    ):
        assert getattr(turned, name) == pytest.approx(getattr(direct, name)), name
    for name in ("ratio", "ratio_low", "ratio_high"):
        assert getattr(turned, name) == pytest.approx(getattr(direct, name)), name


def test_no_two_arms_look_alike() -> None:
    styles = arm_styles([f"arm {i}" for i in range(32)])
    assert len({(style.color, str(style.dash)) for style in styles.values()}) == 32


# Machado, Oliveira, Fernandes 2009: full deficiency, on linear RGB.
_SIGHT = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def _lab(color: str, sight: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(_SIGHT[sight] @ linear, 0, 1) / (_XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", _SIGHT)
def test_colours_stay_apart_under_every_kind_of_sight(sight: str) -> None:
    for a, b in itertools.combinations(PALETTE, 2):
        assert np.linalg.norm(_lab(a, sight) - _lab(b, sight)) > 15, (a, b)


def test_the_first_arms_differ_in_grey_by_lightness_or_by_dash() -> None:
    styles = list(arm_styles([f"arm {i}" for i in range(len(PALETTE))]).values())
    for a, b in itertools.combinations(styles, 2):
        lightness = abs(_lab(a.color, "normal")[0] - _lab(b.color, "normal")[0])
        assert lightness > 15 or str(a.dash) != str(b.dash), (a, b)


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
