"""TRL's own writer against our reader: a short real run, then its files by hand where a run cannot make them."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.logs import completions, notes, read, refusal, state, written

from lossbench.errors import UsageError
from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.sweep_folder import ingest
from lossbench.store.read import load


def characters_as_tokens(texts):
    return [len(text) for text in texts]


def trained(folder, **options):
    """The log of a GRPOTrainer run of 4 steps in `folder`, two steps per generation."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer

    torch.manual_seed(0)
    tokenizer = make_tokenizer()

    def length_reward(completions, **_):
        return [float(len(text) > 2) for text in completions]

    def digit_reward(completions, **_):
        return [0.5 * text[:1].isdigit() for text in completions]

    args = GRPOConfig(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, num_generations=4, steps_per_generation=2,
        gradient_accumulation_steps=1, max_completion_length=6, logging_steps=1, log_completions=True, report_to="none",
        save_strategy="steps", save_steps=4, use_cpu=True, disable_tqdm=True, bf16=False, **options,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=make_model(TinyPolicy(), len(tokenizer)),
        processing_class=tokenizer,
        reward_funcs=[length_reward, digit_reward],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["1+2=", "3+4=", "5+6=", "7+8="]}),
        eval_dataset=Dataset.from_dict({"prompt": ["9+9=", "8+8="]}),
    )
    trainer.train()
    return trainer.state.log_history


@pytest.fixture(scope="module")
def trl_run(tmp_path_factory):
    """Output folder of a run, and the trainer's own log."""
    folder = tmp_path_factory.mktemp("trl")
    return folder, trained(folder)


def test_a_real_trl_run(trl_run, tmp_path):
    folder, history = trl_run
    logged = {row["step"]: row for row in history if "loss" in row}
    result = ingest(folder, tmp_path / "out", "auto", Request(mode="dapo", seed=3), Reading(characters_as_tokens))
    assert result.format == "trl"
    sweep = load(tmp_path / "out")
    run = sweep.runs.iloc[0]
    assert (run["arm"], run["seed"], run["status"], run["steps_planned"]) == ("dapo", 3, "completed", 4)
    assert sweep.steps["step"].tolist() == [1, 2, 3, 4]
    for row in sweep.steps.to_dict("records"):
        ours = logged[row["step"]]
        assert row["grad_norm"] == pytest.approx(ours["grad_norm"])
        assert row["lr"] == pytest.approx(ours["learning_rate"])
        if "completions/mean_length" in ours:
            assert row["length_mean"] == pytest.approx(ours["completions/mean_length"])
            assert row["reward_mean"] == pytest.approx(ours["reward"], abs=1e-6)
    rollouts = sweep.rollouts
    # Two generations of 8 completions; TRL writes each of them at both of its steps.
    assert rollouts.groupby("step").size().to_dict() == {1: 8, 3: 8}
    assert rollouts["generation"].tolist() == [1] * 8 + [2] * 8
    for step, rows in rollouts.groupby("step"):
        assert rows["reward"].mean() == pytest.approx(logged[step]["reward"], abs=1e-6)
        assert rows.groupby("group").size().tolist() == [4, 4]
        assert sorted(rows["sample"]) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert rows.groupby("group")["advantage"].sum().abs().max() < 1e-5
    assert rollouts["correct"].isna().all() and rollouts["terminated"].isna().all()
    text = sweep.table("rollouts", ["completion", "length_tokens"])
    assert text["length_tokens"].tolist() == [len(t) for t in text["completion"]]
    said = notes(result)
    assert "plain sum of length_reward, digit_reward" in said and "which completions are correct" in said
    assert "one token short" in said  # TRL does not say which completions ended
    assert "logged reward" not in said and "trainer_state.json" not in said


