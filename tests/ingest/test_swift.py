"""ms-swift's logs, laid out as its trainers write them."""

import json

import pandas as pd
import pytest
from support.logs import lines, notes, read, refusal, words, written

from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.run_config import mode_of_config
from lossbench.ingest.sweep_folder import ingest
from lossbench.store.read import load


@pytest.fixture
def swift_folder(tmp_path):
    """ms-swift's output: columnar completions with steps as text, a generation logged twice, metrics, arguments."""
    folder = tmp_path / "v0-20260101-000000"
    folder.mkdir()
    table = {
        "step": ["1"] * 4,
        "prompt": ["q0", "q0", "q1", "q1"],
        "completion": ["a b", "a", "a b c", "a"],
        "Format": [1.0, 1.0, 0.0, 1.0],
        "MathAccuracy": [1.0, 0.0, 0.0, 1.0],
        "advantages": [0.7, -0.7, -0.7, 0.7],
    }
    later = {**table, "step": ["3"] * 4, "completion": ["b", "b b", "b", "b b"]}
    lines = [table, {**table, "step": ["2"] * 4}, later]
    (folder / "completions.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    metrics = {"loss": 0.1, "reward": 1.25, "rewards/Format/mean": 0.75, "rewards/MathAccuracy/mean": 0.5, "kl": 0.01}
    logs = [{**metrics, "global_step/max_steps": f"{step}/50"} for step in (1, 2, 3)]
    logs.append({"train_runtime": 9.0, "global_step/max_steps": "3/50"})
    (folder / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs))
    args = {"loss_type": "dr_grpo", "scale_rewards": "group", "seed": 42, "num_generations": 2}
    (folder / "args.json").write_text(json.dumps(args))
    (folder / "checkpoint-3").mkdir()
    (folder / "checkpoint-3" / "trainer_state.json").write_text("{}")
    return folder


def test_swift_names_its_own_mode_and_seed(swift_folder, tmp_path):
    result = ingest(swift_folder.parent, tmp_path / "out", "auto", Request(), Reading(words))
    assert result.format == "swift"
    sweep = load(tmp_path / "out")
    run = sweep.runs.iloc[0]
    # ms-swift's dr_grpo is the divisor alone: with its std the stored name is the triple.
    assert (run["mode"], run["seed"]) == ("grpo@seq-mean-token-sum-norm/group", 42)
    assert (run["steps_planned"], run["steps_done"]) == (50, 3)
    rows = sweep.rollouts
    assert rows["step"].tolist() == [1] * 4 + [3] * 4  # the generation logged again at step 2 is read once
    assert rows["reward"].tolist()[:4] == [2.0, 1.0, 0.0, 2.0]
    assert rows["correct"].tolist()[:4] == [True, False, False, True]
    assert rows["length_tokens"].tolist()[:4] == [2, 1, 3, 1]
    steps = sweep.steps
    assert steps["step"].tolist() == [1, 2, 3] and steps["kl"].tolist() == [0.01] * 3
    assert steps["reward_mean"].tolist() == [1.25] * 3


def test_swift_from_megatron_and_one_completion_per_line(tmp_path):
    for name, line in [
        ("columns", {"gen_step": [0, 0], "prompt": ["q", "q"], "completion": ["a", "b"], "Acc": [1.0, 0.0]}),
        ("rows", {"step": 1, "prompt": "q", "completion": "a", "Acc": 1.0}),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "completions.jsonl").write_text(json.dumps(line) + "\n")
        (folder / "logging.jsonl").write_text('{"loss": "0.5", "iteration": "1/4"}\n')
        read(folder, tmp_path / f"out-{name}")
        sweep = load(tmp_path / f"out-{name}")
        assert set(sweep.rollouts["step"]) == {1} and sweep.rollouts["reward"].tolist()[0] == 1.0
        assert sweep.steps["loss"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("args", "mode"),
    [
        ({"loss_type": "grpo"}, "grpo"),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, "gspo"),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr_grpo"),
        ({"loss_type": "dapo", "scale_rewards": False}, "grpo@token-mean/none"),
        ({"loss_type": "cispo"}, "cispo"),
        ({"loss_type": "grpo", "advantage_estimator": "rloo"}, None),
        ({"loss_type": "real"}, None),
        ({}, None),
    ],
)
def test_swift_arguments_as_modes(args, mode):
    assert mode_of_config(args) == mode


