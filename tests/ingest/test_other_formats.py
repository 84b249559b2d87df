"""Event files, W&B tables, lists by step, nested curves, notebooks and parquet."""

import json

import pandas as pd
import pytest
from support.logs import lines, notes, read, refusal, words, written

from lossbench.store.read import load


def test_tensorboards_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "logs" / "dr_grpo-s2" / "runs" / "Nov30_host"
    with SummaryWriter(str(folder)) as writer:
        for step in (1, 2):
            writer.add_scalar("train/reward", 0.25 * step, step)
            writer.add_scalar("train/completions/mean_length", 100.0 + step, step)
        writer.add_text("config", "not a number")
    result = read(tmp_path / "logs", tmp_path / "out", mode=None, seed=None)
    assert result.format == "tensorboard"
    sweep = load(tmp_path / "out")
    assert sweep.runs.iloc[0][["mode", "seed"]].tolist() == ["dr_grpo", 2]
    assert sweep.steps["reward_mean"].tolist() == [0.25, 0.5] and sweep.steps["length_mean"].tolist() == [101.0, 102.0]


def table(*rows, columns=("step", "prompt", "completion", "acc_reward", "advantage")):
    return json.dumps({"columns": [*columns], "data": [*rows]})


def test_wandbs_tables_of_completions(tmp_path):
    folder = tmp_path / "run" / "files"
    first = [[1, "q", "a b", 1.0, 0.5], [1, "q", "c", 0.0, -0.5]]
    written(folder / "completions_1_ab.table.json", table(*first))
    written(folder / "completions_2_aa.table.json", table(*first))  # one generation, logged again
    written(folder / "completions_10_a.table.json", table([10, "q", "d e f", 1.0, 0.0]))
    written(folder / "config.yaml", "loss_type: {desc: null, value: dapo}\nseed: {value: 7}\n")
    result = read(tmp_path / "run", tmp_path / "out", mode=None, seed=None, count_tokens=words)
    assert result.format == "wandb-table"
    sweep = load(tmp_path / "out")
    assert sweep.runs.iloc[0][["mode", "seed"]].tolist() == ["dapo", 7]
    rows = sweep.table("rollouts")
    assert rows["step"].tolist() == [1, 1, 10] and rows["completion"].tolist() == ["a b", "c", "d e f"]
    assert rows["reward"].tolist() == [1.0, 0.0, 1.0] and rows["length_tokens"].tolist() == [2, 1, 3]


def test_verls_wide_table_of_validation(tmp_path):
    columns = ("step", "input_1", "output_1", "score_1", "input_2", "output_2", "score_2")
    text = table([0, "p", "a", 0.0, "q", "b", 1.0], [5, "p", "c", 1.0, "q", "d", 1.0], columns=columns)
    read(written(tmp_path / "val_generations.table.json", text), tmp_path / "out")
    evals = load(tmp_path / "out").table("evals")
    assert evals[["step", "prompt", "completion", "reward"]].to_numpy().tolist() == [
        [0, "p", "a", 0.0], [0, "q", "b", 1.0], [5, "p", "c", 1.0], [5, "q", "d", 1.0],
    ]  # fmt: skip


