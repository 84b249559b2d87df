"""Models, data, extras and logs that cannot be used: one line, exit code 2, and nothing left behind."""

import importlib.util
import json
import sys

import pytest
from support.sweeps import quick_recipe

import lossbench.cli
from lossbench.errors import UsageError
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer
from lossbench.sweep.plan import plan
from lossbench.sweep.preflight import preflight

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(9)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with data sets, models and logs of all sorts, and the folder that commands run in."""
    texts = {
        "good.jsonl": lines(ROWS),
        "named.jsonl": lines({"q": row["prompt"], "a": row["answer"]} for row in ROWS),
        "words.jsonl": lines([*ROWS, {"prompt": "and?", "answer": "many"}]),
        "formulas.jsonl": lines([*ROWS, {"prompt": "and?", "answer": "((((("}]),
        "latin.csv": "prompt,answer\nx,1\n\xe9,2\n",
        "torn.jsonl": lines(ROWS) + '{"prompt": "1',
        "empty.jsonl": "",
        "bare.csv": "a,b\n1,2\n",
        "two/completions.jsonl": "{}\n",
        "two/1.jsonl": lines([{"input": "q", "output": "x", "gts": "1", "score": 1.0, "step": 1}]),
        "long.csv": "step,completion,length\n1,x,2\n1,y,3\n",
        "characters/1.jsonl": lines([{"input": "q", "output": "x", "gts": "1", "score": 1.0, "step": 1}] * 2),
    }
    for name, text in texts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text, encoding="latin-1")
    tokenizer = make_tokenizer()
    for name, changes in {
        "plain": {},
        "no-eos": {"eos_token": None},
        "bad-template": {"chat_template": "{{ raise_exception('roles must alternate') }}"},
    }.items():
        tokenizer = make_tokenizer()
        for attribute, value in changes.items():
            setattr(tokenizer, attribute, value)
        make_model(TinyPolicy(layers=1), len(tokenizer)).save_pretrained(tmp_path / "in" / name)
        tokenizer.save_pretrained(tmp_path / "in" / name)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def run(capsys, monkeypatch, *arguments):
    """Exit code of the command and what it printed."""
    monkeypatch.setattr(sys, "argv", ["lossbench", *arguments])
    try:
        lossbench.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


CHAT = ("--task", "dataset", "--set", "task_params.path=../in/good.jsonl")
SMALL = ("--set", "per_device_train_batch_size=8", "--seeds", "1", "--modes", "grpo")
REFUSED = {
    "no named column": (["--dataset", "../in/named.jsonl"], ["named.jsonl: no prompt column", "it has q, a"]),
    "not the named column": (
        ["--dataset", "../in/good.jsonl", "--set", "task_params.answer_column=gold"],
        ["good.jsonl: no column 'gold'", "it has prompt, answer"],
    ),
    "an answer without a number": (
        ["--dataset", "../in/words.jsonl"],
        ["words.jsonl, line 10", "'many'", "fix or drop"],
    ),
    "a formula that does not parse": (
        ["--dataset", "../in/formulas.jsonl", "--verifier", "math"],
        ["formulas.jsonl, line 10", "does not parse as mathematics", "fix or drop"],
    ),
    "not UTF-8": (["--dataset", "../in/latin.csv"], ["latin.csv, line 3: not UTF-8", "save the file as UTF-8"]),
    "half a penalty": (["--set", "task_params.overlong_cache_tokens=20"], ["overlong_max_tokens", "give both"]),
    "a torn line": (["--dataset", "../in/torn.jsonl"], ["torn.jsonl, line 10: not valid JSON"]),
    "an empty file": (["--dataset", "../in/empty.jsonl"], ["empty.jsonl: the file is empty"]),
    "no such file": (["--dataset", "../in/none.jsonl"], ["none.jsonl: no such file"]),
    "no EOS": (["--model", "../in/no-eos", *CHAT], ["'../in/no-eos'", "no EOS token", "tokenizer_config.json"]),
    "a template that fails": (["--model", "../in/bad-template", *CHAT], ["roles must alternate", "chat=false"]),
    "no template": (["--model", "../in/plain", *CHAT], ["no chat template", "chat=false"]),
    "no model": (["--model", "../in/none", *CHAT], ["'../in/none': no such folder"]),
    "not in the cache": (["--model", "nobody/nothing", *CHAT], ["not in the local cache, and HF_HUB_OFFLINE"]),
    "a logger's name": (["--report-to", "tensorbord"], ["unknown logger 'tensorbord'", "tensorboard, wandb, trackio"]),
    "a sampler's name": (["--sampler", "vlm"], ["sampler = 'vlm'", "'vllm'"]),
    "a LoRA option": (["--set", "lora.rank=8"], ["unknown LoRA option 'rank'"]),
    "no hub": (["--dataset", "hub:nobody/nothing"], ["data set hub:nobody/nothing: is not available"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_sweep_that_cannot_run_is_refused(name, place, monkeypatch, capsys):
    arguments, words = REFUSED[name]
    if "math" in arguments:
        pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    code, printed = run(capsys, monkeypatch, "sweep", *SMALL, *arguments)
    assert code == 2 and printed.out == ""
    assert len(printed.err.splitlines()) == 1, printed.err
    assert all(word in printed.err for word in words), printed.err
    assert list((place / "cwd").iterdir()) == []


@pytest.mark.parametrize("name", ["no EOS", "a template that fails", "an empty file", "no model"])
def test_a_dry_run_refuses_what_it_can_see(name, place, monkeypatch, capsys):
    code, printed = run(capsys, monkeypatch, "sweep", *SMALL, *REFUSED[name][0], "--dry-run")
    assert code == 2 and printed.out == "" and len(printed.err.splitlines()) == 1
    assert all(word in printed.err for word in REFUSED[name][1])


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("vllm", ["--sampler", "vllm"]),
        ("tensorboard", ["--report-to", "tensorboard"]),
        ("wandb", ["--report-to", "wandb"]),
        ("trackio", ["--report-to", "trackio"]),
    ],
)
def test_a_missing_extra_is_named(package, arguments, place, monkeypatch, capsys):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here, so it cannot be missing")
    code, printed = run(capsys, monkeypatch, "sweep", *SMALL, *arguments)
    assert code == 2 and len(printed.err.splitlines()) == 1
    assert f"pip install 'lossbench[{package}]'" in printed.err
    assert list((place / "cwd").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["../in/two"], ["'../in/two' holds two formats", "choose one with --as"]),
        (["../in/empty.jsonl", "--as", "verl"], ["empty.jsonl"]),
        (["../in/bare.csv", "--as", "csv"], ["bare.csv", "no step column"]),
        (["../in/none"], ["'../in/none': no such file or folder"]),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(arguments, words, place, monkeypatch, capsys):
    code, printed = run(capsys, monkeypatch, "ingest", *arguments, "--mode", "grpo", "--out", "out")
    assert code == 2 and printed.out == "" and len(printed.err.splitlines()) == 1, printed.err
    assert all(word in printed.err for word in words), printed.err
    assert list((place / "cwd").iterdir()) == []


def test_characters_are_not_added_to_tokens(place, monkeypatch, capsys):
    common = ("--mode", "grpo", "--out", "out", "--quiet")
    code, _ = run(capsys, monkeypatch, "ingest", "../in/long.csv", "--as", "csv", "--seed", "0", *common)
    assert code == 0
    before = sorted(str(path) for path in (place / "cwd").rglob("*"))
    code, printed = run(
        capsys, monkeypatch, "ingest", "../in/characters/1.jsonl", "--as", "verl", "--seed", "1", *common
    )
    assert code == 2 and len(printed.err.splitlines()) == 1, printed.err
    assert "mixed units" in printed.err and "give --tokenizer" in printed.err
    assert sorted(str(path) for path in (place / "cwd").rglob("*")) == before


def test_each_thing_is_looked_at_once(place, monkeypatch):
    looked = []
    monkeypatch.setattr("lossbench.sweep.preflight.make_task", lambda *task: looked.append(task))
    runs = plan(quick_recipe(seeds=50, task="dataset", task_params={"path": "../in/good.jsonl"}))
    assert len(runs) == 100
    preflight(runs, fetch=True, say=print)
    assert len(looked) == 1


def test_what_only_the_hub_has_is_left_to_the_start_and_said(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    runs = plan(quick_recipe(policy="a/b@v1", task="dataset", task_params={"path": "hub:c/d"}))
    said = []
    preflight(runs, fetch=False, say=said.append)
    data, model = said
    assert "data set hub:c/d" in data and "model a/b@v1: fetched from the hub" in model
    with pytest.raises(UsageError, match="hub:c/d: is not available"):
        preflight(runs, fetch=True, say=print)
