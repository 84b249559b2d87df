import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import lossbench
from lossbench.cli import COMMANDS, app
from lossbench.cli._output import print_table

HEAVY = ("torch", "transformers", "trl", "pandas", "matplotlib", "pyarrow", "scipy", "datasets", "numpy")


def loaded_after(*arguments):
    """Which heavy packages a command has imported by the time it ends."""
    code = (
        "import sys\nsys.argv = ['lossbench', *sys.argv[1:]]\nfrom lossbench.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["sweep", "--help"], ["report", "--help"], ["recipes"]]
)
def test_help_loads_nothing_heavy(arguments):
    assert loaded_after(*arguments) == "[]"


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.strip() == f"lossbench {lossbench.__version__}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Example: lossbench " + command in result.output.replace("\n", " ")


def test_the_dry_run_prints_the_runs_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["sweep", "--modes", "grpo,dapo", "--seeds", "3", "--dry-run", "-f", "json"]
    result = CliRunner().invoke(app, arguments)
    rows = json.loads(result.stdout)
    assert [(row["mode"], row["seed"]) for row in rows] == [(m, s) for s in range(3) for m in ("grpo", "dapo")]
    assert "6 runs" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_recipes_are_listed_printed_and_copied(tmp_path):
    runner = CliRunner()
    names = [row["recipe"] for row in json.loads(runner.invoke(app, ["recipes", "-f", "json"]).stdout)]
    assert {"quick", "dr_grpo", "surrogates", "null_control"} <= set(names)
    printed = runner.invoke(app, ["recipes", "quick"]).stdout
    copy = tmp_path / "mine.toml"
    assert runner.invoke(app, ["recipes", "quick", "--copy", str(copy)]).exit_code == 0
    assert copy.read_text() == printed
    assert runner.invoke(app, ["recipes", "quick", "--copy", str(copy)]).exit_code != 0  # never overwrites


def test_tables_are_printed_in_each_format(capsys):
    rows = [{"name": "a|b", "value": 1.0}, {"name": "[red]", "value": float("nan")}]
    print_table(rows, None, "json")
    assert json.loads(capsys.readouterr().out) == [{"name": "a|b", "value": 1.0}, {"name": "[red]", "value": None}]
    print_table(rows, ["name"], "csv")
    assert capsys.readouterr().out == "name\na|b\n[red]\n"
    print_table(rows, None, "md")
    assert capsys.readouterr().out.splitlines()[2:] == ["| a\\|b | 1 |", "| [red] | – |"]
    print_table(rows, None, "table")
    assert "[red]" in capsys.readouterr().out  # no markup is read into data


@pytest.mark.parametrize("width", [30, 80, 200])
def test_a_terminal_gets_the_columns_that_fit_without_breaking_a_word(width, monkeypatch, capsys):
    row = {f"column_{n}": "a sentence of several words" if n == 2 else 1234.5 for n in range(9)}
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table([row])
    printed = capsys.readouterr()
    head = printed.out.splitlines()[0].split()
    left_out = [name for name in row if name not in head]
    assert len(head) == {30: 3, 80: 6, 200: 9}[width]
    assert max(map(len, printed.out.splitlines())) <= width
    assert (", ".join(left_out) in printed.err) if left_out else printed.err == ""


def test_public_names_load_on_first_use():
    code = "import sys, lossbench; assert 'torch' not in sys.modules; lossbench.agg_loss; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lossbench.nonsense  # noqa: B018


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    command = [
        sys.executable,
        "-m",
        "lossbench",
        "weights",
        "--lengths",
        "4,2",
        "--plot",
        str(tmp_path / "file" / "w.png"),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'file'}")


def test_a_reward_that_is_no_finite_number_is_refused():
    arguments = ["weights", "--lengths", "4,2", "--rewards", "1,nan"]
    result = subprocess.run([sys.executable, "-m", "lossbench", *arguments], capture_output=True, text=True)
    assert result.returncode == 2 and "no finite number" in result.stderr
