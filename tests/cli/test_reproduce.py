"""`lossbench reproduce`: runs of a recipe that states claims, and a verdict for each."""

import json
from types import SimpleNamespace

import pytest
from support.sweeps import QUICK
from typer.testing import CliRunner

import lossbench
from lossbench.cli import app
from lossbench.cli.reproduce import _ours
from lossbench.errors import UsageError


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def write_recipe(path, **changes):
    keys = {**QUICK, "seeds": [0, 1], "claims": ["C1", "C10"], **changes}
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()))
    return path


@pytest.mark.parametrize("sampler", ["lossbench", "generate"])
def test_runs_with_the_sampler_asked_for_and_judges_every_claim(sampler, tmp_path):
    recipe = write_recipe(tmp_path / "own.toml")
    result = invoke(recipe, "--sampler", sampler, "--no-probe", "-f", "json", "-q", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    sweep = lossbench.load(tmp_path / "out")
    assert sweep.runs["status"].tolist() == ["completed"] * 4
    specs = [json.loads((sweep.run_dir(run_id) / "run.json").read_text())["spec"] for run_id in sweep.run_ids]
    assert [spec["settings"]["sampler"] for spec in specs] == [sampler] * 4
    # Two seeds' smallest p is 1/2; C10 has no run on the uninformative policy.
    verdicts = {row["claim"]: row["verdict"] for row in json.loads(result.stdout)}
    assert verdicts == {"C1": "inconclusive", "C10": "not tested"}
    assert (tmp_path / "out" / "report" / "index.html").is_file()


def test_a_recipe_without_claims_and_an_unknown_sampler_are_refused(tmp_path):
    no_claims = invoke(write_recipe(tmp_path / "own.toml", claims=[]), "--out", tmp_path / "out")
    assert isinstance(no_claims.exception, UsageError)
    assert "states no claims: use `lossbench sweep" in str(no_claims.exception)
    unknown = invoke("dr-grpo", "--sampler", "fast", "--out", tmp_path / "out")
    assert isinstance(unknown.exception, UsageError)
    assert "'fast'" in str(unknown.exception) and "generate" in str(unknown.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("unit", "effect", "ratio", "text"),
    [
        ("tokens", (47.61, 40.11, 55.04), 3.63, "+47.6 [40.1, 55] tokens, ratio 3.63"),
        ("ratio", (0.3954, 0.3629, 0.4312), 0.3954, "0.395 [0.363, 0.431] ratio"),
        ("tokens", (50.4, 43.0, 57.8), float("nan"), "+50.4 [43, 57.8] tokens"),
    ],
)
def test_an_effect_has_its_sign_unit_and_ratio_once(unit, effect, ratio, text):
    estimate, low, high = effect
    interval = SimpleNamespace(estimate=estimate, low=low, high=high)
    verdict = SimpleNamespace(unit=unit, effect=interval, ratio=SimpleNamespace(estimate=ratio), reason="")
    assert _ours(verdict) == text
