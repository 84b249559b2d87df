"""A folder that someone sends is opened with every command: nothing beside it changes, nothing it says is obeyed."""

import json
import os
import re
import sys

import pytest
from support.made_sweeps import Plan, make_sweep
from support.sweeps import QUICK, bytes_below, planned, quick_recipe

import lossbench.cli
from lossbench.limits import limit
from lossbench.store.write import write_table

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp\x9b31m"
OF_PLANS = (("runs",), ("report", "-q"), ("compare", "grpo", "dr_grpo", "--in"), ("diagnose",))
READERS = (
    *OF_PLANS, ("report", "-f", "json"),
    ("ingest", "--mode", "grpo", "--out", "ingested"), ("probe", "-q", "--checkpoints"), ("probe", "--projections"),
    ("probe", "--rollouts"), ("sweep", "recipe.toml", "-q", "--out"), ("sweep", "recipe.toml", "--dry-run", "--out"),
)  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a canary beside the sweep that was sent."""
    (tmp_path / "canary" / "checkpoint-1").mkdir(parents=True)
    for name in ("file", "steps-0000001.parquet", "index.html", "forest.png", ".x.tmp", "checkpoint-1/weights"):
        (tmp_path / "canary" / name).write_text("sings")
    (tmp_path / "work").mkdir()
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in QUICK.items())
    (tmp_path / "work" / "recipe.toml").write_text(keys)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def opened(monkeypatch, capfd, *arguments):
    """Exit code and what was printed; a traceback fails the test."""
    monkeypatch.setattr(sys, "argv", ["lossbench", *map(str, arguments)])
    code = 0
    try:
        lossbench.cli.main()
    except SystemExit as end:
        code = end.code
    printed = capfd.readouterr()
    assert code in (0, 1, 2), arguments
    assert not CONTROL.search(printed.out + printed.err), arguments
    assert code != 2 or len([line for line in printed.err.splitlines() if line.startswith("error: ")]) == 1
    return code, printed.out + printed.err


def open_with_all(place, monkeypatch, capfd, readers=READERS):
    """Every reader opens the folder `sent`; the canary is unharmed after each."""
    before, found = bytes_below(place / "canary"), {}
    for arguments in readers:
        found[arguments] = opened(monkeypatch, capfd, *arguments, place / "sent")
        assert bytes_below(place / "canary") == before, arguments
    return found


def spec_of(place):
    return json.loads((place / "sent" / "sweep.json").read_text())


def write_spec(place, spec):
    (place / "sent" / "sweep.json").write_text(json.dumps(spec))


def small_sweep(place):
    return make_sweep(place / "sent", Plan(("grpo", "dr_grpo"), seeds=2, steps=5))


def test_links_at_names_that_can_be_foreseen(place, monkeypatch, capfd):
    folder, canary = small_sweep(place), place / "canary"
    (folder / "report" / "figures").mkdir(parents=True)
    run = next((folder / "runs").iterdir())
    for where, names in {
        folder: ("sweep.json", ".x"), run: ("run.json", "steps.parquet", "rollouts.parquet"),
        folder / "report": ("index.html", "report.md", "summary.csv", "summary.json"),
        folder / "report" / "figures": ("forest.png", "forest.svg", "reward_length.png"),
    }.items():  # fmt: skip
        for name in names:
            (where / f".{name}.{os.getpid()}.tmp").symlink_to(canary / "file")
    for name in ("index.html", "summary.csv"):
        (folder / "report" / name).symlink_to(canary / "file")
    (folder / "report" / "figures" / "forest.svg").symlink_to(canary / "file")
    found = open_with_all(place, monkeypatch, capfd)
    assert found["report", "-q"][0] in (0, 1)
    assert (folder / "report" / "index.html").is_file() and not (folder / "report" / "index.html").is_symlink()


@pytest.mark.parametrize("linked", ["report", "report/figures"])
def test_a_report_folder_that_is_a_link_is_refused_unless_named(linked, place, monkeypatch, capfd):
    folder = small_sweep(place)
    (folder / linked).parent.mkdir(exist_ok=True)
    (folder / linked).symlink_to(place / "canary")
    code, said = open_with_all(place, monkeypatch, capfd, OF_PLANS)["report", "-q"]
    assert code == 2 and f"{linked}' is a link" in said
    assert opened(monkeypatch, capfd, "report", folder, "-q", "--out", place / "mine")[0] == 0
    assert (place / "mine" / "index.html").is_file()


@pytest.mark.parametrize("linked", ["runs", "run", "parts", "checkpoints", "log.txt", "tensorboard"])
def test_a_resumed_sweep_neither_deletes_nor_appends_through_links(linked, place, monkeypatch, capfd):
    runs = planned(place / "sent", quick_recipe(name="recipe"))
    run = place / "sent" / "runs" / runs[0].run_id
    link = {"runs": run.parent, "run": run}.get(linked, run / linked)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(place / "canary" / ("file" if linked == "log.txt" else ""))
    resumed = ("sweep", "recipe.toml", "-q", "--out")
    code, said = open_with_all(place, monkeypatch, capfd, (resumed, ("runs",)))[resumed]
    assert code == 2 and "is a link" in said


@pytest.mark.slow
def test_control_codes_in_names_reasons_and_texts(place, monkeypatch, capfd):
    folder = small_sweep(place)
    spec = spec_of(place)
    first, second, *_ = spec["runs"]
    for run in spec["runs"].values():
        run["policy"] = f"selfcheck{EVIL}"
    spec["runs"][first] |= {"arm": f"grpo[{EVIL}]", "mode": f"grpo{EVIL}", "loss_type": EVIL}
    write_spec(place, spec | {
        "name": EVIL, "command": f"lossbench sweep {EVIL}", "baseline": EVIL, "versions": {EVIL: EVIL},
        "recipe": spec["recipe"] | {"description": EVIL, "task": EVIL, "name": EVIL},
    })  # fmt: skip
    state = {"status": "failed", "reason": f"died {EVIL}", "steps_done": 3, "versions": {"trl": EVIL}}
    (folder / "runs" / second / "run.json").write_text(json.dumps(state))
    (folder / "runs" / first / f"steps{EVIL}.parquet").write_text("x")
    open_with_all(place, monkeypatch, capfd)
    (place / "work" / "recipe.toml").write_text(f"description = {json.dumps(EVIL)}\nmodes = [{json.dumps(EVIL)}]\n")
    assert opened(monkeypatch, capfd, "sweep", "recipe.toml")[0] == 2
    assert opened(monkeypatch, capfd, "compare", EVIL, "grpo", "--in", folder)[0] == 2


@pytest.mark.parametrize("run_id", ["../../canary", "/etc", "..", "", "a/../../canary", "x" * 5000, EVIL])
def test_a_run_id_is_one_name(run_id, place, monkeypatch, capfd):
    small_sweep(place)
    spec = spec_of(place)
    write_spec(place, spec | {"runs": {run_id: next(iter(spec["runs"].values()))}})
    for arguments, (code, said) in open_with_all(place, monkeypatch, capfd, OF_PLANS).items():
        assert code == 2 and "run id" in said, arguments


ODD = {
    "a list": [], "a number": 1, "no runs": {"kind": "sweep"}, "runs as a list": {"runs": []}, "no plan": {"runs": {}},
    "a run as text": {"runs": {"a": "b"}}, "an arm as a number": {"runs": {"a": {"arm": 1}}},
    "no arm": {"runs": {"a": {}}}, "a seed as a list": {"runs": {"a": {"arm": "grpo", "seed": [1]}}},
    "claims as text": {"runs": {"a": {"arm": "grpo"}}, "claims": "C1"},
    "an unknown claim": {"runs": {"a": {"arm": "grpo"}}, "claims": ["C99"]},
    "a recipe as text": {"runs": {"a": {"arm": "grpo"}}, "recipe": "quick"},
    "little in a run": {"runs": {"a": {"arm": "grpo"}}},
    "many runs": {"runs": {str(n): {"arm": "grpo"} for n in range(20_000)}},
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_plan_is_one_line(name, place, monkeypatch, capfd):
    (place / "sent").mkdir()
    write_spec(place, ODD[name])
    found = open_with_all(place, monkeypatch, capfd, OF_PLANS)
    assert found["runs",][0] == 2 or name in ("no plan", "little in a run", "an unknown claim")
    assert found["report", "-q"][0] in (1, 2)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"runs": {"a": ' + "9" * 5000 + "}}", "\x00\xff"])
def test_a_plan_that_is_no_json_is_one_line(text, place, monkeypatch, capfd):
    (place / "sent").mkdir()
    (place / "sent" / "sweep.json").write_text(text, encoding="latin-1")
    assert open_with_all(place, monkeypatch, capfd, (*OF_PLANS, READERS[-2]))["runs",][0] == 2


def test_pipes_in_place_of_files_do_not_hang(place, monkeypatch, capfd):
    folder = small_sweep(place)
    runs = sorted((folder / "runs").iterdir())
    for path in (runs[0] / "run.json", runs[1] / "steps.parquet", runs[2] / "rollouts.parquet"):
        path.unlink()
        os.mkfifo(path)
    (runs[3] / "parts").mkdir()
    (runs[3] / "steps.parquet").unlink()
    os.mkfifo(runs[3] / "parts" / "steps-0000001.parquet")
    code, said = open_with_all(place, monkeypatch, capfd)["runs",]
    assert code == 0 and "not a regular file" in said


def test_a_table_of_too_many_rows_is_passed_over_by_name(place, monkeypatch, capfd):
    folder = small_sweep(place)
    run = next((folder / "runs").iterdir())
    write_table(run / "steps.parquet", "steps", [{"step": 1}] * 2000)
    monkeypatch.setenv("LOSSBENCH_MAX_ROWS", "1000")
    assert limit("rows") == 1000
    code, said = opened(monkeypatch, capfd, "runs", folder)
    assert code == 0 and "2000 rows are beyond the limit of 1000; set LOSSBENCH_MAX_ROWS" in said
    monkeypatch.setenv("LOSSBENCH_MAX_ROWS", "many")
    assert "give a whole number" in opened(monkeypatch, capfd, "runs", folder)[1]
