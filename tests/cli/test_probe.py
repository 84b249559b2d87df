"""`lossbench probe` on a policy of a few thousand parameters, recorded completions, kept projections, and mistakes."""

import json
from functools import partial

import pandas as pd
import pytest
import torch
from support.hazard_policy import EvenDigits
from support.trainer import model_folder
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.policies.load import load_policy
from lossbench.probe.batches import MOMENT_STREAM, PAIR_STREAM, PolicySource, Sampling
from lossbench.probe.jobs import ProbeJob, run_job
from lossbench.probe.prober import ProbeSettings, probe_now
from lossbench.probe.recorded import RecordedSource
from lossbench.store.read import read_facts, read_table

SMALL = ["--batches", "2", "--completions", "16", "--num-generations", "4", "--max-completion-length", "6",
         "--recipe", "quick"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return model_folder(str(tmp_path_factory.mktemp("probe")))


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(folder, device="cpu", dtype="float32")


def sampling() -> Sampling:
    return Sampling(completions=16, num_generations=4, max_completion_length=6)


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["probe", *arguments])


def recorded(policy, path) -> None:
    """Two batches of completions of the policy, as token ids."""
    source = PolicySource(policy.model, policy.tokenizer, EvenDigits(), sampling())
    rows = []
    for number in range(4):
        batch = source(PAIR_STREAM, number)
        for i in range(16):
            rows.append({
                "batch": number, "group": batch.group[i], "prompt_ids": batch.prompt_ids[i],
                "completion_ids": batch.completion_ids[i], "reward": batch.reward[i],
            })  # fmt: skip
    pd.DataFrame(rows).to_json(path, orient="records", lines=True)


def test_a_batch_depends_on_its_two_numbers_alone(policy):
    source = PolicySource(policy.model, policy.tokenizer, EvenDigits(), sampling())
    first, again = source(PAIR_STREAM, 3), source(PAIR_STREAM, 3)
    assert first == again
    others = [source(PAIR_STREAM, 4), source(MOMENT_STREAM, 3)]
    assert all(other.completion_ids != first.completion_ids for other in others)
    assert len(set(first.prompt_id)) == 4 and first.group == [g for g in range(4) for _ in range(4)]


def test_probing_a_model_in_training_leaves_it_as_it_was(policy):
    model = policy.model.train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    settings = ProbeSettings(sampling(), pairs=2, random_directions=1, moment_batches=2)
    columns = probe_now(model, policy.tokenizer, EvenDigits(), settings, policy="tiny", step=7)
    # 2 pairs x 2 halves x 16 completions x (3 lengths + 1 random) x 2 metrics
    assert {len(column) for column in columns.values()} == {2 * 2 * 16 * 4 * 2}
    assert set(columns["step"]) == {7} and set(columns["metric"]) == {"plain", "adam"}
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_recorded_token_ids_give_the_probe_of_their_batches(policy, folder, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    recorded(policy, path)
    source = RecordedSource(path, policy.model, policy.tokenizer, sampling())
    assert source.pairs == 2
    rows = {(tuple(p), tuple(c)) for n in range(4) for b in [source(PAIR_STREAM, n)]
            for p, c in zip(b.prompt_ids, b.completion_ids, strict=True)}  # fmt: skip
    drawn = pd.read_json(path, lines=True)
    assert rows == {(tuple(p), tuple(c)) for p, c in zip(drawn["prompt_ids"], drawn["completion_ids"], strict=True)}
    with pytest.raises(UsageError, match="make 2 pairs of batches: give --batches 2"):
        source(PAIR_STREAM, 4)


WRITERS = {
    ".jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    ".json": lambda frame, path: frame.to_json(path, orient="records"),
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".parquet": lambda frame, path: frame.to_parquet(path),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_recorded_text_is_tokenised_and_ended(policy, tmp_path, suffix):
    # digits stay text: "030" has three tokens, and nothing is a number
    texts = [("12", "030", 1.0, True), ("12", "31", 0.0, False)] * 4
    rows = [{"prompt": p, "completion": c, "reward": r, "terminated": t, "group": i // 2}
            for i, (p, c, r, t) in enumerate(texts)]  # fmt: skip
    path = tmp_path / f"rollouts{suffix}"
    WRITERS[suffix](pd.DataFrame(rows), path)
    batch = RecordedSource(path, policy.model, policy.tokenizer, Sampling(4, 2))(PAIR_STREAM, 0)
    eos, encode = policy.tokenizer.eos_token_id, policy.tokenizer.get_vocab()
    assert batch.prompt_ids[0] == [encode["1"], encode["2"]]
    assert batch.completion_ids[:2] == [[encode["0"], encode["3"], encode["0"], eos], [encode["3"], encode["1"]]]
    assert batch.correct[:2] == [True, False] and batch.terminated[:2] == [True, False]


def test_token_ids_in_csv_are_lists(policy, tmp_path):
    path = tmp_path / "rollouts.csv"
    rows = [{"prompt_ids": "[2, 3]", "completion_ids": "[4]", "reward": i % 2, "group": i // 2} for i in range(8)]
    pd.DataFrame(rows).to_csv(path, index=False)
    batch = RecordedSource(path, policy.model, policy.tokenizer, Sampling(4, 2))(PAIR_STREAM, 0)
    assert batch.prompt_ids[0] == [2, 3] and batch.completion_ids[0] == [4]


ROW = {"prompt": "1", "completion": "2", "reward": 1.0, "group": 0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "1", "completion": "2", "group": 0}], "no column reward"),
        ([ROW] * 8, "no group has rewards that differ"),
        ([{**ROW, "reward": float(i % 2)} for i in range(4)], "do not make two batches of 4"),
        ([ROW, {**ROW, "reward": "good"}], "row 2: reward 'good' is not a finite number"),
        ([ROW, {**ROW, "reward": float("inf")}], "row 2: reward inf is not a finite number"),
        ([ROW, {**ROW, "group": None}], "row 2: group null names no group"),
        ([ROW, {**ROW, "prompt": None}], "row 2: prompt null cannot be tokenised: give the prompt as"),
        ([{**ROW, "prompt": [{"role": "user", "content": "1"}]}], "row 1: prompt .* cannot be tokenised"),
        ([ROW, {**ROW, "completion": 31}], "row 2: completion 31 cannot be tokenised"),
        ([{**ROW, "completion_ids": ["4"], "completion": None}], "completion_ids as a list of integers"),
        ([{**ROW, "correct": "yes"}], "row 1: correct 'yes' is neither true nor false"),
    ],
)
def test_recorded_completions_that_cannot_be_used(policy, tmp_path, rows, message):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UsageError, match=message):
        RecordedSource(path, policy.model, policy.tokenizer, Sampling(4, 2))


