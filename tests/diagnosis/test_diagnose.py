"""The diagnosis of runs: on the committed study, on made sweeps, and where a log says too little."""

from pathlib import Path

import numpy as np
import pytest
from support.known_runs import write_plan, write_run, write_sweep
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.diagnosis.diagnose import PUSHED, diagnose, from_series, lines
from lossbench.errors import UsageError
from lossbench.store.read import load

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "dr_grpo"


@pytest.fixture(scope="module")
def reference():
    sweep = load(REFERENCE)
    first = {run["arm"]: run_id for run_id, run in reversed(sweep.spec["runs"].items())}
    return {arm: item for arm, run_id in first.items() for item in diagnose(sweep, [run_id])}


def test_what_grew_is_told_with_its_push(reference) -> None:
    grpo, dr_grpo = reference["grpo"], reference["dr_grpo"]
    assert grpo.headline.startswith("Wrong answers grew") and "right answers shrank" in grpo.headline
    assert grpo.own_push.on_wrong == "longer" and dr_grpo.own_push.on_wrong == "no push"
    assert (
        grpo.better_mode == "dr_grpo" and 'loss_type="dr_grpo"' in grpo.paste and 'scale_rewards="none"' in grpo.paste
    )
    assert dr_grpo.better_mode is None and "nothing in the loss asks for a change" in dr_grpo.advice
    assert grpo.separation > 0.01


def test_the_same_push_is_seen_where_nothing_came_of_it(reference) -> None:
    null = reference["grpo[selfcheck-null]"]
    assert null.own_push.wrong < -PUSHED and "grew," not in null.headline.split(";")[0]
    assert "though it does not show so far" in null.advice
    assert abs(null.separation) < 0.002


def test_each_fits_twelve_lines(reference) -> None:
    for found in reference.values():
        assert len(lines(found)) <= 12


def test_curves_alone_say_what_to_log(tmp_path: Path) -> None:
    rows = [{"step": s, "length_mean": 20.0 + s, "reward_mean": 0.5} for s in range(1, 61)]
    write_run(tmp_path, "r0", [], steps=rows)
    write_plan(tmp_path, {"r0": {"arm": "grpo", "seed": 0, "steps_planned": 60}})
    (found,) = diagnose(load(tmp_path))
    text = "\n".join(lines(found))
    # 60 steps: the first twelve average 20 + 6.5, the last twelve 20 + 54.5
    assert "Mean length 26.5 → 74.5" in text and "log_completions=True" in text
    assert found.own_push is None and "curves alone" in found.advice


def test_a_collapse_comes_before_the_loss(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"grpo": 60.0}, seeds=1, steps=60)
    fallen = [{"step": s, "reward_mean": 0.8 - 0.01 * s, "length_mean": 30.0} for s in range(1, 61)]
    from lossbench.store.write import write_table

    write_table(tmp_path / "runs" / "r0" / "steps.parquet", "steps", fallen)
    (found,) = diagnose(load(tmp_path))
    assert found.confounders[0].name == "collapse" and found.advice.startswith("First of all")


def test_a_series_in_memory_is_read_alike() -> None:
    rng = np.random.default_rng(0)
    series = [
        {
            "step": s, "length_incorrect": 20 + s + rng.normal(), "length_correct": 15 + rng.normal(),
            "length_mean": 18.0, "reward_mean": 0.5, "push_incorrect/grpo": -0.6, "push_correct/grpo": 0.5,
            "push_incorrect/dr_grpo": 0.0, "push_correct/dr_grpo": 0.0,
        }
        for s in range(60)
    ]  # fmt: skip
    found = from_series(series, "grpo")
    assert found.better_mode == "dr_grpo" and found.headline.startswith("Wrong answers grew")


def test_the_command(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"grpo": 60.0, "dr_grpo": 20.0}, seeds=1, steps=60)
    shown = CliRunner().invoke(app, ["diagnose", str(tmp_path)], catch_exceptions=False)
    assert "r0: 60 steps of grpo" in shown.output and "Wrong answers grew" in shown.output
    with pytest.raises(UsageError, match="no run 'x'"):
        CliRunner().invoke(app, ["diagnose", str(tmp_path), "--run", "x"], catch_exceptions=False)


def test_a_log_of_curves_is_read_in_place(tmp_path: Path) -> None:
    rows = ["step,reward,completion_length", *(f"{s},0.5,{20 + s}" for s in range(1, 61))]
    (tmp_path / "curves.csv").write_text("\n".join(rows))
    before = sorted(tmp_path.rglob("*"))
    shown = CliRunner().invoke(
        app, ["diagnose", str(tmp_path / "curves.csv"), "--mode", "grpo", "--map", "length_mean=completion_length"],
        catch_exceptions=False,
    )  # fmt: skip
    assert "Mean length 26.5 → 74.5" in shown.output and sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UsageError, match="--mode"):
        CliRunner().invoke(app, ["diagnose", str(tmp_path / "curves.csv")], catch_exceptions=False)
