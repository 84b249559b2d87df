"""Colours of modes, and pictures: their limits, labels and bytes."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from lossbench.loss.modes import PRESETS, parse_mode
from lossbench.report.panels import Line, Panel, Picture, alike, draw, readings, save
from lossbench.report.style import DARK, LIGHT, SHADES, family, look, mode_colors

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


GROUNDS = {"white": (LIGHT, "card"), "dark": (DARK, "card"), "page": (LIGHT, "paper"), "dark page": (DARK, "paper")}
MODES = [f"{kin}{shade}" for kin in ("warm", "cool") for shade in range(SHADES)]


def _linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("ground", GROUNDS)
def test_colours_stand_out_from_every_ground(ground: str) -> None:
    palette, under = GROUNDS[ground]
    below = _linear(palette[under]) @ _XYZ[1]
    for name in (*MODES, "none", "ink", "soft", "accent", "warn"):
        dark, light = sorted((below, _linear(palette[name]) @ _XYZ[1]))
        assert (light + 0.05) / (dark + 0.05) >= 3, name


@pytest.mark.parametrize("sight", _SIGHT)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_of_modes_stay_apart_under_every_kind_of_sight(palette: dict[str, str], sight: str) -> None:
    for a, b in itertools.combinations(MODES, 2):
        assert np.linalg.norm(_lab(palette[a], sight) - _lab(palette[b], sight)) > 20, (a, b)


def test_each_colour_has_one_name_and_both_grounds_have_the_same() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_colours_follow_the_weights_and_are_the_same_in_every_report() -> None:
    arms = [(name, name, parse_mode(name).agg_mode) for name in PRESETS]
    whole = mode_colors(arms)
    for name, _, agg_mode in arms:
        assert whole[name].startswith(family(agg_mode))
    alone = {arm[0]: mode_colors([arm])[arm[0]] for arm in arms}
    few = mode_colors([arm for arm in reversed(arms) if arm[0] in ("grpo", "dr_grpo", "dapo")])
    assert few == {name: alone[name] for name in few} and len(set(few.values())) == 3
    assert mode_colors([("grpo[x]", "grpo", "seq-mean-token-mean")]) == {"grpo[x]": alone["grpo"]}
    assert mode_colors([("mine", "mine", None), ("b", "length-power", "length-power:0.5")]) == {
        "mine": "none", "b": "warm0",
    }  # fmt: skip
    assert (family("length-power:0.5"), family("length-power:1"), family("delta-l:0.5")) == ("warm", "cool", "warm")


def _picture() -> Picture:
    x = np.arange(1.0, 6.0)
    lines = tuple(Line(x, y + x, "cool0", f"mode {y:g}", arm=int(y), runs=(np.column_stack((x, x)),)) for y in (0, 0.1))
    return Picture("What was found", alike([Panel(lines, "one"), Panel(lines[:1], "two", y_log=True)]), 2)


def test_the_same_picture_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        save(_picture(), tmp_path / name, "figure")
    for suffix in ("png", "svg"):
        first, second = ((tmp_path / name / f"figure.{suffix}").read_bytes() for name in "ab")
        assert first == second


def test_labels_at_the_ends_of_close_lines_do_not_lie_on_each_other() -> None:
    with look():
        figure = draw(_picture())
        figure.canvas.draw()
        texts = [text for text in figure.axes[0].texts if text.get_text().startswith("mode")]
        boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 2 and not boxes[0].overlaps(boxes[1])


def test_what_the_page_shows_under_the_pointer_are_the_lines_values(tmp_path: Path) -> None:
    one, two = readings(_picture())
    assert [line["n"] for line in one["lines"]] == ["mode 0", "mode 0.1"]
    assert one["lines"][1]["y"] == [1.1, 2.1, 3.1, 4.1, 5.1]
    assert 0 < one["box"][0] < one["box"][0] + one["box"][2] < two["box"][0] < 1
    save(_picture(), tmp_path, "figure")
    assert re.findall(r'<g id="((?:runs-)?mode\d)">', (tmp_path / "figure.svg").read_text())
