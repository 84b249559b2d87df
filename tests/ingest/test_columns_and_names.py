"""Which column became which field, whose run it is, and shapes of tables that people have."""

import json

import pytest
from support.logs import completion, completions, lines, notes, read, refusal, state, words, written
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.store.read import load


def only(result):
    return next(iter(result.runs.values()))


LENGTHS = [
    "response_length", "response_len", "response_len/mean", "completions / mean_length", "mean_length",
    "completion_len/mean", "avg_gen_tokens", "len_mean", "mean_completion_length", "rollout/response_len/mean",
]  # fmt: skip
REWARDS = ["mean_reward", "avg_reward", "reward/mean", "rewards/mean", "raw_reward", "rollout/raw_reward",
           "env/all/reward/total", "train/reward"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ours"), [(n, "length_mean") for n in LENGTHS] + [(n, "reward_mean") for n in REWARDS]
)
def test_usual_names_of_rewards_and_lengths(name, ours, tmp_path):
    result = read(written(tmp_path / "c.csv", f"step,{name},other\n1,0.5,7\n2,0.25,8\n"), tmp_path / "out")
    assert load(tmp_path / "out").steps[ours].tolist() == [0.5, 0.25]
    assert only(result)["columns"] == {"step": "step", ours: name} and only(result)["not_used"] == ["other"]


@pytest.mark.parametrize("name", ["truncated_ratio", "truncation_rate", "completions/clipped_ratio"])
def test_usual_names_of_truncation(name, tmp_path):
    read(written(tmp_path / "c.csv", f"step,reward,{name}\n1,0.5,0.125\n"), tmp_path / "out")
    assert load(tmp_path / "out").steps["truncated_frac"].tolist() == [0.125]