def test_more_pairs_than_the_file_makes_are_refused_before_the_model_loads(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(f"{json.dumps({**ROW, 'reward': i % 2, 'group': i // 4})}\n" for i in range(64)))
    small = ["--completions", "16", "--num-generations", "4", "--recipe", "quick", "--out", str(tmp_path / "out")]
    result = invoke("--model", "./nowhere", "--rollouts", str(path), *small)
    assert isinstance(result.exception, UsageError)
    assert "make 2 pairs of batches: give --batches 2, or fewer --completions" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_what_it_prints_and_reads_its_projections_again(policy, folder, tmp_path):
    path, out = tmp_path / "rollouts.jsonl", tmp_path / "out"
    recorded(policy, path)
    modes = ["--modes", "grpo,dr_grpo,grpo@length-power:0", "--set", "task_params.overlong_max_tokens=6"]
    result = invoke("--model", folder, "--rollouts", str(path), "--out", str(out), "--format", "json", *modes, *SMALL)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert (found["pairs"], found["completions"]) == (2, 64)
    assert {row["mode"] for row in found["drifts"]} == {"grpo", "dr_grpo", "grpo@length-power:0/group"}
    # GRPO's weights are length-power's at 0 up to the horizon
    of = {(row["mode"], row["direction"], row["metric"], row["match"]): row["drift"] for row in found["drifts"]}
    by_power = of["grpo@length-power:0/group", "all", "plain", "row-weight"]
    assert of["grpo", "all", "plain", "row-weight"] == pytest.approx(by_power)
    written = {file.name for file in (out / "probe").iterdir()}
    assert {"drift.csv", "probe.json", "drift.png", "drift.svg", "dose_response.png"} <= written
    table = invoke("--projections", str(next((out / "probe").glob("*.parquet"))), "--format", "csv", *modes)
    assert {"median", "sign_p", "match", "raw"} <= set(table.stdout.splitlines()[0].split(","))
    (kept,) = (out / "probe").glob("*.parquet")
    assert read_table(kept, "probe").num_rows == 64 * 5 * 2
    assert read_facts(kept)["settings"]["pairs"] == 2
    assert read_facts(kept)["task_params"] == {"overlong_max_tokens": 6}
    again = invoke("--projections", str(kept), "--format", "json", "--modes", "grpo", "--recipe", "quick")
    drift = next(row for row in json.loads(again.stdout)[0]["drifts"] if row["direction"] == "all")
    assert drift["drift"] == pytest.approx(of["grpo", "all", "plain", "row-weight"])


