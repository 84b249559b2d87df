"""Arms and sweeps against each other, the command that does it, and the catalogue of warnings."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import typer
from support.known_runs import rollout_rows, write_plan, write_run, write_sweep
from typer.testing import CliRunner

from lossbench.claims.warnings import CATALOGUE, Evidence, find_notices, run_versions, same_experiment
from lossbench.cli.compare import compare
from lossbench.errors import UsageError
from lossbench.metrics.compare import (
    Side,
    arm_values,
    compare_arms,
    comparison_rows,
    matched,
    pair_label,
)
from lossbench.metrics.length import summarise
from lossbench.store.read import load
from lossbench.store.write import write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep") / "s", {"grpo": 40, "dr_grpo": 20, "dapo": 20}, seeds=6)


@pytest.fixture(scope="module")
def summary(folder):
    return summarise(load(folder))


def test_arms_are_paired_by_policy_and_seed(summary):
    item = compare_arms(summary.metrics, "grpo", "dr_grpo", "late_length_incorrect")
    assert item.result.seeds == ((0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5))
    assert item.result.p_two_sided == 2 / 64 and item.result.ratio == pytest.approx(2, abs=0.3)
    assert pair_label((1, 4)) == "seed 4 (policy 1)" and pair_label((None, 4)) == "seed 4"


def test_unfinished_runs_are_not_compared(summary):
    metrics = summary.metrics.copy()
    metrics.loc[0, "complete"] = False
    assert len(arm_values(metrics, "grpo", "late_reward")) == 5
    assert len(arm_values(metrics, "grpo", "late_reward", complete_only=False)) == 6


def test_equal_tokens_uses_the_shorter_run_s_budget(tmp_path):
    # One completion a step. Run a spends 100 tokens in ten steps, run b 200; at 100 tokens b is at its fifth step.
    for seed in range(2):
        rows_a = [row for step in range(1, 11) for row in rollout_rows(step, [10], [])]
        rows_b = [row for step in range(1, 11) for row in rollout_rows(step, [20 if step <= 4 else 19 + step % 5], [])]
        write_run(tmp_path, f"a{seed}", rows_a)
        write_run(tmp_path, f"b{seed}", rows_b)
    runs = {
        f"{name}{seed}": {"arm": arm, "seed": seed} for seed in range(2) for name, arm in (("a", "grpo"), ("b", "dapo"))
    }
    write_plan(tmp_path, runs)
    summary = summarise(load(tmp_path))
    sides = Side(summary, "grpo"), Side(summary, "dapo")
    result = matched(*sides, "tokens")
    assert result.at == 100
    incorrect = next(item.result for item in result.comparisons if item.metric == "late_length_incorrect")
    # The last fifth, 80 < tokens ≤ 100: steps 9 and 10 of a (10 each), step 5 of b (19 long: 80 + 19 = 99).
    assert incorrect.values_a == (10, 10) and incorrect.values_b == (19, 19)
    steps = matched(*sides, "step")
    # Steps 9 and 10 of b are 19 + 4 and 19 + 0 long.
    assert steps.at == 10 and steps.comparisons[0].result.values_b == (21, 21)
    reward = matched(*sides, "reward")
    assert reward.comparisons == () and reward.reason is not None and "none of them starts with" in reward.reason


def test_equal_reward(summary):
    result = matched(Side(summary, "grpo"), Side(summary, "dr_grpo"), "reward")
    tokens = next(item.result for item in result.comparisons if item.metric == "tokens_to_reward")
    assert 0.25 < result.at < 0.7 and tokens.n == 6 and tokens.difference > 0


def test_arms_without_common_runs(summary):
    other = summarise_with_seeds_moved(summary)
    for basis in ("step", "tokens", "reward"):
        result = matched(Side(summary, "grpo"), Side(other, "grpo"), basis)
        assert result.reason == "the two modes have no completed runs in common" and not result.comparisons


def summarise_with_seeds_moved(summary):
    from dataclasses import replace

    return replace(summary, metrics=summary.metrics.assign(seed=summary.metrics["seed"] + 100))


def test_rows_name_what_was_left_out(summary):
    metrics = summary.metrics.copy()
    metrics.loc[0, "late_reward"] = np.nan
    row = comparison_rows([compare_arms(metrics, "grpo", "dr_grpo", "late_reward")])[0]
    assert row["n"] == 5 and row["left_out"] == "seed 0 (policy 0): without a value"


def run_command(*arguments):
    app = typer.Typer()
    app.command()(compare)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_compares_two_modes(folder):
    result = run_command("grpo", "grpo@seq-mean-token-sum-norm/none", "--in", folder, "--format", "json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0 and rows[0]["b"] == "dr_grpo" and rows[0]["metric"] == "late_length_incorrect"
    assert {row["metric"] for row in rows} >= {"late_reward", "tokens_to_reward"}
    assert re.search(r"higher \(p = 0\.0312, n = 6\)", rows[0]["statement"])


def test_command_compares_two_sweeps(folder):
    result = run_command(folder, folder, "--format", "csv", "--metrics", "late_reward")
    assert result.exit_code == 0 and "no difference: identical in all 6 pairs" in result.stdout
    assert f"{folder}: grpo" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("grp", "dr_grpo"), "did you mean 'grpo'"),
        (("grpo", "dr_grpo", "--metrics", "late_lenght_mean"), "unknown metric"),
        (("grpo", "dr_grpo", "--metrics", ","), "--metrics is empty"),
    ],
)
def test_command_refuses_unknown_names(folder, arguments, message):
    result = run_command(*arguments, "--in", folder)
    assert isinstance(result.exception, UsageError) and message in str(result.exception)


def test_command_refuses_a_folder_against_a_mode(folder, tmp_path):
    for arguments in ((folder, "grpo"), ("grpo", folder), (folder, folder, "--in", folder)):
        assert isinstance(run_command(*arguments).exception, UsageError)
    other = write_sweep(tmp_path / "t", {"gspo": 20}, seeds=1, steps=2)
    assert "share no mode" in str(run_command(folder, other).exception)


def test_command_on_one_seed(tmp_path):
    one = write_sweep(tmp_path / "t", {"grpo": 40, "dr_grpo": 20}, seeds=1)
    result = run_command("grpo", "dr_grpo", "--in", one, "--format", "json")
    assert result.exit_code == 0
    assert "cannot be tested because there is only one pair" in json.loads(result.stdout)[0]["statement"]


def notices(path, **recipe):
    sweep = load(path)
    return {n.code: n for n in find_notices(summarise(sweep), sweep.spec["recipe"] | recipe, run_versions(sweep))}


def test_a_sound_sweep_has_no_warnings(tmp_path):
    assert notices(write_sweep(tmp_path / "s", {"grpo": 40, "dr_grpo": 20}, seeds=7)) == {}


HALF = "grpo@seq-mean-token-sum-norm/group"


def bad_sweep(tmp_path):
    """One arm that never learns and is cut at the cap, one that is half of Dr. GRPO, and runs that are missing."""
    half = HALF
    flat = [row for step in range(1, 11) for row in rollout_rows(step, [8, 8, 8, 8], [], cap=8)]
    perfect = [row for step in range(1, 11) for row in rollout_rows(step, [], [5, 5])]
    write_run(tmp_path, "a", flat, steps=[{"step": 10, "grad_norm": 2.5}])
    write_run(tmp_path, "b", perfect, steps=[{"step": 10, "grad_norm": 0.25}])
    write_run(tmp_path, "b2", perfect)
    write_run(tmp_path, "d", [], status="failed", steps=[{"step": 10, "length_mean": 4.0, "tokens": 4}])
    (tmp_path / "runs" / "b2" / "rollouts.parquet").write_bytes(b"PAR1 but not quite")
    write_plan(
        tmp_path,
        {
            "a": {"arm": "grpo", "seed": 0}, "b": {"arm": half, "seed": 0}, "b2": {"arm": half, "seed": 0},
            "c": {"arm": half, "seed": 1}, "d": {"arm": "cispo", "seed": 0}, "e": {"arm": "bnpo", "seed": 0},
        },
        max_completion_length=8, max_grad_norm=1.0, per_device_train_batch_size=1, cispo_cap=0.5,
        gradient_accumulation_steps=8,
    )  # fmt: skip
    for run_id, version, errors in (("a", "2.12", 1200), ("b", "2.13", 0)):
        counts = {"verifier_errors": errors, "unjudged": errors, "unrewarded": errors}
        state = {"status": "completed", "versions": {"torch": version}, **counts}
        write_json(tmp_path / "runs" / run_id / "run.json", state)
    return tmp_path


def test_every_warning_of_the_catalogue_fires(tmp_path):
    found = notices(bad_sweep(tmp_path))
    # Seeds 0 of both finished arms pair, so that one warning needs a sweep of its own.
    assert set(CATALOGUE) - set(found) == {"unpaired-seeds"}
    assert "3 of 6" in found["missing-runs"].message and found["missing-runs"].level == "error"
    assert "every late completion is cut" in found["truncation"].message
    assert "2.12, 2.13" in found["mixed-versions"].message
    assert "2 runs" in found["duplicated-cells"].message
    assert found["verifier-errors"].message.startswith("grpo: the verifier itself failed on 1,200 completions")
    assert f"more than on others: grpo 2.5, {HALF} 0.25 late" in found["clipped-gradients"].message
    assert all(notice.remedy for notice in found.values())


def test_completions_cut_at_the_cap_are_counted_among_the_incorrect_too(tmp_path):
    # 20 completions a step, one of two incorrect ones cut: 5 % of all, 50 % of the incorrect.
    rows = [row for step in range(1, 11) for row in rollout_rows(step, [8, 4], [3] * 18, cap=8)]
    write_run(tmp_path, "a", rows)
    write_plan(tmp_path, {"a": {"arm": "grpo", "seed": 0}})
    said = notices(tmp_path)["truncation"].message
    assert said.startswith("grpo: 5% of late completions are cut at the cap, 50% of the incorrect ones")


def test_a_reward_that_moves_from_one_warm_start_alone_is_named(tmp_path):
    flat = [row for step in range(1, 11) for row in rollout_rows(step, [5, 5, 5], [5])]
    rising = [row for step in range(1, 11) for row in rollout_rows(step, [5] * (11 - step), [5] * step)]
    write_run(tmp_path, "a", flat)
    write_run(tmp_path, "b", rising)
    write_plan(tmp_path, {"a": {"arm": "grpo", "seed": 0}, "b": {"arm": "grpo", "seed": 4, "policy_seed": 1}})
    said = notices(tmp_path)["reward-flat"].message
    assert said == "grpo from warm start 0: reward never moved (0.250 early, 0.250 late)"


def test_unpaired_seeds_are_named(summary):
    from dataclasses import replace

    metrics = summary.metrics.copy()
    metrics.loc[metrics.index[0], "complete"] = False
    found = find_notices(replace(summary, metrics=metrics), {})
    assert "grpo lacks seed 0 (policy 0)" in [notice.message for notice in found]


def test_half_dr_grpo_is_no_fault_where_the_whole_is_there(tmp_path):
    arms = {"dr_grpo": 20, "grpo@seq-mean-token-sum-norm/group": 20}
    assert "half-dr-grpo" not in notices(write_sweep(tmp_path / "s", arms, seeds=1, steps=2))


def test_modes_that_are_one_experiment_are_named_with_what_would_separate_them(tmp_path, monkeypatch):
    from lossbench.sweep.recipe import make_recipe

    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path))
    recipe = make_recipe({"modes": ["bnpo", "dapo", "grpo"], "steps": 2}, "t").model_dump(mode="json")
    rows = [
        {"arm": name, "mode": name, "loss_type": "grpo", "agg_mode": agg, "scale_rewards": "group"}
        for name, agg in (("bnpo", "micro-token-mean"), ("dapo", "token-mean"), ("grpo", "seq-mean-token-mean"))
    ]
    evidence = Evidence(pd.DataFrame(), pd.DataFrame(rows), recipe, {}, ())
    # One micro-batch per step: its tokens are the window's, so bnpo is dapo; grpo is neither.
    (sentence,) = list(same_experiment(evidence))
    assert "bnpo" in sentence and "dapo" in sentence and "same experiment" in sentence
    assert "separated by" in sentence and "micro" in sentence


def test_logs_of_others_are_not_said_to_be_on_policy(tmp_path):
    path = write_sweep(tmp_path / "s", {"grpo": 40, "cispo": 20}, seeds=7)
    on_policy = {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1}
    assert "inert-surrogates" in notices(path, **on_policy)
    assert "inert-surrogates" not in notices(path)


def test_each_arm_with_too_few_seeds_is_told_what_they_are_too_few_for(tmp_path):
    path = write_sweep(tmp_path / "s", {"grpo": 40, "dr_grpo": 20}, seeds=6)
    plan = json.loads((path / "sweep.json").read_text())
    kept = {run_id: run for run_id, run in plan["runs"].items() if run["arm"] == "grpo" or run["seed"] < 3}
    (path / "sweep.json").write_text(json.dumps(plan | {"runs": kept}))
    found = [n.message for n in find_notices(summarise(load(path)), {}) if n.code == "too-few-seeds"]
    assert found == [
        "dr_grpo: 3 completed seeds, no sign-flip test can reach 0.05",
        "grpo: 6 completed seeds, too few for 5 claims together",
    ]