def table(step, *completions, prompt="q", **columns):
    rows = len(completions)
    rewards = {"Acc": [1.0] * rows, "Format": [0.5] * rows} | columns
    return {"step": [str(step)] * rows, "prompt": [prompt] * rows, "completion": [*completions], **rewards}


def log(step, **metrics):
    return {"loss": 0.1, **metrics, "global_step/max_steps": f"{step}/9"}


def run_of(folder, tables, logs=(), **args):
    written(folder / "completions.jsonl", lines(*tables))
    written(folder / "logging.jsonl", lines(*logs))
    written(folder / "args.json", json.dumps({"loss_type": "grpo", "seed": 42, **args}))
    return folder


EVALUATION = {"eval_loss": 0.1, "eval_reward": 1.0}


@pytest.mark.parametrize(
    ("tables", "logs", "read_from", "left_out"),
    [
        # An evaluation's table comes after the training's of its step, and is logged again until rows are drawn.
        ([table(1, "a"), table(1, "E", prompt="e"), table(2, "E", prompt="e"), table(3, "b")], (), [1, 3], "1"),
        # The training's is a repetition here, so it has no new row.
        ([table(1, "a"), table(2, "a"), table(2, "E", prompt="e"), table(3, "b")], (), [1, 3], "2"),
        # No step is logged for training at 0 and 5 (logging_steps), so their only tables are the evaluation's.
        (
            [table(0, "E", prompt="e"), table(1, "a"), table(5, "E", prompt="e")],
            [{**EVALUATION, "global_step/max_steps": f"{step}/9"} for step in (0, 5)] + [log(1)],
            [1],
            "0, 5",
        ),
        # With log_entropy it grows, and what goes on with an evaluation's rows is the evaluation's.
        (
            [table(1, "a"), table(1, "E", prompt="e"), {**table(2, "E", "F", prompt="e")}, table(3, "b", "c")],
            (),
            [1, 3, 3],
            "1",
        ),
    ],
)
def test_tables_of_an_evaluation_are_left_out(tables, logs, read_from, left_out, tmp_path):
    result = read(run_of(tmp_path / "v0", tables, logs), tmp_path / "out")
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["step"].tolist() == read_from and set(rows["prompt"]) == {"q"}
    assert f"tables of step {left_out} left out" in notes(result)


def test_a_table_that_grows_is_read_once(tmp_path):
    """--log_entropy: rows appear as they are trained on; all of them are of the generation of the first step."""
    tables = [
        table(1, "a", "b"),
        table(2, "a", "b", "c", "d"),
        table(3, "e", "f", "g", "h"),
        table(4, "e", "f", "g", "h"),
    ]
    result = read(run_of(tmp_path / "v0", tables), tmp_path / "out")
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["completion"].tolist() == [*"abcdefgh"]
    assert rows["step"].tolist() == [1] * 4 + [3] * 4 and rows["generation"].tolist() == [1] * 4 + [2] * 4
    assert "left out" not in notes(result)


BOTH = {"rewards/Acc/mean": 1.0, "rewards/Format/mean": 0.5}


@pytest.mark.parametrize(
    ("logs", "args", "reward", "noted"),
    [
        ([log(1, reward=1.5, **BOTH)], {}, 1.5, ["plain sum of Acc, Format: the log does not hold their weights"]),
        ([log(1, reward=1.5, **BOTH)], {"reward_weights": None}, 1.5, []),
        ([log(1, reward=0.3, **BOTH)], {"reward_weights": [0.1, 0.4]}, 0.3, []),
        ([log(1, **BOTH)], {"reward_weights": [2.0]}, 1.5, ["the arguments hold 1 reward weights for 2 columns"]),
        (
            [log(1, reward=0.3, **BOTH)],
            {"reward_weights": None},
            1.5,
            ["is not the logged reward at 1 of 1 steps (1.5 vs 0.3 at step 1)"],
        ),
        ([], {}, 1.5, ["plain sum of Acc, Format: no log of the steps names the reward functions"]),
    ],
)
def test_rewards_are_weighted_as_the_arguments_say(logs, args, reward, noted, tmp_path):
    result = read(run_of(tmp_path / "v0", [table(1, "a")], logs, **args), tmp_path / "out")
    assert load(tmp_path / "out").rollouts["reward"].tolist() == pytest.approx([reward])
    said = [note for note in notes(result).split(" | ") if "reward" in note and "correct" not in note]
    assert len(said) == len(noted) and all(part in note for part, note in zip(noted, said, strict=True))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"step": "1", "completion": ["a"]}, "its completion is a list, its step is none"),
        ({"gen_step": ["x"], "completion": ["a"]}, "step 'x' is no number"),
        ({"gen_step": [float("inf")], "completion": ["a"]}, "step inf is no number"),
        ({"step": ["1"], "completion": "a"}, "step ['1'] is no number"),
        ({"step": ["1", "2"], "completion": ["a"]}, "its lists differ in length"),
        ({"completion": ["a"]}, "has no completion, or neither step nor gen_step"),
        ({"gen_step": "x", "completion": "a"}, "step 'x' is no number"),
    ],
)
def test_a_damaged_line_is_named(line, reason, tmp_path):
    result = read(run_of(tmp_path / "v0", [line, table(2, "b", Acc=["hi"])]), tmp_path / "out")
    assert load(tmp_path / "out").rollouts["step"].tolist() == [2]
    assert result.damage.count == 1 and "completions.jsonl, line 1" in result.damage.examples[0]
    assert reason in result.damage.examples[0]