@pytest.mark.slow
def test_workers_give_the_numbers_of_one_process(policy, folder, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    recorded(policy, path)
    settings = ProbeSettings(sampling(), pairs=2, random_directions=1, moment_batches=1)
    job = ProbeJob(folder, None, settings=settings, rollouts=path, load_options={"device": "cpu"})
    assert list(run_job(job, workers=2)) == list(run_job(job, workers=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "grp"], "unknown mode 'grp'"),
        (["--alphas", "0,x"], "--alphas '0,x'"),
        (["--batches", "0"], "--batches is 0"),
        (["--completions", "12"], "multiple of num_generations (8)"),
        (["--metric", "sgd"], "unknown metric 'sgd'"),
        (["--policy", "selfcheck", "--model", "x"], "--policy and --model exclude each other"),
        (["--task", "selfchek"], "did you mean 'selfcheck'"),
        (["--projections", "nowhere.parquet"], "no such file"),
        (["--model", "./nowhere"], "no such folder"),
        (["--checkpoints", "."], "no folder checkpoint-<step>"),
        (["--recipe", "nope"], "unknown recipe 'nope'"),
        (["--lora", "16"], "write r=16"),
        (["--dataset", "mine.jsonl", "--task", "selfcheck"], "give --task or --dataset, not both"),
        (["--dataset", "./nowhere.jsonl"], "nowhere.jsonl"),
        (["--task", "arithmetic", "--set", "task_params.digts=1"], "'digts': did you mean 'digits'"),
        (["--task", "arithmetic", "--set", "digits=1"], "written --set task_params.digits=1"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path):
    result = invoke(*arguments, "--out", str(tmp_path / "out"), "--quiet")
    assert isinstance(result.exception, UsageError) and message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_completions_end_at_their_first_eos(policy, tmp_path):
    eos, encode = policy.tokenizer.eos_token_id, policy.tokenizer.get_vocab()
    shown = policy.tokenizer.eos_token
    rows = [{"prompt": "1", "completion": f"42{shown}{shown}", "reward": i % 2, "group": i // 2} for i in range(8)]
    path = tmp_path / "text.jsonl"
    pd.DataFrame(rows).to_json(path, orient="records", lines=True)
    batch = RecordedSource(path, policy.model, policy.tokenizer, Sampling(4, 2))(PAIR_STREAM, 0)
    assert batch.completion_ids[0] == [encode["4"], encode["2"], eos]
    padded = {"prompt_ids": [2], "completion_ids": [5, 6, eos, 0, eos]}
    pd.DataFrame([{**padded, "reward": i % 2, "group": i // 2} for i in range(8)]).to_json(
        path, orient="records", lines=True
    )
    batch = RecordedSource(path, policy.model, policy.tokenizer, Sampling(4, 2))(PAIR_STREAM, 0)
    assert batch.completion_ids[0] == [5, 6, eos] and batch.terminated[0] is True


def trl_folder(folder, **columns):
    """Completion files as TRL's trainer writes them; the third step uses the completions of the second again."""
    (folder / "completions").mkdir(parents=True)
    for step, first in ((1, 0), (2, 2), (3, 2)):
        rows = [
            {"step": step, "prompt": str(first + i // 4), "completion": str(i), "even": float(i % 2), "advantage": 0.5}
            for i in range(8)
        ]
        frame = pd.DataFrame(rows).assign(**columns)
        frame.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def test_completion_files_of_trl_are_read_as_they_are(policy, tmp_path):
    trl_folder(tmp_path)
    source = RecordedSource(tmp_path, policy.model, policy.tokenizer, Sampling(8, 4))
    assert source.pairs == 1  # 16 completions: step 3 holds those of step 2
    batches = [source(PAIR_STREAM, number) for number in (0, 1)]
    assert all(batch.group == [0] * 4 + [1] * 4 and batch.reward == [0, 1] * 4 for batch in batches)
    assert len({tuple(ids) for batch in batches for ids in batch.prompt_ids}) == 4


def test_several_rewards_of_trl_need_a_name(policy, tmp_path):
    trl_folder(tmp_path, format=1.0)
    source = partial(RecordedSource, tmp_path, policy.model, policy.tokenizer, Sampling(8, 4))
    with pytest.raises(UsageError, match="the reward is one of even, format: --map reward=COLUMN"):
        source()
    assert source({"reward": "even"})(PAIR_STREAM, 0).reward == [0, 1] * 4
    with pytest.raises(UsageError, match="--map reward=evn: unknown column 'evn': did you mean 'even'"):
        source({"reward": "evn"})
    with pytest.raises(UsageError, match="--map score=even: unknown field 'score'"):
        source({"score": "even"})


def test_a_folder_without_completions_is_refused(tmp_path):
    result = invoke("--model", "./nowhere", "--rollouts", str(tmp_path), "--out", str(tmp_path / "out"))
    assert isinstance(result.exception, UsageError) and "holds no completions" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_recorded_messages_go_through_the_chat_template(policy, tmp_path, monkeypatch):
    trl_folder(tmp_path)
    for file in (tmp_path / "completions").iterdir():
        frame = pd.read_parquet(file)
        frame["prompt"] = [[{"role": "user", "content": text}] for text in frame["prompt"]]
        frame["completion"] = [[{"role": "assistant", "content": text}] for text in frame["completion"]]
        frame.to_parquet(file)
    source = partial(RecordedSource, tmp_path, policy.model, policy.tokenizer, Sampling(8, 4))
    with pytest.raises(UsageError, match=r"prompt .* cannot be tokenised"):
        source()
    template = "{% for message in messages %}{{ message['content'] }}={% endfor %}"
    monkeypatch.setattr(policy.tokenizer, "chat_template", template)
    batch, token = source()(PAIR_STREAM, 0), policy.tokenizer.get_vocab()
    assert {tuple(ids) for ids in batch.prompt_ids} <= {(token[str(i)], token["="]) for i in range(4)}
    assert set(batch.completion_ids[0]) < set(token.values()) and len(batch.completion_ids[0]) == 2