def test_a_record_a_step_with_lists(tmp_path):
    rows = [{"step": n, "rewards": [0.0, 1.0, 1.0], "lens": [n, 2, 3], "kl": 0.5} for n in (1, 2)]
    text = lines(*rows, {"step": 3, "rewards": [1.0], "lens": [1, 2]}, {"step": "x", "rewards": [1.0]})
    result = read(written(tmp_path / "grpo-s0.log", text), tmp_path / "out", mode=None, seed=None)
    assert result.format == "step-lists"
    sweep = load(tmp_path / "out")
    assert sweep.rollouts["length_tokens"].tolist() == [1, 2, 3, 2, 2, 3]
    assert sweep.steps["reward_mean"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert (
        sweep.steps["length_mean"].tolist() == pytest.approx([2.0, 7 / 3]) and sweep.steps["kl"].tolist() == [0.5] * 2
    )
    assert [example.split(": ")[1] for example in result.damage.examples] == [
        "its lists differ in length", "step 'x' is no number",
    ]  # fmt: skip


CURVE = [{"step": 1, "reward": 0.1, "mean_length": 10.0}, {"step": 2, "reward": 0.2, "mean_length": 12.0}]


@pytest.mark.parametrize(
    ("content", "runs"),
    [
        (
            {"runs": [{"algo": name, "seed": 4, "step_log": CURVE} for name in ("GRPO", "Dr. GRPO")]},
            [("grpo", 4), ("dr_grpo", 4)],
        ),
        ({"dapo": {"seed": 1, "history": CURVE, "mode": "dapo"}}, [("dapo", 1)]),
        ({"history": CURVE, "mode": "grpo", "config": {"lr": 1e-6}}, [("grpo", 0)]),
        ({"log_history": [{**row, "loss": 0.1} for row in CURVE], "mode": "ignored"}, None),
    ],
)  # fmt: skip
def test_curves_inside_other_json(content, runs, tmp_path):
    path = written(tmp_path / "results.json", json.dumps(content))
    result = read(path, tmp_path / "out", mode=None if runs else "grpo", seed=None)
    assert result.format == ("nested" if runs else "trl")
    sweep = load(tmp_path / "out")
    assert sorted(zip(sweep.runs["mode"], sweep.runs["seed"], strict=True)) == sorted(runs or [("grpo", 0)])
    assert sweep.steps["reward_mean"].tolist()[:2] == [0.1, 0.2] and sweep.steps["length_mean"].tolist()[:2] == [10, 12]


def test_a_notebooks_table(tmp_path):
    html = (
        "<table><tr><th>Step</th><th>Training Loss</th><th>reward</th><th>completions / mean_length</th></tr>"
        + "".join(f"<tr><td>{n}</td><td>0.1</td><td>0.{n}</td><td>10{n}.5</td></tr>" for n in (1, 2))
    )
    cell = {"cell_type": "code", "outputs": [{"data": {"text/html": [html], "text/plain": ["x"]}}]}
    path = written(tmp_path / "grpo-s1.ipynb", json.dumps({"cells": [{"cell_type": "markdown"}, cell]}))
    read(path, tmp_path / "out", mode=None, seed=None)
    steps = load(tmp_path / "out").steps
    assert steps["reward_mean"].tolist() == [0.1, 0.2] and steps["length_mean"].tolist() == [101.5, 102.5]
    assert steps["loss"].tolist() == [0.1, 0.1] and steps["seed"].tolist() == [1, 1]


def test_parquet_of_steps_and_of_completions(tmp_path):
    steps = pd.DataFrame({"step": [1, 2], "reward": [0.1, 0.2], "completions/mean_length": [10.0, 12.0]})
    (tmp_path / "curves").mkdir()
    steps.to_parquet(tmp_path / "curves" / "grpo-s0.parquet")
    read(tmp_path / "curves", tmp_path / "out", mode=None, seed=None)
    assert load(tmp_path / "out").steps["length_mean"].tolist() == [10.0, 12.0]
    rows = {
        "mode": ["grpo"] * 3,
        "seed": [0, 0, 1],
        "step": [1, 1, 1],
        "response": ["a", "b c", "d"],
        "reward": [0.5, 1, 0],
    }
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    read(tmp_path / "rows.parquet", tmp_path / "rows", mode=None, seed=None, count_tokens=words)
    found = load(tmp_path / "rows").table("rollouts")
    assert found["completion"].tolist() == ["a", "b c", "d"] and found["length_tokens"].tolist() == [1, 2, 1]
    assert found["reward"].tolist() == [0.5, 1.0, 0.0] and found["seed"].tolist() == [0, 0, 1]
    chats = [[{"role": "user", "content": "q"}], [{"role": "user", "content": "p"}, {"role": "user", "content": "q"}]]
    pd.DataFrame({"step": [1, 1], "prompt": chats, "response": ["a", "[{] b"]}).to_parquet(tmp_path / "chats.parquet")
    read(tmp_path / "chats.parquet", tmp_path / "chats")
    assert load(tmp_path / "chats").table("rollouts")[["prompt", "completion"]].to_numpy().tolist() == [
        ["q", "a"], ["p\nq", "[{] b"],
    ]  # fmt: skip
    damaged = written(tmp_path / "bad.parquet", b"PAR1" + b"\0" * 50)
    assert "bad.parquet: not a readable parquet file" in refusal(damaged, tmp_path / "bad")


def test_the_mode_is_read_from_verls_configuration(tmp_path):
    folder = tmp_path / "outputs" / "2026-01-01"
    config = {
        "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
        "actor_rollout_ref": {
            "actor": {"loss_agg_mode": "seq-mean-token-sum-norm", "policy_loss": {"loss_mode": "vanilla"}}
        },
    }
    written(folder / ".hydra" / "config.yaml", json.dumps(config))  # JSON is YAML
    written(folder / "main.log", "step:1 - critic/rewards/mean:0.5 - response_length/mean:9.0\n")
    result = read(tmp_path / "outputs", tmp_path / "out", mode=None)
    assert [run.split("-s0")[0] for run in result.runs] == ["dr_grpo"]


def test_settings_above_a_folder_named_for_a_mode_are_not_its_own(tmp_path):
    log = "step:1 - critic/rewards/mean:0.5 - response_length/mean:9.0\n"
    written(tmp_path / "all" / "config.yaml", "loss_type: {value: dapo}\n")
    for name in ("grpo-s0", "dr_grpo-s0", "nameless"):
        written(tmp_path / "all" / name / "main.log", log)
    result = read(tmp_path / "all", tmp_path / "out", mode=None)
    assert sorted(run.split("-s0")[0] for run in result.runs) == ["dapo", "dr_grpo", "grpo"]
    written(tmp_path / "all" / "grpo-s0" / "config.yaml", "loss_type: {value: cispo}\n")
    result = read(tmp_path / "all" / "grpo-s0", tmp_path / "own", mode=None)
    assert [run.split("-s0")[0] for run in result.runs] == ["cispo"] and "is that of config.yaml" in notes(result)