def test_arguments_and_logs_that_make_no_sense(tmp_path):
    logs = [log("²"), log(2), {"loss": 1, "global_step/max_steps": 7}]
    args = {"loss_type": ["grpo"], "seed": "x", "num_generations": "many", "reward_weights": {"a": 1}}
    result = read(run_of(tmp_path / "v0", [table(2, "a")], logs, **args), tmp_path / "out")
    assert result.damage.count == 1 and "no step in '²/9'" in result.damage.examples[0]
    assert load(tmp_path / "out").steps["step"].tolist() == [2, 7]


def test_two_versions_of_one_mode_and_seed_are_refused(tmp_path):
    for version in ("v0-a", "v1-b"):
        run_of(tmp_path / "runs" / version, [table(1, "a")])
    said = refusal(tmp_path / "runs", tmp_path / "out", mode=None, seed=None)
    assert "run grpo seed 42 is there twice, 'v0-a' and 'v1-b': ingest each by itself with a --seed of its own" in said


def test_a_mapping_is_applied_to_every_field(tmp_path):
    lines_of = {"at": ["3"], "text": ["a b"], "asked": ["q"], "n": [7], "Acc": [1.0]}
    columns = {"step": "at", "completion": "text", "prompt": "asked", "length": "n", "loss": "my_loss"}
    folder = run_of(tmp_path / "v0", [lines_of], [log(3, my_loss=0.7)])
    read(folder, tmp_path / "out", columns=columns)
    row = load(tmp_path / "out").table("rollouts").iloc[0]
    assert row[["step", "completion", "prompt", "length_tokens", "reward"]].tolist() == [3, "a b", "q", 7, 1.0]
    assert load(tmp_path / "out").steps["loss"].tolist() == [0.7]
    assert "no column 'nosuch'" in refusal(folder, tmp_path / "no", columns={**columns, "prompt": "nosuch"})
    assert "--map seed=Acc names nothing" in refusal(folder, tmp_path / "no", columns={**columns, "seed": "Acc"})


def test_tables_are_read_some_rows_at_a_time_and_each_row_keeps_its_line(tmp_path, monkeypatch):
    tables = [table(1, "a", "b"), table(2, "c", "d", Late=[0.25, None]), {"step": "3", "completion": "e", "Acc": 1.0}]
    run = run_of(tmp_path / "run", [*tables, table("x", "f"), table(4, "g", "h")])
    whole = read(run, tmp_path / "whole")
    monkeypatch.setattr("lossbench.ingest.staging.PENDING_TABLES", 0)
    pieces = read(run, tmp_path / "pieces")
    one, other = (load(tmp_path / name).table("rollouts") for name in ("whole", "pieces"))
    pd.testing.assert_frame_equal(one, other)
    # Acc + Format + Late of each row, as far as the row has them
    assert one["reward"].tolist() == [1.5, 1.5, 1.75, 1.5, 1.0, 1.5, 1.5]
    assert one["step"].tolist() == [1, 1, 2, 2, 3, 4, 4]
    # Step 3 names no prompt: it is of no group, and not of one with other rows that name none.
    assert one["group"].fillna(-1).tolist() == [0, 0, 0, 0, -1, 0, 0]
    for name in ("prompt_id", "group", "sample"):
        assert one[name].isna().tolist() == [False] * 4 + [True] + [False] * 2
    for result in (whole, pieces):
        assert result.damage.examples == [f"{run / 'completions.jsonl'}, line 4: step 'x' is no number"]
