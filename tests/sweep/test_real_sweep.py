"""One real sweep of 20 steps through the command line, and what its files must hold."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import lossbench
from lossbench.store.schema import TABLES

MODES, STEPS, ROWS, HORIZON = ("grpo", "dr_grpo"), 20, 64, 128


def sweep_command(out, *more):
    flags = ["--modes", ",".join(MODES), "--seeds", "1", "--steps", str(STEPS), "--set", "eval_samples=1", "--quiet"]
    return [sys.executable, "-m", "lossbench", "sweep", *flags, "--out", str(out), *more]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("e2e") / "sweep"
    result = run(*sweep_command(out, "--jobs", "2"))
    assert result.returncode == 0, result.stderr
    assert result.stderr == "" and result.stdout == ""  # --quiet
    return out


@pytest.fixture(scope="module")
def rollouts(folder):
    return lossbench.load(folder).table("rollouts")


def test_every_run_completes_with_its_three_tables(folder):
    sweep = lossbench.load(folder)
    assert sweep.runs["status"].tolist() == ["completed"] * 2
    assert sweep.problems == []
    for run_id in sweep.run_ids:
        names = {path.name for path in sweep.run_dir(run_id).iterdir()}
        assert names == {"run.json", "log.txt", "steps.parquet", "rollouts.parquet", "evals.parquet"}
        for table in ("steps", "rollouts", "evals"):
            frame = pd.read_parquet(sweep.run_dir(run_id) / f"{table}.parquet")
            assert list(frame.columns) == [column.name for column in TABLES[table]]


def test_steps_and_rollouts_are_complete_and_agree(folder, rollouts):
    steps = lossbench.load(folder).steps
    for mode in MODES:
        mine, rows = steps[steps["mode"] == mode], rollouts[rollouts["mode"] == mode]
        assert mine["step"].tolist() == list(range(1, STEPS + 1))
        assert rows.groupby("step", observed=True).size().tolist() == [ROWS] * STEPS
        assert np.allclose(mine["reward_mean"], rows.groupby("step")["reward"].mean())
        assert np.allclose(mine["length_mean"], rows.groupby("step")["length_tokens"].mean())
        assert mine["tokens"].tolist() == rows.groupby("step")["length_tokens"].sum().tolist()
        assert np.allclose(mine["weight_sum"], rows.groupby("step")["token_weight"].sum())
        assert mine["kl"].isna().all()  # no reference policy at beta 0: null, not zero


def test_weights_are_those_of_the_formulas(rollouts):
    grpo, dr_grpo = (rollouts[rollouts["mode"] == mode] for mode in MODES)
    assert np.allclose(grpo["token_weight"], 1 / (ROWS * grpo["length_tokens"]), rtol=1e-12)
    assert np.allclose(dr_grpo["token_weight"], 1 / (ROWS * HORIZON), rtol=1e-12)


def test_advantages_are_centred_and_scaled_as_the_mode_says(rollouts):
    for mode, scaled in zip(MODES, (True, False), strict=True):
        rows = rollouts[rollouts["mode"] == mode]
        groups = rows.groupby(["step", "group"])["reward"]
        expected = rows["reward"] - groups.transform("mean")
        if scaled:
            expected = expected / (groups.transform("std") + 1e-4)
        assert np.allclose(rows["advantage"], expected, atol=1e-5)


def test_reward_is_correct_and_terminated_and_length_counts_the_eos(rollouts):
    assert (rollouts["reward"] == (rollouts["correct"] & rollouts["terminated"])).all()
    characters = rollouts["completion"].str.len()
    # A character is a token, and the special tokens that a policy may draw have none.
    assert (rollouts["length_tokens"] >= characters + rollouts["terminated"]).all()
    assert (rollouts["length_tokens"] == characters + rollouts["terminated"]).mean() > 0.98
    assert rollouts["length_tokens"].max() <= HORIZON


def test_first_completions_are_the_same_for_all_modes_of_a_seed(rollouts):
    first = rollouts[rollouts["step"] == 1]
    keys = ["group", "sample", "prompt_id", "completion"]
    grpo, dr_grpo = (first[first["mode"] == m].sort_values(["group", "sample"])[keys].to_numpy() for m in MODES)
    assert (grpo == dr_grpo).all()
    later = rollouts[rollouts["step"] == STEPS]
    completions = [set(later[later["mode"] == m]["completion"]) for m in MODES]
    assert completions[0] != completions[1]  # by then the policies differ


def test_evaluation_brackets_the_run_with_the_same_draws_for_all_modes(folder):
    evals = lossbench.load(folder).table("evals")
    assert set(evals["step"]) == {0, STEPS}
    before = evals[evals["step"] == 0]
    assert len(before) == 2 * 100
    grpo, dr_grpo = (before[before["mode"] == m]["completion"].tolist() for m in MODES)
    assert grpo == dr_grpo


def digests(folder):
    return {
        str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
        for p in folder.rglob("*.*")
        if p.is_file()
    }


def test_the_same_command_again_changes_nothing(folder):
    before = digests(folder)
    assert run(*sweep_command(folder)).returncode == 0
    assert digests(folder) == before


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_jobs(folder, tmp_path):
    result = run(*sweep_command(tmp_path / "again", "--jobs", "1"))
    assert result.returncode == 0, result.stderr
    for run_id in lossbench.load(folder).run_ids:
        for table in ("steps", "rollouts", "evals"):
            first, again = (
                pq.read_table(root / "runs" / run_id / f"{table}.parquet").drop_columns(
                    [name for name in ("wall_s",) if name in [c.name for c in TABLES[table]]]
                )
                for root in (folder, tmp_path / "again")
            )
            assert first.equals(again), f"{run_id} {table}"


def test_another_plan_in_the_same_folder_is_refused_with_the_difference(folder):
    result = run(*sweep_command(folder, "--set", "learning_rate=0.5"))
    assert result.returncode == 2
    assert "learning_rate: 0.0001 there, 0.5 here" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_plan_records_what_it_was_made_with(folder):
    plan = json.loads((folder / "sweep.json").read_text())
    assert plan["versions"]["trl"].startswith("1.16")
    assert plan["command"].startswith("python -m lossbench sweep --modes grpo,dr_grpo")
    assert plan["shared"]["learning_rate"] == 1e-4
    assert len(plan["plan_hash"]) == 64


def test_runs_lists_where_each_stands(folder):
    result = run(sys.executable, "-m", "lossbench", "runs", str(folder), "--format", "json")
    rows = json.loads(result.stdout)
    assert [(row["status"], row["step"]) for row in rows] == [("completed", STEPS)] * 2
    assert all(3 < row["length_tokens"] < HORIZON for row in rows)