def test_a_damaged_completions_file_is_named_and_the_rest_read(trl_run, tmp_path):
    import shutil

    copy = tmp_path / "grpo-s1"
    shutil.copytree(trl_run[0], copy)
    (copy / "completions" / "completions_00003.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    (copy / "completions" / "completions_00004.parquet").write_bytes(b"")
    result = ingest(copy, tmp_path / "out", "auto", Request(), Reading())
    assert result.damage.count == 2 and "completions_00003.parquet" in result.damage.examples[0]
    sweep = load(tmp_path / "out")
    assert sweep.runs.iloc[0]["mode"] == "grpo" and sweep.runs.iloc[0]["seed"] == 1  # from the folder's name
    assert sorted(sweep.rollouts["step"].unique()) == [1]


def test_without_a_tokenizer_lengths_are_characters_and_say_so(trl_run, tmp_path):
    out = tmp_path / "out"
    ingest(trl_run[0], out, "trl", Request(mode="grpo", seed=0), Reading(correct_above=0.9))
    sweep = load(out)
    assert sweep.spec["length_unit"] == "characters"
    rows = sweep.table("rollouts", ["completion", "length_chars", "length_tokens", "correct", "reward"])
    assert rows["length_chars"].tolist() == [len(text) for text in rows["completion"]]
    assert rows["length_tokens"].isna().all()
    assert rows["correct"].tolist() == (rows["reward"] > 0.9).tolist()
    with pytest.raises(UsageError, match=r"mixed units: .* in tokens, .* in characters: give --tokenizer"):
        ingest(trl_run[0], out, "trl", Request(mode="dapo", seed=0), Reading(characters_as_tokens))
    assert len(load(out).runs) == 1  # the refused run left nothing behind


def test_trainer_state_alone_gives_curves(tmp_path):
    run = tmp_path / "dr_grpo-s2" / "checkpoint-20"
    run.mkdir(parents=True)
    base = {"loss": 0.1, "reward": 0.5, "completions/mean_length": 12.0, "completions/mean_terminated_length": 10.0}
    history = [
        {"step": 10, **base, "completions/clipped_ratio": 0.25},
        {"step": 20, **base, "completions/clipped_ratio": 1.0, "completions/mean_terminated_length": 0.0},
        {"step": 20, "eval_reward": 0.1},
        {"step": 20, "train_runtime": 3.0, "train_loss": 0.1},
    ]
    (run / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 40, "logging_steps": 10}))
    result = ingest(tmp_path / "dr_grpo-s2", tmp_path / "out", "auto", Request(), Reading())
    steps = load(tmp_path / "out").steps
    assert steps["step"].tolist() == [10, 20]
    assert steps["length_mean"].tolist() == [12.0, 12.0]
    # All cut: TRL writes 0 for the mean of the terminated ones, and there is no such thing.
    assert steps["length_terminated"].isna().tolist() == [False, True]
    assert load(tmp_path / "out").runs.iloc[0]["steps_planned"] == 40
    assert any("means over 10 steps" in note for run in result.runs.values() for note in run["notes"])


def test_conversations_unscored_rows_and_the_users_columns(tmp_path):
    folder = tmp_path / "run" / "completions"
    folder.mkdir(parents=True)
    question = [{"role": "user", "content": "What is 1 + 1?"}]
    pd.DataFrame(
        {
            "step": [1, 1, 1],
            "prompt": [question] * 3,
            "completion": [[{"role": "assistant", "content": text}] for text in ("2", "3, no 2", "?")],
            "accuracy_reward": [1.0, 0.0, None],
            "advantage": [0.5, -0.5, 0.0],
            "n_tokens": [2, 6, 9],
        }
    ).to_parquet(folder / "completions_00001.parquet")
    request = Request({"length": "n_tokens", "reward": "accuracy_reward"}, "grpo", 0)
    ingest(tmp_path / "run", tmp_path / "out", "auto", request, Reading())
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["prompt"].tolist() == ["What is 1 + 1?"] * 3
    assert rows["completion"].tolist() == ["2", "3, no 2", "?"]
    assert rows["length_tokens"].tolist() == [2, 6, 9] and rows["length_chars"].isna().all()
    assert rows["correct"].tolist()[:2] == [True, False] and pd.isna(rows["correct"][2])
    assert rows["reward"].isna().tolist() == [False, False, True]
    steps = load(tmp_path / "out").steps
    assert steps["reward_mean"].tolist() == [0.5]  # 1 and 0; the unscored row is no 0
    assert steps["length_correct"].tolist() == [2.0] and steps["length_incorrect"].tolist() == [6.0]


def test_completions_of_an_evaluation_are_left_out(tmp_path):
    trained(tmp_path / "run", eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=4)
    # What the trainer wrote: it evaluated at its last step too, and the training's rows of both are gone.
    for step in (3, 4):
        written_rows = pq.read_table(tmp_path / "run" / "completions" / f"completions_0000{step}.parquet").to_pydict()
        assert set(written_rows["prompt"]) == {"9+9=", "8+8="}
    result = read(tmp_path / "run", tmp_path / "out")
    rows = load(tmp_path / "out").table("rollouts")
    assert rows["step"].tolist() == [1] * 8 and not set(rows["prompt"]) & {"9+9=", "8+8="}
    assert load(tmp_path / "out").steps["step"].tolist() == [1, 2, 3, 4]
    assert "completions of step 3, 4 left out: an evaluation wrote over their file" in notes(result)


