"""The Python interface: run, resume, load and ask a sweep, as the command line does."""

import json
import subprocess
import sys

import pytest
from support.sweeps import QUICK, bytes_below
from typer.testing import CliRunner

import lossbench
from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.sweep.schedule import Watch

HEAVY = ("torch", "transformers", "trl", "pandas", "duckdb", "scipy", "pyarrow", "matplotlib", "rich.progress")


class Heard(Watch):
    """Keeps the names of the callbacks."""

    def __init__(self):
        self.calls = []

    def begun(self, folder, mine, left, slots):
        self.calls.append(f"begun {len(left)}")

    def ended(self, spec, reason, log):
        self.calls.append(f"{spec.arm} {spec.seed} {reason}")

    def over(self):
        self.calls.append("over")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two modes, two seeds, given as keys, with comma-separated text for the modes."""
    folder = tmp_path_factory.mktemp("api") / "sweep"
    heard = Heard()
    made = lossbench.run_sweep({**QUICK, "name": "own"}, modes="grpo,dr_grpo", seeds=2, jobs=2, out=folder, watch=heard)
    assert heard.calls[0] == "begun 4" and heard.calls[-1] == "over"
    assert sorted(heard.calls[1:-1]) == [f"{mode} {seed} None" for mode in ("dr_grpo", "grpo") for seed in (0, 1)]
    return made


def test_a_sweep_runs_and_the_same_call_again_changes_nothing(sweep):
    assert sweep.runs["status"].tolist() == ["completed"] * 4
    assert len(sweep.steps) == 4 * QUICK["steps"]
    before = bytes_below(sweep.path)
    heard = Heard()
    again = lossbench.run_sweep({**QUICK, "name": "own"}, seeds=2, out=sweep.path, watch=heard)
    assert heard.calls == ["begun 0", "over"] and isinstance(again, lossbench.Sweep)
    assert bytes_below(sweep.path) == before


def test_what_the_command_line_shows_is_what_the_sweep_gives(sweep):
    def printed(*arguments):
        return json.loads(CliRunner().invoke(app, [*map(str, arguments), "-f", "json"]).stdout)

    rows = sweep.compare("grpo", "dr_grpo")
    shown = printed("compare", "grpo", "dr_grpo", "--in", sweep.path)
    assert rows["metric"].tolist() == [row["metric"] for row in shown]
    assert rows["n"].iloc[0] <= 2 and set(rows["a"]) == {"grpo"} and set(rows["b"]) == {"dr_grpo"}
    assert sweep.compare("grpo", "dr_grpo", ["late_reward"])["metric"].tolist()[0] == "late_reward"
    summary = sweep.summary()
    assert summary["arm"].tolist() == ["grpo", "dr_grpo"] and summary["runs"].tolist() == [2, 2]
    made = sweep.report()
    assert (made.folder / "index.html").is_file() and made.complete
    assert sweep.plot("reward_length").axes


def test_a_sweep_shows_itself_in_one_line_and_in_a_notebook(sweep):
    assert repr(sweep) == f"<Sweep '{sweep.path}': grpo, dr_grpo; 4 of 4 runs completed>"
    assert repr(lossbench.load(sweep.path)) == repr(sweep)
    page = sweep._repr_html_()
    assert "&lt;Sweep" in page and "<td>dr_grpo</td>" in page and "<script" not in page


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.compare("grpo", "gspo"), "unknown mode of this sweep 'gspo'"),
        (lambda s: s.compare("grpo", "dr_grpo", ["length"]), "unknown metric 'length'"),
        (lambda s: s.plot("forrest"), "did you mean 'forest'"),
        (lambda s: s.plot("drift"), "nothing to draw"),
        (lambda s: s.summary(baseline="dapo"), "unknown baseline 'dapo'"),
        (lambda s: lossbench.run_sweep("quick", out=s.path), "belongs to another plan"),
        (lambda s: lossbench.run_sweep({**QUICK, "learning_rte": 1}), "unknown key 'learning_rte'"),
        (lambda s: lossbench.run_sweep("quick", learning_rte=1), "did you mean 'learning_rate'"),
        (lambda s: lossbench.run_sweep("quick", claims=["C99"]), "unknown claim 'C99'"),
        (lambda s: lossbench.run_sweep("quick", modes="grpo,", jobs=1), "holds an empty name"),
        (lambda s: lossbench.load(s.path / "runs"), "is not a sweep"),
    ],
)
def test_a_mistake_raises_usage_error_of_one_line(ask, words, sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        ask(sweep)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["import lossbench", "import lossbench.cli"])
def test_importing_the_package_and_its_commands_is_light(code):
    listing = f"{code}; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_help_page_takes_less_than_four_tenths_of_a_second():
    # Processor time of the process itself: a busy machine does not count. The best of three.
    code = (
        "import resource, sys; sys.argv = ['lossbench', '--help']\nfrom lossbench.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert min(float(run.stderr.splitlines()[-1]) for run in runs) <= 0.4
