"""What `ingest` refuses, in one line and with nothing written: logs, mappings, and two runs that would be one."""

import json

import pytest
from support.logs import completion, lines, read, refusal, verl_lines, verl_log, written

from lossbench.errors import UsageError
from lossbench.store.read import load


def test_what_cannot_be_read_is_refused_and_leaves_nothing(tmp_path):
    verl_folder = verl_log(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "junk.csv").write_text("a,b\n1,2\n")
    (tmp_path / "nostep.csv").write_text("reward,b\n1,2\n")
    (tmp_path / "torn.json").write_text("[{")
    (tmp_path / "wide.csv").write_text("step,mode,seed,reward_mean\n1,grpo,0,0.5\n")
    two = tmp_path / "two"
    two.mkdir()
    (two / "completions.jsonl").write_text("{}\n")
    (two / "1.jsonl").write_text(verl_lines(1, 1))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sweep.json").write_text(json.dumps({"recipe": {}, "runs": {}}))
    verl = verl_folder / "rollout"
    for path, options, message in [
        (tmp_path / "nowhere", {}, "no such file or folder"),
        (tmp_path / "empty.jsonl", {}, "no row"),
        (tmp_path / "junk.csv", {}, "no step column"),
        (tmp_path / "nostep.csv", {}, "no step column"),
        (tmp_path / "torn.json", {}, "not valid JSON"),
        (two, {}, "two formats, verl .* and swift .*: choose one with --as"),
        (verl, {"kind": "tlr"}, "did you mean 'trl'"),
        (verl, {"kind": "trl"}, "holds no trl log"),
        (verl, {"mode": None}, "give --mode"),
        (verl, {"mode": "grop"}, "unknown mode 'grop'"),
        (verl, {"columns": {"lenght": "x"}}, "did you mean 'length'"),
        (verl, {"columns": {"length": "n"}}, "no column 'n' for --map length=n; it has input, output"),
        (tmp_path / "wide.csv", {"columns": {"kl": "KL"}}, "no column 'KL'"),
        (verl, {"out": mine}, "choose another --out"),
        (verl, {"out": verl}, "is not a sweep: choose another --out"),
    ]:
        out = options.pop("out", tmp_path / "out")
        with pytest.raises(UsageError, match=message) as caught:
            read(path, out, **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists(), message
    assert read(verl_folder, tmp_path / "sound").format == "verl"


def test_what_a_killed_call_left_is_in_nobodys_way(tmp_path):
    log = written(tmp_path / "1.jsonl", lines(completion()))
    for out in (tmp_path / "fresh", tmp_path / "again"):
        if out.name == "again":
            read(log, out)
        written(out / ".ingest" / "grpo-s0-8dbc2a50" / "steps.parquet", "half")
        for run_id in load(out).run_ids if out.name == "again" else ():
            (out / ".ingest" / run_id).mkdir()
        read(log, out)
        assert len(load(out).rollouts) == 1 and not (out / ".ingest").exists()


def test_a_refused_call_leaves_no_folder_that_it_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "empty.jsonl", "")
    assert "no row" in refusal(tmp_path / "empty.jsonl", tmp_path / "results" / "deep" / "ingested-empty")
    assert [file.name for file in tmp_path.iterdir()] == ["empty.jsonl"]
    (tmp_path / "results").mkdir()
    refusal(tmp_path / "empty.jsonl", tmp_path / "results" / "ingested-empty")
    assert list((tmp_path / "results").iterdir()) == []  # that one was there before
    with pytest.raises(UsageError, match="choose another --out"):
        read(tmp_path / "empty.jsonl", tmp_path / "empty.jsonl")


def test_two_runs_of_one_mode_and_seed_are_refused(tmp_path):
    for place in ("a", "b"):
        written(tmp_path / "runs" / place / "1.jsonl", lines(completion()))
    said = refusal(tmp_path / "runs", tmp_path / "out")
    assert "run grpo seed 0 is there twice, 'a' and 'b': ingest each by itself with a --seed of its own" in said
    read(tmp_path / "runs" / "a", tmp_path / "out")
    with pytest.raises(UsageError, match=r"twice, 'grpo-s0-\w+ in .*out' and 'b'"):
        read(tmp_path / "runs" / "b", tmp_path / "out")
    read(tmp_path / "runs" / "b", tmp_path / "out", seed=1)
    read(tmp_path / "runs" / "a", tmp_path / "out")  # the same log again is the same run
    assert sorted(load(tmp_path / "out").runs["seed"]) == [0, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"seed": "s"}, "--map seed=s names nothing that is read from this verl log; --seed sets it"),
        ({"mode": "m"}, "--map mode=m names nothing that is read from this verl log; --mode sets it"),
        ({"kl": "nosuch"}, "--map kl=nosuch names nothing"),
        ({"metric": "input"}, "--map metric=input names nothing"),
        ({"completion": "nosuch"}, "no column 'nosuch' for --map completion=nosuch"),
        ({"scale_rewards": "x"}, "unknown field in --map 'scale_rewards'"),
    ],
)
def test_a_mapping_that_nothing_answers_to_is_refused(columns, message, tmp_path):
    folder = tmp_path / "run"
    written(folder / "1.jsonl", lines(completion()))
    written(folder / "metrics.jsonl", lines({"step": 1, "data": {"response_length/mean": 9.0}}))
    assert message in refusal(folder, tmp_path / "out", columns=columns)


def test_a_mapping_is_applied(tmp_path):
    """A metric beyond the usual ones, and lengths: the trainer's own mean stays where there is no completion."""
    folder = tmp_path / "run"
    written(folder / "rollout" / "2.jsonl", lines(completion(2, n=7), completion(2, n=8)))
    data = {"response_length/mean": 9.0, "my/tokens": 40.0, "my/kl": 0.5}
    written(folder / "metrics.jsonl", lines(*({"step": step, "data": data} for step in (1, 2))))
    read(folder, tmp_path / "out", columns={"length": "n", "tokens": "my/tokens", "kl": "my/kl"})
    steps = load(tmp_path / "out").steps
    assert steps["length_mean"].tolist() == [9.0, 7.5]
    assert steps["tokens"].tolist() == [40, 40] and steps["kl"].tolist() == [0.5, 0.5]
