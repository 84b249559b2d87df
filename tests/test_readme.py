import re

import pytest
from support.readme import README, block, names

from lossbench.cli import COMMANDS

TEXT = README.read_text()


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 200


def test_the_first_two_sh_blocks_are_the_two_lines():
    run, test = re.findall(r"```sh\n(.*?)```", TEXT, re.S)[:2]
    assert run.splitlines() == ["pip install -e '.[train]' && lossbench sweep && lossbench report"]
    assert test.splitlines() == ["pip install -e '.[dev]' && pytest"]


def test_it_has_one_picture_and_one_terminal_capture():
    assert len(re.findall(r"!\[[^\]]*\]\([^)]+\)", TEXT)) == 1
    assert names(TEXT).count("capture") == 1 and len(block(TEXT, "capture").splitlines()) > 5


@pytest.mark.parametrize("name", COMMANDS)
def test_it_shows_every_command(name):
    assert f"`lossbench {name}" in block(TEXT, "commands")


def test_advice_on_the_choice_of_a_loss_is_six_points_that_name_their_kind():
    points = re.findall(r"^\d\. \*(\w+):\*", block(TEXT, "which-loss"), re.M)
    assert points == ["Arithmetic", "Evidence", "Evidence", "Evidence", "Evidence", "Unknown"]
