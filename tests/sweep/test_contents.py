"""What the runs of one folder read is one thing: data, task file and model are fingerprinted and compared on resume."""

import json
import os

import numpy as np
import pytest
from support.sweeps import Pretend, quick_recipe
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer
from lossbench.store.read import read_json
from lossbench.sweep import run as sweep_run
from lossbench.sweep.folder import new_folder, reproducing_commands, run_dir
from lossbench.sweep.plan import plan
from lossbench.sweep.run import RunOptions, check_planned, plan_recipe, run_planned
from lossbench.sweep.schedule import Watch
from lossbench.training.contents import model_contents, task_contents

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(20)]
TASK = "from lossbench.tasks.selfcheck import SelfCheck\n\nclass Mine(SelfCheck):\n    name = 'mine'\n"


def write_rows(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data, a task file and a model, in which sweeps only pretend."""
    write_rows(tmp_path / "train.jsonl")
    (tmp_path / "mine.py").write_text(TASK)
    tokenizer = make_tokenizer()
    make_model(TinyPolicy(layers=1), len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_run, "make_executor", lambda name, wanted: Pretend())
    monkeypatch.setattr(sweep_run, "prepare_policies", lambda *_: None)
    return tmp_path


def sweep(out, **changes):
    planned = plan_recipe(quick_recipe(modes=["grpo"], **changes), RunOptions(out=out))
    return run_planned(check_planned(planned, Watch(), fetch=True), Watch())


DATASET = {"task": "dataset", "task_params": {"path": "train.jsonl", "chat": False, "verifier": "exact"}}


def edit_rows(place):
    write_rows(place / "train.jsonl", [*ROWS[:-1], {"prompt": "1+1=", "answer": "3"}])


def edit_task(place):
    (place / "mine.py").write_text(TASK + "    def verify(self, completion, answer):\n        return True\n")


def edit_weights(place):
    weights = place / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = np.float32(0.123).tobytes()
    weights.write_bytes(data)


def edit_config(place):
    config = json.loads((place / "model" / "config.json").read_text())
    (place / "model" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1, "norm_epsilon": 0.1}))


@pytest.mark.parametrize(
    ("settings", "edit", "named"),
    [
        (DATASET, edit_rows, "task dataset"),
        ({"task": "mine.py:Mine"}, edit_task, "task file mine.py"),
        ({"policy": "./model"}, edit_weights, "model ./model"),
        ({"policy": "./model"}, edit_config, "model ./model"),
    ],
)
def test_edited_contents_are_refused_with_the_way_out_and_nothing_is_touched(place, settings, edit, named):
    assert sweep(place / "out", seeds=[0], **settings).completed == 1
    assert sweep(place / "out", seeds=[0, 1], **settings).completed == 2
    before = read_json(place / "out" / "sweep.json")
    edit(place)
    with pytest.raises(UsageError) as refused:
        sweep(place / "out", seeds=[0, 1, 2], **settings)
    message = str(refused.value)
    assert named in message and "--fresh" in message and "another --out" in message and "\n" not in message
    assert read_json(place / "out" / "sweep.json") == before
    assert sweep(place / "other", seeds=[0, 1, 2], **settings).completed == 3


def test_the_same_path_from_another_folder_is_another_file(place, monkeypatch):
    sweep(place / "out", seeds=[0], **DATASET)
    (place / "elsewhere").mkdir()
    write_rows(place / "elsewhere" / "train.jsonl", ROWS[::-1])
    monkeypatch.chdir(place / "elsewhere")
    with pytest.raises(UsageError, match="other contents of task dataset"):
        sweep(place / "out", seeds=[0, 1], **DATASET)
    write_rows(place / "elsewhere" / "train.jsonl")
    assert sweep(place / "out", seeds=[0, 1], **DATASET).completed == 2


def test_contents_may_change_while_nothing_was_made_of_them(place, monkeypatch):
    monkeypatch.setattr(sweep_run, "make_executor", lambda name, wanted: Pretend(ends=lambda spec: "a bug in the task"))
    assert sweep(place / "out", seeds=[0], task="mine.py:Mine").failed == 1
    edit_task(place)
    monkeypatch.setattr(sweep_run, "make_executor", lambda name, wanted: Pretend())
    assert sweep(place / "out", seeds=[0, 1], task="mine.py:Mine").completed == 1


def test_files_are_kept_by_their_resolved_path_and_prompts_by_their_text(place):
    settings = quick_recipe(task="mine.py:Mine").settings()
    assert task_contents(settings, None)["task file mine.py"]["path"] == str((place / "mine.py").resolve())
    (entry,) = model_contents("./model").values()
    assert entry["path"] == str((place / "model").resolve()) and model_contents("selfcheck") == {}
    os.utime(place / "model" / "model.safetensors", (1, 1))  # a date is not a content
    assert model_contents("./model") == {"model ./model": entry}


def test_each_call_is_kept_and_the_report_prints_one_that_makes_what_it_shows(place):
    def call(seeds, command, **options):
        recipe = quick_recipe(modes=["grpo"], seeds=seeds)
        planned = plan_recipe(recipe, RunOptions(out=place / "out", **options), command=command)
        run_planned(planned, Watch())
        return read_json(place / "out" / "sweep.json")

    assert reproducing_commands(call([0], "first")) == ["first"]
    spec = call([0, 1], "second")
    assert reproducing_commands(spec) == ["second"]  # it makes both
    assert [entry["command"] for entry in spec["calls"]] == ["first", "second"] and spec["command"] == "first"
    assert all(entry["versions"] and entry["machine"] for entry in spec["calls"])
    assert call([0, 1], "second") == spec  # the same call again adds nothing
    call([0, 1, 2, 3], "slice 1", shard="1/2")
    spec = call([0, 1, 2, 3], "slice 2", shard="2/2")
    assert reproducing_commands(spec) == ["slice 1", "slice 2"]
    old = {key: value for key, value in spec.items() if key != "calls"}
    assert reproducing_commands(old) == ["first"]
    assert reproducing_commands({"runs": {}}) == []


def test_two_fresh_sweeps_at_once_get_two_folders(place):
    recipe, options = quick_recipe(modes=["grpo"]), RunOptions(out=place / "out", fresh=True)
    first, second = (plan_recipe(recipe, options) for _ in range(2))  # both see that the folder is free
    assert first.folder == second.folder
    made = [check_planned(planned, Watch(), fetch=True).folder for planned in (first, second)]
    assert made == [place / "out", place / "out-2"]
    assert new_folder(place / "out") == place / "out-3"
    with pytest.raises(UsageError, match="cannot make"):
        new_folder(place / "mine.py" / "out")


def test_a_task_file_is_named_before_it_runs_and_a_dry_run_runs_none(place):
    (place / "mine.py").write_text("open('ran', 'w').close()\n" + TASK)
    (place / "recipe.toml").write_text('modes = ["grpo"]\nseeds = 1\ntask = "mine.py:Mine"\n')
    shown = CliRunner().invoke(app, ["sweep", "recipe.toml", "--dry-run"])
    assert shown.exit_code == 0 and "task file 'mine.py': run" in shown.stderr
    assert not (place / "ran").exists()
    told = []
    watch = Watch()
    watch.note = lambda text: told.append((text, (place / "ran").exists()))
    check_planned(plan_recipe(quick_recipe(task="mine.py:Mine"), RunOptions(out=place / "out")), watch, fetch=True)
    assert told[0] == ("task file 'mine.py' is run now", False) and (place / "ran").exists()


def test_a_completed_run_keeps_what_it_read(tmp_path):
    from support.sweeps import quick_run

    from lossbench.training.run import execute

    spec = quick_run(steps=1)
    execute(spec, run_dir(tmp_path, spec.run_id))
    kept = read_json(run_dir(tmp_path, spec.run_id) / "run.json")["contents"]
    assert list(kept) == ["task selfcheck"] and len(kept["task selfcheck"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("doses", "title"),
    [
        ((0.25, 0.5), "warm start of 'selfcheck' check_truth=0.25 seed 0, 'selfcheck' check_truth=0.5 seed 0"),
        ((0.1, 0.2, 0.3, 0.4, 0.5), "5 warm starts"),
    ],
)
def test_few_warm_starts_are_told_apart_by_their_parameters_and_many_are_counted(monkeypatch, doses, title):
    arms = [{"mode": "grpo", "label": f"{dose}", "set": {"policy_params": {"check_truth": dose}}} for dose in doses]
    titles: list[str] = []

    class Titles(Watch):
        def warm_start(self, title):
            titles.append(title)
            return super().warm_start(title)

    monkeypatch.setattr(sweep_run, "missing_policies", list)
    monkeypatch.setattr(sweep_run, "prepare_policies", lambda *_: None)
    sweep_run._prepare_policies(plan(quick_recipe(modes=None, arms=arms)), Titles())
    assert titles == [title]
