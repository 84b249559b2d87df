"""Run ids and plan hashes of the committed reference, computed again from the specs stored with it."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from lossbench.sweep.folder import shared_by_all
from lossbench.sweep.recipe import Recipe
from lossbench.training.hashed_fields import hash_of, hashed_fields
from lossbench.training.run_spec import RunSpec

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
SWEEPS = sorted(path.parent for path in REFERENCE.glob("*/sweep.json"))


def test_the_reference_is_there():
    assert len(SWEEPS) >= 4


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.name)
def test_every_run_id_of_the_reference_follows_from_its_stored_spec(sweep):
    plan = json.loads((sweep / "sweep.json").read_text())
    specs = {path.parent.name: json.loads(path.read_text())["spec"] for path in sweep.glob("runs/*/run.json")}
    assert specs.keys() == plan["runs"].keys()
    assert {run_id: RunSpec(**spec).run_id for run_id, spec in specs.items()} == {run_id: run_id for run_id in specs}


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.name)
def test_the_plan_hash_of_the_reference_follows_from_its_stored_recipe(sweep):
    plan = json.loads((sweep / "sweep.json").read_text())
    shared = shared_by_all(Recipe(**plan["recipe"]))
    assert shared == plan["shared"]
    assert hash_of(shared) == plan["plan_hash"]


class Inner(BaseModel):
    steps: int = 3
    of_later: float | None = None


class Outer(BaseModel):
    settings: Inner = Inner()
    seed: int = 0
    also_later: list[int] = []


def test_a_later_field_is_hashed_where_it_differs_from_its_default_only():
    assert hashed_fields(Outer()) == {"settings": {"steps": 3}, "seed": 0}
    changed = Outer(settings=Inner(of_later=0.5), also_later=[1])
    assert hashed_fields(changed) == {"settings": {"steps": 3, "of_later": 0.5}, "seed": 0, "also_later": [1]}
    assert hashed_fields(changed, exclude={"settings"}) == {"seed": 0, "also_later": [1]}
