"""What a plan costs, and what can be known of a model before its weights are loaded."""

import json

import pytest
from support.sweeps import quick_recipe
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.policies.fits import check_fits
from lossbench.policies.tiny import make_tokenizer
from lossbench.store.write import write_table
from lossbench.sweep.estimate import cost_line, remember_timings
from lossbench.sweep.plan import plan
from lossbench.sweep.preflight import preflight
from lossbench.tasks.dataset import read_rows


def test_the_dry_run_names_cost_and_duplicates(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    arguments = ["sweep", "--modes", "grpo,sapo,dr_grpo", "--seeds", "1", "--out", str(tmp_path / "out"), "--dry-run"]
    shown = CliRunner().invoke(app, [*arguments, "--steps", "200"])
    assert shown.exit_code == 0, shown.exception
    assert "--skip-duplicates would train one of each pair of identical modes, without sapo" in shown.stderr
    assert "at most 4.92 million tokens" in shown.stderr  # 3 runs x 200 steps x 64 rows x 128 tokens
    assert "an estimate: nothing like it was measured here" in shown.stderr
    assert "--skip-duplicates would" not in CliRunner().invoke(app, [*arguments, "--skip-duplicates"]).stderr


def test_measured_steps_replace_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    runs = plan(quick_recipe(modes=["grpo"], seeds=[0, 1], steps=600))
    assert "estimate" in str(cost_line(runs, 1, "cpu"))
    (tmp_path / "runs" / runs[0].run_id).mkdir(parents=True)
    rows = [{"step": step, "wall_s": wall_s, "tokens": 40} for step, wall_s in enumerate((9.0, 0.5, 0.5))]
    write_table(tmp_path / "runs" / runs[0].run_id / "steps.parquet", "steps", rows)
    remember_timings(tmp_path, runs[:1])
    # two runs of 600 steps at the median of 0.5 s and 40 tokens: 600 s, or 300 s for two at once; 48,000 tokens
    for jobs, minutes in ((1, 10), (2, 5)):
        line = str(cost_line(runs, jobs, "cpu"))
        assert line.startswith(f"about {minutes} minutes at {jobs} runs at once, 0.048 million tokens"), line
        assert "from steps measured on this machine" in line
    assert "estimate" in str(cost_line(plan(quick_recipe(max_completion_length=9)), 1, "cpu"))  # other steps


def model_folder(path, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_positions_vocabulary_and_cache_are_checked_without_weights(tmp_path):
    tokenizer, said = make_tokenizer(), []
    table = model_folder(tmp_path / "table", vocab_size=100, model_type="gpt2", n_positions=10)
    check_fits(table, tokenizer, ["1+1=", "1+2="], 6, said.append)  # 4 + 6 positions, of 10
    with pytest.raises(UsageError, match=r"4 tokens of the longest prompt and 7 of .* exceed its 10 positions"):
        check_fits(table, tokenizer, ["1=", "1+1="], 7, said.append)
    rope = model_folder(tmp_path / "rope", vocab_size=100, max_position_embeddings=10, rope_theta=10000.0)
    assert said == []
    check_fits(rope, tokenizer, ["1+1="], 7, said.append)
    assert len(said) == 1 and "beyond the 10 positions" in said[0]
    with pytest.raises(UsageError, match="its embedding 5"):
        check_fits(model_folder(tmp_path / "small", vocab_size=5), tokenizer, [], 7, said.append)
    with pytest.raises(UsageError, match="no key-value cache"):
        check_fits(model_folder(tmp_path / "old", model_type="openai-gpt"), tokenizer, [], 7, said.append)


@pytest.mark.parametrize(("text", "words"), [(" ", "is empty"), ("a\\ud800", "half a surrogate pair")])
def test_a_prompt_that_cannot_be_asked_is_named(text, words, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"prompt": "{text}", "answer": "{n}"}}\n' for n in range(20)))
    runs = plan(quick_recipe(task="dataset", task_params={"path": str(path), "chat": False}))
    with pytest.raises(UsageError, match=f"task 'dataset': prompt [0-9]+ (holds )?{words}"):
        preflight(runs, fetch=False, say=print)


def test_a_data_set_that_is_something_else_is_named(tmp_path):
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(UsageError, match="a folder; valid: one file"):
        read_rows(str(tmp_path / "d.jsonl"))
    (tmp_path / "z.jsonl").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(UsageError, match="compressed by gzip"):
        read_rows(str(tmp_path / "z.jsonl"))
