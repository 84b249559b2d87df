"""What is said of aggregations that depend on micro-batches goes by their flag, not by a name."""

from dataclasses import replace

import pytest

from lossbench.errors import UsageError
from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.sweep.plan import plan
from lossbench.sweep.recipe import make_recipe


@pytest.fixture
def twin(monkeypatch):
    entry = next(entry for entry in AGGREGATIONS.values() if entry.depends_on_split)
    monkeypatch.setitem(AGGREGATIONS, "another-split", replace(entry, name="another-split"))


@pytest.mark.usefixtures("twin")
def test_a_second_aggregation_that_depends_on_the_split_is_refused_on_two_processes():
    recipe = make_recipe({"name": "t", "modes": ["grpo@another-split/none"], "seeds": 1}, "t")
    assert plan(recipe)[0].mode.agg_mode == "another-split"
    with pytest.raises(UsageError, match=r"'grpo@another-split/none'.*--nproc-per-run 1"):
        plan(recipe, processes=2)
