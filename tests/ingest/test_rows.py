"""Rows that lack something, text that is none, and calls that get in each other's way."""

import pyarrow.parquet as pq
import pytest
from support.logs import completion, lines, read, words, written
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.locks import LOCK_FILE, exclusive
from lossbench.metrics.length import summarise
from lossbench.store.read import load


def test_a_completion_that_is_null_has_no_length(tmp_path):
    log = written(tmp_path / "l.jsonl", lines(completion(output=None), completion(output="a b c")))
    read(log, tmp_path / "out", "verl", count_tokens=words)
    rows = load(tmp_path / "out").rollouts
    assert rows["length_tokens"].isna().tolist() == [True, False]
    assert load(tmp_path / "out").steps["length_mean"].tolist() == [3.0]


def test_a_log_may_be_read_again_with_a_tokenizer(tmp_path):
    log = written(tmp_path / "l.jsonl", lines(completion()))
    read(log, tmp_path / "out", "verl")
    assert load(tmp_path / "out").spec["length_unit"] == "characters"
    read(log, tmp_path / "out", "verl", count_tokens=words)
    assert load(tmp_path / "out").spec["length_unit"] == "tokens"
    other = written(tmp_path / "other.jsonl", lines(completion()))
    with pytest.raises(UsageError, match="mixed units"):
        read(other, tmp_path / "out", "verl", seed=1)


def test_text_that_is_not_utf8_damages_its_line(tmp_path):
    text = lines(completion(), completion(output="BAD"), completion(input="BAD")).encode().replace(b"BAD", b"x\xff")
    result = read(written(tmp_path / "l.jsonl", text), tmp_path / "out", "verl")
    # Python's reader of JSON takes the byte as damage; the line before is read.
    assert result.damage.count == 2 and [e.split(": ")[0][-6:] for e in result.damage.examples] == ["line 2", "line 3"]
    assert len(load(tmp_path / "out").rollouts) == 1


def test_the_first_line_of_a_dump_need_not_have_every_field(tmp_path):
    rows = [{"note": "resumed"}, completion(), completion(acc=True), completion(acc=False)]
    result = read(written(tmp_path / "l.jsonl", lines({}, *rows)), tmp_path / "out", "verl")
    found = load(tmp_path / "out").rollouts
    assert found["correct"].dropna().tolist() == [True, False] and len(found) == 3
    assert result.damage.count == 2  # two lines that hold no step


def test_where_a_row_has_no_verdict_its_reward_may_be_one(tmp_path):
    rows = [completion(score=1.0, acc=False), completion(score=1.0), completion(score=0.0), completion(score=None)]
    read(written(tmp_path / "l.jsonl", lines(*rows)), tmp_path / "out", "verl", correct_above=0.5)
    found = load(tmp_path / "out").rollouts["correct"]
    assert found.tolist()[:3] == [False, True, False] and found.isna().tolist() == [False, False, False, True]


def test_rewards_that_are_no_numbers_are_null_and_infinite_ones_stay(tmp_path):
    text = '{"input":"q","output":"a","score":NaN,"step":1}\n{"input":"q","output":"a","score":Infinity,"step":2}\n'
    read(written(tmp_path / "l.jsonl", text), tmp_path / "out", "verl")
    run = next((tmp_path / "out" / "runs").iterdir())
    rewards = pq.read_table(run / "rollouts.parquet")["reward"]
    assert rewards.null_count == 1 and rewards.to_pylist()[1] == float("inf")
    assert load(tmp_path / "out").steps["reward_mean"].tolist()[1] == float("inf")


def test_two_calls_do_not_write_to_one_folder_at_once(tmp_path):
    log = written(tmp_path / "l.jsonl", lines(completion()))
    read(log, tmp_path / "out", "verl")
    with (
        exclusive(tmp_path / "out" / LOCK_FILE),
        pytest.raises(UsageError, match="is being written to by another call"),
    ):
        read(log, tmp_path / "out", "verl")
    assert len(load(tmp_path / "out").runs) == 1


def test_what_the_system_refuses_is_one_line(tmp_path, monkeypatch):
    def no_room(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lossbench.ingest.sweep_folder.ingest", no_room)
    result = CliRunner().invoke(app, ["ingest", str(written(tmp_path / "l.jsonl", lines(completion())))])
    assert isinstance(result.exception, UsageError) and "No space left on device" in str(result.exception)


def test_a_log_that_counts_no_tokens_has_no_tokens_to_a_reward(tmp_path):
    for mode in ("grpo", "dr_grpo"):
        points = "".join(f"{step},{0.1 + 0.01 * step},{10 + step}\n" for step in range(1, 41))
        table = written(tmp_path / f"{mode}-s0.csv", "step,reward_mean,length_mean\n" + points)
        read(table, tmp_path / "out", mode=None, seed=None)
    summary = summarise(load(tmp_path / "out"))
    assert summary.metrics["length_at_reward"].notna().all()
    assert summary.metrics["tokens_to_reward"].isna().all() and summary.metrics["tokens_total"].isna().all()
    assert CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--quiet"]).exit_code == 0
    assert "0.0 tokens" not in (tmp_path / "out" / "report" / "report.md").read_text()
