"""A sweep's plan in its folder, as later calls of the command leave it."""

import json

from lossbench.sweep.folder import write_plan
from lossbench.sweep.plan import plan
from lossbench.sweep.recipe import make_recipe


def called_with(folder, claims):
    recipe = make_recipe({"name": "t", "modes": ["grpo", "dr_grpo"], "seeds": 1, "claims": claims}, "t")
    write_plan(folder, recipe, plan(recipe))
    return json.loads((folder / "sweep.json").read_text())


def test_claims_that_were_changed_and_changed_back_count_as_changed(tmp_path):
    assert not called_with(tmp_path, ["C1"])["claims_changed"]
    assert called_with(tmp_path, ["C1", "C2"])["claims_changed"]
    spec = called_with(tmp_path, ["C1"])
    assert spec["claims_changed"] and spec["claims"] == ["C1"]