def test_the_command_says_which_column_became_which_field(tmp_path):
    path = written(tmp_path / "c.csv", "step,reward,gen_tokens_p50,foo\n1,0.5,80,1\n")
    done = CliRunner().invoke(app, ["ingest", str(path), "--mode", "grpo", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stderr.split())
    assert "reward_mean ← reward, step ← step; not used: gen_tokens_p50, foo" in said
    assert "--map length_mean=gen_tokens_p50" in said
    folder = tmp_path / "run"
    completions(folder / "completions", 1, acc=[1.0, 0.0], note=["a", "b"])
    done = CliRunner().invoke(app, ["ingest", str(folder), "--mode", "grpo", "--out", str(tmp_path / "trl")])
    said = " ".join(done.stderr.split())
    assert (
        "reward ← acc, step ← step, prompt ← prompt, completion ← completion, advantage ← advantage; not used: note"
        in said
    )


def test_a_table_of_unknown_columns_is_refused_with_those_that_may_be_meant(tmp_path):
    said = refusal(written(tmp_path / "c.csv", "step,my_score,tok_len,foo\n1,0.5,10,1\n"), tmp_path / "out")
    assert "it has step, my_score, tok_len, foo: --map reward_mean=my_score --map length_mean=tok_len" in said


@pytest.mark.parametrize(
    ("text", "reward", "said"),
    [
        ("step,reward\n1,0.0\n1,1.0\n1,0.5\n2,0.25\n", [0.5, 0.25], "their mean"),
        # (3·1 + 1·0) / 4 and (1·0 + 3·1) / 4
        ("step,reward,count\n1,1,3\n1,0,1\n2,0,1\n2,1,3\n", [0.75, 0.75], "weighted by count"),
        ("step,reward,completion_length\n1,0.0,10.5\n1,1.0,11.5\n2,1.0,9.5\n", [0.5, 1.0], "their mean"),
    ],
)
def test_several_rows_of_a_step_are_their_mean(text, reward, said, tmp_path):
    result = read(written(tmp_path / "c.csv", text), tmp_path / "out")
    assert load(tmp_path / "out").steps["reward_mean"].tolist() == reward
    assert said in notes(result) and only(result)["rollouts"] == 0


def test_a_log_of_other_training_is_refused(tmp_path):
    history = [{"step": n, "loss": 1.0 / n, "mean_token_accuracy": 0.8, "grad_norm": 1.0} for n in (1, 2)]
    said = refusal(written(tmp_path / "trainer_state.json", state(*history)), tmp_path / "out")
    assert "no reward and no completion length: is this a GRPO run?" in said and "mean_token_accuracy" in said
    said = refusal(written(tmp_path / "sft.csv", "step,loss\n1,0.5\n"), tmp_path / "out")
    assert "is this a GRPO run?" in said
    assert read(written(tmp_path / "kl.csv", "step,loss,kl\n1,0.5,0.1\n"), tmp_path / "out").runs


@pytest.mark.parametrize("value", ["3", "-0.5", "1.01"])
def test_a_share_outside_0_to_1_is_refused(value, tmp_path):
    path = written(tmp_path / "c.csv", f"step,reward,cut\n1,0.5,0.5\n2,0.5,{value}\n")
    said = refusal(path, tmp_path / "out", columns={"truncated_frac": "cut"})
    assert f"cut is {value} at step 2, which is no share" in said
    read(written(path, "step,reward,cut\n1,0.5,0\n2,0.5,1\n"), tmp_path / "out", columns={"truncated_frac": "cut"})


def test_steps_counted_from_0_are_shifted_once(tmp_path):
    result = read(written(tmp_path / "c.csv", "step,reward\n0,0.1\n1,0.2\n2,0.3\n"), tmp_path / "out")
    steps = load(tmp_path / "out").steps
    assert steps["step"].tolist() == [1, 2, 3] and steps["reward_mean"].tolist() == [0.1, 0.2, 0.3]
    assert notes(result).count("counted from 0") == 1
    rows = [completion(n, output=f"x{n}") for n in (0, 1)]
    read(written(tmp_path / "d.jsonl", lines(*rows)), tmp_path / "rows", "verl")
    assert load(tmp_path / "rows").rollouts["step"].tolist() == [1, 2]
    assert load(tmp_path / "rows").steps["step"].tolist() == [1, 2]


def test_runs_are_found_at_any_depth_and_named_by_the_nearest_folder(tmp_path):
    curve = "step,reward\n1,0.5\n"
    written(tmp_path / "all" / "grpo_s0" / "log.jsonl", lines({"step": 1, "reward": 0.25}))
    written(tmp_path / "all" / "more" / "grpo-s3" / "metrics.csv", curve)
    written(tmp_path / "all" / "D_drgrpo" / "metrics" / "x.jsonl", lines({"step": 1, "reward": 0.75}))
    written(tmp_path / "all" / "D_drgrpo" / "settings.json", '{"lr": 1e-6}')
    read(tmp_path / "all", tmp_path / "out", mode=None, seed=None)
    runs = load(tmp_path / "out").runs
    assert sorted(zip(runs["mode"], runs["seed"], strict=True)) == [("dr_grpo", 0), ("grpo", 0), ("grpo", 3)]
    read(tmp_path / "all" / "grpo_s0" / "log.jsonl", tmp_path / "one", mode=None, seed=None)
    assert load(tmp_path / "one").runs.iloc[0][["mode", "seed"]].tolist() == ["grpo", 0]


TABLE = "mode,seed,step,reward\nGRPO,0,1,0.1\nDAPO,0,1,0.2\nDr. GRPO,0,1,0.3\nDrGRPO,1,1,0.4\n"


def test_modes_are_known_whatever_their_case_and_punctuation(tmp_path):
    read(written(tmp_path / "c.csv", TABLE), tmp_path / "out", mode=None, seed=None)
    runs = load(tmp_path / "out").runs
    assert list(zip(runs["mode"], runs["seed"], strict=True)) == [
        ("grpo", 0), ("dapo", 0), ("dr_grpo", 0), ("dr_grpo", 1),
    ]  # fmt: skip


def test_unknown_modes_are_named_together_mapped_or_left_out(tmp_path):
    path = written(tmp_path / "c.csv", TABLE + "ppo,0,1,0.5\nours,0,1,0.6\n")
    said = refusal(path, tmp_path / "out", mode=None, seed=None)
    assert "unknown mode 'ppo'" in said and "nor are ours modes" in said
    assert "--mode ppo=MODE says what it is, --mode ppo= leaves it out" in said
    arguments = ["ingest", str(path), "--mode", "ppo=", "--mode", "ours=sapo", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert load(tmp_path / "out").runs["mode"].tolist() == ["grpo", "dapo", "dr_grpo", "dr_grpo", "sapo"]


def test_runs_with_names_of_people_are_mapped_and_chosen(tmp_path):
    chart = written(tmp_path / "c.csv", "Step,frosty-7 - reward,lucky-9 - reward,third - reward\n1,0.1,0.9,0.5\n")
    options = ["--mode", "frosty-7=grpo-s1", "--mode", "lucky-9=dr_grpo", "--run", "frosty-7", "--run", "lucky-9"]
    done = CliRunner().invoke(app, ["ingest", str(chart), *options, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    runs = load(tmp_path / "out").runs
    assert list(zip(runs["mode"], runs["seed"], strict=True)) == [("grpo", 1), ("dr_grpo", 0)]
    missing = CliRunner().invoke(app, ["ingest", str(chart), "--mode", "grpo", "--run", "frosty", "--out", "no"])
    assert "did you mean 'frosty-7'" in str(missing.exception)
    both = CliRunner().invoke(app, ["ingest", str(chart), "--mode", "grpo", "--mode", "dapo", "--out", "no"])
    assert "NAME=MODE" in str(both.exception)


def test_weights_of_reward_functions(tmp_path):
    completions(tmp_path / "run" / "completions", 1, acc=[1.0, 0.0], form=[0.0, 1.0])
    options = ["--mode", "grpo", "--reward-weight", "acc=.7", "--reward-weight", "form=.3"]
    done = CliRunner().invoke(app, ["ingest", str(tmp_path / "run"), *options, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert load(tmp_path / "out").rollouts["reward"].tolist() == pytest.approx([0.7, 0.3])
    assert "plain sum" not in done.stderr
    wrong = CliRunner().invoke(app, ["ingest", str(tmp_path / "run"), "--mode", "grpo", "--reward-weight", "no=1"])
    assert "no column 'no' for --reward-weight" in str(wrong.exception)


def test_a_file_appended_to_itself_is_said(tmp_path):
    text = lines(*(completion(n, output=f"x{i}") for n in (1, 2) for i in range(8)))
    assert "twice" not in notes(read(written(tmp_path / "one.jsonl", text), tmp_path / "one"))
    twice = read(written(tmp_path / "two.jsonl", text + text), tmp_path / "two")
    assert "every completion is there twice" in notes(twice) and only(twice)["rollouts"] == 32
    same = lines(*(completion(n, output="x") for n in (1, 2, 3) for _ in range(3)))
    assert "twice" not in notes(read(written(tmp_path / "same.jsonl", same), tmp_path / "same"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "step;reward;mean_length\n1;0.5;10\n"),
        ("c.csv", "step\treward\tmean_length\n1\t0.5\t10\n"),
        ("c.tsv", "step\treward\tmean_length\n1\t0.5\t10\n"),
        ("c.csv", "step, reward, mean_length\n1, 0.5, 10\n"),
        ("c.log", '{"step": 1, "reward": 0.5, "mean_length": 10}\n'),
        ("c.txt", '{"step": 1, "reward": 0.5, "mean_length": 10}\n{"step": '),
        ("c.json", '{"step": 1, "reward": 0.5, "mean_length": 10}\n{"step": 2, "reward": 0.5, "mean_length": 10}\n'),
        ("c.json", '{"history": [{"step": 1, "reward": 0.5, "mean_length": 10}]}'),
        ("run.json", '{"log_history": [{"step": 1, "loss": 0, "reward": 0.5, "mean_length": 10}]}'),
    ],
)
def test_separators_and_file_names(name, text, tmp_path):
    read(written(tmp_path / name, text), tmp_path / "out")
    row = load(tmp_path / "out").steps.iloc[0]
    assert row[["step", "reward_mean", "length_mean"]].tolist() == [1, 0.5, 10.0]


def test_a_run_that_stopped_early_says_so(tmp_path):
    history = [{"step": n, "loss": 0.1, "reward": 0.5} for n in range(1, 26)]
    run = tmp_path / "grpo-s0" / "checkpoint-25"
    result = read(written(run / "trainer_state.json", state(*history)).parent.parent, tmp_path / "out")
    assert "stopped at step 25 of 50" in notes(result)
    assert (only(result)["steps_done"], load(tmp_path / "out").runs.iloc[0]["steps_planned"]) == (25, 50)


@pytest.mark.parametrize(
    ("text", "tokens", "ended"),
    [("42 <eos> <pad>", 2, True), ("42 <eos>", 2, True), ("4 2 <eos><eos><eos>", 3, True), ("42 7", 2, None)],
)
def test_a_text_is_counted_up_to_its_first_eos(text, tokens, ended, tmp_path):
    path = written(tmp_path / "l.jsonl", lines(completion(output=text)))
    read(path, tmp_path / "out", count_tokens=words, eos="<eos>")
    row = load(tmp_path / "out").rollouts.iloc[0]
    assert row["length_tokens"] == tokens and row["terminated"] == ended


def test_forced_tokens_are_recorded(tmp_path):
    path = written(tmp_path / "l.jsonl", lines(completion()))
    arguments = ["ingest", str(path), "--mode", "grpo", "--forced-tokens", "3", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert json.loads(next((tmp_path / "out" / "runs").glob("*/run.json")).read_text())["forced_tokens"] == 3


@pytest.mark.parametrize(("reward", "said"), [(10**19, "beyond 64 bits"), (9223372036854775807, None), (1e30, None)])
def test_whole_numbers_beyond_64_bits_are_named(reward, said, tmp_path):
    result = read(written(tmp_path / "l.jsonl", lines(completion(score=reward))), tmp_path / "out")
    assert (said in result.damage.examples[0]) if said else not result.damage.count
    assert load(tmp_path / "out").rollouts["reward"].isna().tolist() == [said is not None]


def test_keys_are_compared_by_case(tmp_path):
    text = '{"Score": 5, "score": 1.0, "STEP": 9, "step": 1, "input": "q", "output": "a"}\n'
    read(written(tmp_path / "l.jsonl", text), tmp_path / "out")
    assert load(tmp_path / "out").rollouts[["step", "reward"]].to_numpy().tolist() == [[1, 1.0]]


def test_means_over_several_steps_are_no_rewards_of_one(tmp_path):
    """Rewards logged at steps 10 and 20 are means over ten steps each, and are not held to one step's completions."""
    for step in (10, 20):
        completions(tmp_path / "run" / "completions", step, acc=[1.0, 0.0])
    history = [{"step": step, "loss": 0.1, "reward": 0.9, "rewards/acc/mean": 0.9} for step in (10, 20)]
    written(tmp_path / "run" / "trainer_state.json", state(*history, logging_steps=10))
    assert "is not the logged reward" not in notes(read(tmp_path / "run", tmp_path / "out"))


def test_a_verdict_at_the_threshold_is_wrong_and_a_step_with_a_missing_length_has_no_tokens(tmp_path):
    rows = [completion(acc=0.5, n=4), completion(acc=0.75, n=6), completion(2, acc=0.5, n=3), completion(2, acc=1.0)]
    read(written(tmp_path / "l.jsonl", lines(*rows)), tmp_path / "out", columns={"length": "n"})
    sweep = load(tmp_path / "out")
    assert sweep.rollouts["correct"].tolist() == [False, True, False, True]
    assert sweep.steps["tokens"].fillna(-1).tolist() == [10, -1]
    # Of the correct ones of step 2 none has a length.
    assert sweep.steps["length_correct"].fillna(-1).tolist() == [6.0, -1.0]
