"""What a plan costs, and prompts and data sets that cannot be used."""

import pytest
from support.sweeps import quick_recipe
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
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
