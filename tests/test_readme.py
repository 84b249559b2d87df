import re

import pytest
from support.readme import BLOCKS, README, ROOT, block

from lossbench.cli import COMMANDS
from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.modes import PRESETS
from lossbench.loss.surrogates import SURROGATES
from lossbench.sweep.recipe import recipe_names

TEXT = README.read_text()


def table_rows(header):
    """First two cells of each row of the Markdown table that begins with `header`, without backticks."""
    lines = TEXT[TEXT.index(header) :].splitlines()[2:]
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, value = line.strip("|").split(" | ")[:2]
        cells.append((name.strip(" `"), value.strip(" `")))
    return dict(cells)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_made_from_code_and_results_are_current(name):
    assert block(TEXT, name) == BLOCKS[name](), "run: python tests/support/readme.py"


def test_presets_are_those_of_the_code():
    written = {name: f"{loss}@{agg}/{scale}" for name, (loss, agg, scale) in PRESETS.items()}
    assert table_rows("| preset |") == written


def test_weights_are_those_of_the_code():
    written = {e.name + (":α" if e.takes_alpha else ""): e.formula for e in AGGREGATIONS.values()}
    assert table_rows("| `agg_mode` | w_i |") == written


def test_token_losses_are_those_of_the_code():
    assert table_rows("| `loss_type` | ℓ |") == {entry.name: entry.formula for entry in SURROGATES.values()}


def test_recipes_and_commands_are_all_there():
    assert set(table_rows("| recipe | what for |")) == set(recipe_names())
    missing = [name for name in COMMANDS if f"lossbench {name}" not in TEXT]
    assert missing == []


def test_the_first_two_sh_blocks_are_the_two_lines():
    run, test = re.findall(r"```sh\n(.*?)```", TEXT, re.S)[:2]
    assert run.splitlines() == ["pip install -e '.[train]' && lossbench sweep && lossbench report"]
    assert test.splitlines() == ["pip install -e '.[dev]' && pytest"]


def test_figures_that_it_shows_are_committed():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT):
        assert (ROOT / path).is_file(), path
