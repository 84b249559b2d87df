"""A user's mistake is one clear line on stderr, exit code 2, before any model loads, and nothing is written."""

import subprocess
import sys

import pytest

CASES = {
    "mode": (["--modes", "grp"], ["unknown mode 'grp'", "'grpo'"]),
    "no modes": (["--modes", ""], ["--modes ''", "empty"]),
    "mode twice": (["--modes", "grpo,grpo"], ["same mode"]),
    "two spellings": (["--modes", "dapo,grpo@token-mean/group"], ["same mode"]),
    "loss type": (["--loss-types", "dr-grpo"], ["unknown", "'dr_grpo'"]),
    "preset as surrogate": (
        ["--loss-types", "dapo", "--agg-modes", "token-mean"],
        ["'dapo' is a preset", "grpo@token-mean/group"],
    ),
    "agg mode": (["--agg-modes", "tokenmean"], ["unknown agg_mode 'tokenmean'", "'token-mean'"]),
    "scale": (["--loss-types", "grpo", "--scale-rewards", "groups"], ["unknown scale_rewards 'groups'", "'group'"]),
    "modes and axes": (["--modes", "grpo", "--agg-modes", "token-mean"], ["--modes excludes"]),
    "task": (["--task", "selfchek"], ["unknown task 'selfchek'", "'selfcheck'"]),
    "recipe": (["quik"], ["unknown recipe 'quik'", "'quick'"]),
    "key": (["--set", "learning_rte=1"], ["unknown key 'learning_rte'", "'learning_rate'"]),
    "no steps": (["--steps", "0"], ["steps = 0"]),
    "negative steps": (["--steps", "-5"], ["steps = -5"]),
    "seed twice": (["--seeds", "1,1"], ["given twice: 1"]),
    "no seeds": (["--seeds", "0"], ["no seed"]),
    "odd seeds": (["--seeds", "x"], ["'x'", "2-5"]),
    "group of one": (["--set", "num_generations=1"], ["num_generations = 1", "2"]),
    "indivisible": (["--set", "num_generations=7"], ["64 completions", "7"]),
    "few prompts": (["--set", "per_device_train_batch_size=808"], ["100 training prompts", "101"]),
    "short cap": (["--set", "max_completion_length=2"], ["max_completion_length 2", "3 tokens"]),
    "not a pair": (["--set", "steps"], ["--set 'steps'", "key=value"]),
    "no jobs": (["--jobs", "0"], ["--jobs 0"]),
    "executor": (["--executor", "slrm"], ["unknown executor 'slrm'", "local"]),
    "shard": (["--shard", "3/2"], ["--shard '3/2'", "1 <= i <= n"]),
    "no number": (["--jobs", "x"], ["error: ", "--jobs", "integer"]),
    "no such option": (["--job", "2"], ["error: ", "--job", "--jobs"]),
    "verifier alone": (["--verifier", "exact"], ["--dataset"]),
}


def sweep(*arguments, cwd):
    command = [sys.executable, "-m", "lossbench", "sweep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def in_process(arguments, capsys, monkeypatch):
    """The same command without a new interpreter, which would take seconds per case."""
    import lossbench.cli

    monkeypatch.setattr(sys, "argv", ["lossbench", "sweep", *arguments])
    with pytest.raises(SystemExit) as caught:
        lossbench.cli.main()
    return caught.value.code, capsys.readouterr()


@pytest.mark.parametrize("name", CASES)
def test_one_line_exit_2_nothing_written(name, tmp_path, monkeypatch, capsys):
    arguments, words = CASES[name]
    monkeypatch.chdir(tmp_path)
    code, printed = in_process(arguments, capsys, monkeypatch)
    assert code == 2
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1, printed.err
    assert all(word in printed.err for word in words), printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_real_command_does_the_same(tmp_path):
    result = sweep("--modes", "grp", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown mode 'grp'") and len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("x")
    code, printed = in_process(["--out", str(tmp_path / "file" / "sweep")], capsys, monkeypatch)
    assert code == 2 and "is not a folder" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_with_other_things_in_it_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("x")
    code, printed = in_process(["--out", str(tmp_path)], capsys, monkeypatch)
    assert code == 2 and "not empty and not a sweep" in printed.err


def test_a_recipe_that_is_not_toml_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.toml").write_text("steps = = 3")
    code, printed = in_process([str(tmp_path / "mine.toml")], capsys, monkeypatch)
    assert code == 2 and "mine.toml: not TOML" in printed.err and len(printed.err.splitlines()) == 1


def test_a_value_of_the_wrong_kind_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.toml").write_text('learning_rate = "fast"\nmodes = ["grpo"]')
    code, printed = in_process([str(tmp_path / "mine.toml")], capsys, monkeypatch)
    assert code == 2 and "learning_rate = 'fast'" in printed.err