def test_rows_of_an_evaluation_that_are_written_again_stay_out(tmp_path):
    """Within a generation the trainer goes on writing what it has, which is the evaluation's rows by then."""
    evaluation = {"prompt": ["e", "e"], "completion": ["x", "y"]}
    for step, columns in ((1, {}), (2, evaluation), (3, evaluation), (4, {})):
        completions(tmp_path / "run" / "completions", step, **columns)
    written(tmp_path / "run" / "trainer_state.json", state({"step": 2, "eval_reward": 0.5}))
    result = read(tmp_path / "run", tmp_path / "out")
    assert load(tmp_path / "out").rollouts["step"].tolist() == [1, 1, 4, 4]
    assert "completions of step 2 left out" in notes(result)


def test_evaluations_after_the_last_checkpoint_come_by_their_period(tmp_path):
    run = tmp_path / "run"
    for step in (0, 5, 10, 11, 15, 20):
        completions(run / "completions", step)
    history = [{"step": step, "eval_reward": 0.5} for step in (0, 5, 10)]
    written(run / "checkpoint-10" / "trainer_state.json", state(*history, eval_steps=5, global_step=10))
    result = read(run, tmp_path / "out")
    assert set(load(tmp_path / "out").rollouts["step"]) == {11}
    assert "completions of step 0, 5, 10, 15, 20 left out" in notes(result)
    # One evaluation off the period: it says nothing of what came later.
    written(
        run / "checkpoint-10" / "trainer_state.json", state({"step": 7, "eval_reward": 1}, eval_steps=5, global_step=10)
    )
    read(run, tmp_path / "other")
    assert set(load(tmp_path / "other").rollouts["step"]) == {0, 5, 10, 11, 15, 20}


def test_a_file_named_alone_is_judged_by_the_state_of_its_run(tmp_path):
    file = completions(tmp_path / "run" / "completions", 2)
    assert "no trainer_state.json to read" in notes(read(file, tmp_path / "unknown"))
    written(tmp_path / "run" / "trainer_state.json", state({"step": 2, "eval_reward": 1.0}))
    assert "no row" in refusal(file, tmp_path / "out")
    written(tmp_path / "run" / "trainer_state.json", state({"step": 3, "eval_reward": 1.0}))
    assert "trainer_state.json" not in notes(read(file, tmp_path / "out"))
    assert len(load(tmp_path / "out").rollouts) == 2


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"step": ["inf", "inf"]}, "step 'inf' is no number"),
        ({"step": None}, "no columns step and completion"),
        ({"completion": None}, "no columns step and completion"),
    ],
)
def test_damaged_completions_are_named(columns, reason, tmp_path):
    completions(tmp_path / "run" / "completions", 1, **columns)
    completions(tmp_path / "run" / "completions", 2, prompt=None)  # no prompt, no groups; the rest is there
    result = read(tmp_path / "run", tmp_path / "out")
    rows = load(tmp_path / "out").rollouts
    assert rows["step"].tolist() == [2, 2] and rows["group"].isna().all()
    assert "completions_00001.parquet" in result.damage.examples[0] and reason in result.damage.examples[0]


def test_a_trainer_state_that_makes_no_sense(tmp_path):
    run = tmp_path / "run"
    completions(run / "completions", 1)
    for text in (
        "[]",
        '{"log_history": 5}',
        '{"log_history": [3, {"step": "x", "loss": 1}, {"loss": 1}]}',
        "[" * 100_000,
    ):
        written(run / "trainer_state.json", text)
        read(run, tmp_path / "out")
        assert load(tmp_path / "out").steps["step"].tolist() == [1]
    written(run / "trainer_state.json", state({"step": 3.0, "loss": "x"}, logging_steps="10", max_steps="many"))
    assert "means over 10 steps" in notes(read(run, tmp_path / "out"))


def test_a_mapping_is_applied_or_refused(tmp_path):
    completions(tmp_path / "run" / "completions", 1, at=[4, 4], text=["x", "yy"], asked=["p", "p"])
    columns = {"step": "at", "completion": "text", "prompt": "asked"}
    read(tmp_path / "run", tmp_path / "out", columns=columns)
    rows = load(tmp_path / "out").table("rollouts")
    assert rows[["step", "completion", "prompt"]].to_numpy().tolist() == [[4, "x", "p"], [4, "yy", "p"]]
    for field, message in [
        ("step", "no column 'nosuch' for --map step=nosuch"),
        ("completion", "no column 'nosuch' for --map completion=nosuch"),
        ("kl", "--map kl=nosuch names nothing that is read from this trl log"),
        ("seed", "--map seed=nosuch names nothing that is read from this trl log; --seed sets it"),
    ]:
        assert message in refusal(tmp_path / "run", tmp_path / "no", columns={field: "nosuch"})
