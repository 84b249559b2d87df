"""Tasks: their prompts, answers and rewards, and what they say about wrong parameters and files."""

import csv
import json
import re

import datasets
import pandas as pd
import pytest
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.tasks import TASKS, make_task
from lossbench.tasks.base import Prompt
from lossbench.tasks.countdown import check_countdown, evaluate
from lossbench.tasks.overlong import OverlongPenalty


def test_every_task_splits_its_prompts_and_repeats_them():
    for name in ("arithmetic", "countdown"):
        first, second = (
            make_task(name, {"train_size": 30, "eval_size": 10}),
            make_task(name, {"train_size": 30, "eval_size": 10}),
        )
        assert first.train_prompts == second.train_prompts
        assert len(first.train_prompts) == 30 and len(first.eval_prompts) == 10
        assert not {p.text for p in first.train_prompts} & {p.text for p in first.eval_prompts}
        ids = [p.id for p in [*first.eval_prompts, *first.train_prompts]]
        assert len(set(ids)) == len(ids)
        assert make_task(name, {"train_size": 30, "eval_size": 10, "seed": 1}).train_prompts != first.train_prompts


def test_arithmetic_forms():
    chat = make_task("arithmetic")
    prompt = chat.train_prompts[0]
    a, b = (int(term) for term in prompt.text.removeprefix("What is ").rstrip("?").split(" + "))
    assert prompt.answer == str(a + b)
    assert chat.verify(f"Well, {a} plus {b} makes {a + b}.", prompt.answer)
    assert not chat.verify(f"{a + b}, or is it {a + b + 1}?", prompt.answer)  # the last number is the answer
    assert len(chat.train_prompts) + len(chat.eval_prompts) == 100  # all one-digit pairs, a fifth of them held out
    shots = make_task("arithmetic", {"form": "few-shot", "shots": 2, "operands": 3, "digits": 2}).train_prompts[0].text
    lines = shots.splitlines()
    assert len(lines) == 3 and lines[-1].endswith(" =")
    left, right = lines[0].split(" = ")
    assert sum(map(int, left.split(" + "))) == int(right)


def test_countdown_evaluates_arithmetic_and_nothing_else():
    negated = evaluate("-(2 - 5)")
    assert negated is not None and negated[0] == 3
    value = evaluate("(7 - 3) * 6 / 4")
    assert value is not None and value[0] == 6
    for text in ("2**3", "7//2", "__import__('os')", "a + 1", "1 / 0", "(1", "1 + 2.5", "True + 1", "9" * 300, ""):
        assert evaluate(text) is None, text


def test_countdown_wants_every_number_once():
    assert check_countdown("I try 6 * 4.\n<answer>(7 - 3) × 6 = 24</answer>", "24: 3 6 7")
    assert check_countdown("First 7-3 = 4\nthen (7-3)*6 = 24", "24: 3 6 7")
    assert not check_countdown("6 * 4", "24: 3 6 7")
    assert not check_countdown("7*3 + 3", "24: 3 7")
    assert not check_countdown("24", "24: 3 6 7")
    task = make_task("countdown", {"train_size": 20, "eval_size": 5})
    for prompt in task.train_prompts:
        assert task.verify(task.right_completion(prompt), prompt.answer)  # type: ignore[attr-defined]


def test_overlong_penalty():
    assert OverlongPenalty(8, 2)(7) == -0.5  # ((8 - 2) - 7) / 2
    penalty = OverlongPenalty(100, 20)
    assert [penalty(n) for n in (1, 80, 90, 100, 101)] == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert [OverlongPenalty(100, 0)(n) for n in (100, 101)] == [0.0, -1.0]
    with pytest.raises(UsageError, match="cache_tokens"):
        OverlongPenalty(10, 11)


def test_overlong_is_added_to_any_tasks_reward():
    task = make_task("selfcheck", {"overlong_max_tokens": 100, "overlong_cache_tokens": 20})
    assert task.reward(True, True, 90) == 0.5
    assert task.reward(False, False, 128) == -1.0
    assert task.verify("51yy", "51")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"overlong_cache_tokens": 20}, "overlong_cache_tokens=20 is the slope below overlong_max_tokens"),
        ({"overlong_max_tokens": -5}, "max_tokens >= 1"),
        ({"overlong_max_tokens": 10, "overlong_cache_tokens": -1}, "0 <= cache_tokens <= max_tokens"),
    ],
)
def test_half_an_overlong_penalty_is_refused(params, words):
    with pytest.raises(UsageError, match=words):
        make_task("selfcheck", params)


def test_unknown_names_and_values_are_refused_in_one_line():
    for name, params, words in [
        ("selfchek", {}, "did you mean 'selfcheck'"),
        ("arithmetic", {"digts": 2}, "did you mean 'digits'"),
        ("arithmetic", {"digits": "many"}, "a value of type int"),
        ("arithmetic", {"form": "poem"}, "plain, few-shot, chat"),
        ("countdown", {"numbers": 1}, "2 <= numbers <= 6"),
        ("dataset", {}, "--dataset data.jsonl"),
    ]:
        with pytest.raises(UsageError, match=words) as caught:
            make_task(name, params)
        assert "\n" not in str(caught.value)
    assert make_task("arithmetic", {"digits": "2"}).train_prompts  # values from a command line are text
    assert set(TASKS) >= {"selfcheck", "arithmetic", "countdown", "dataset"}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_data_set_of_any_kind_gives_the_same_task(tmp_path, suffix):
    rows = pd.DataFrame(
        {"question": [f"{n} plus one?" for n in range(10)], "answer": [f"#### {n + 1}" for n in range(10)]}
    )
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        rows.to_csv(path, index=False)
    elif suffix == ".parquet":
        rows.to_parquet(path)
    else:
        rows.to_json(path, orient="records", lines=suffix == ".jsonl")
    task = make_task("dataset", {"path": str(path), "train_size": 8, "eval_size": 2, "suffix": "Think."})
    assert len(task.train_prompts) == 8 and len(task.eval_prompts) == 2
    prompt = task.train_prompts[0]
    assert prompt.text == f"{prompt.id} plus one?\nThink."
    assert task.verify(f"That is {prompt.id + 1}.", prompt.answer)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", "", "the file is empty"),
        ("a.jsonl", '{"prompt": "x", "answer": "1"}\n', "1 rows"),
        ("a.jsonl", '{"prompt": "x", "answer": "1"}\n{"prompt": "y", "ans', "line 2: not valid JSON"),
        (
            "a.jsonl",
            '{"prompt": "x", "answer": "1"}\n{"prompt": "y", "answer": "many"}\n',
            "line 2: answer 'many' holds no",
        ),
        (
            "a.jsonl",
            '{"q": "x", "answer": "1"}\n{"q": "y", "answer": "2"}\n',
            "it has q, answer: name one with prompt_column",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "answer": "1"}\n{"prompt": null, "answer": "2"}\n',
            "line 2: column 'prompt' holds None",
        ),
        ("a.jsonl", "[1]\n[2]\n", "line 1: holds list"),
        ("a.json", '{"prompt": "x"}', "valid: a list of objects"),
        ("a.txt", "x", "unknown kind '.txt'"),
        ("a.parquet", "PAR1 or not", "not a readable parquet file"),
        ("a.csv", "prompt,answer\nx,1\n", "1 rows"),
        ("a.csv", "prompt,answer\nx,1\nx, y,2\n", "row 2: 3 cells in 2 columns; put a cell that holds a comma"),
        ("a.csv", "q,answer\nx,1,2\ny,2\n", "row 1: 3 cells in 2 columns"),
        ("a.csv", "prompt,answer\nx,1\ny\n", "row 2: column 'answer' holds None"),
        ("a.csv", "prompt,answer\nx,1\n\xe9,2\n".encode("latin-1"), "line 3: not UTF-8 text .byte 0xe9.; save"),
        ("a.jsonl", '{"prompt": "\xe9", "answer": "1"}\n'.encode("latin-1"), "line 1: not UTF-8 text"),
        ("a.json", '[{"prompt": "\xe9", "answer": "1"}]'.encode("latin-1"), "not UTF-8 text"),
        ("a.jsonl", f'{{"prompt": "x", "answer": {"1" * 5000}}}\n', "line 1: not readable as JSON"),
        ("a.json", "[" * 100_000, "not readable as JSON"),
    ],
)
def test_a_bad_data_set_names_file_row_and_remedy(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=words) as caught:
        make_task("dataset", {"path": str(path)})
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "\ufeffprompt,answer\nx,1\ny,2\n"),  # with the byte order mark that spreadsheets write
        ("a.jsonl", '\ufeff{"prompt": "x", "answer": "1"}\n\n{"prompt": "y", "answer": "2"}'),
        ("a.json", '\ufeff[{"prompt": "x", "answer": "1"}, {"prompt": "y", "answer": "2"}]'),
        ("a.csv", "prompt,answer\r\n" + "x" * 200_000 + ',1\r\n"y,\nand",2\r\n'),
        ("a.csv", "prompt,answer\rx,1\ry,2\r"),
        ("a.jsonl", '{"prompt": "x\u2028", "answer": "1"}\n{"prompt": "y", "answer": "2"}\n'),
    ],
)
def test_a_data_set_is_read_as_other_programs_write_it(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    before = csv.field_size_limit()
    task = make_task("dataset", {"path": str(path)})
    prompts = sorted([*task.train_prompts, *task.eval_prompts], key=lambda prompt: prompt.id)
    assert [prompt.text[0] for prompt in prompts] == ["x", "y"] and [prompt.answer for prompt in prompts] == ["1", "2"]
    assert csv.field_size_limit() == before


def test_reference_answers_of_math_are_read_once_at_load(tmp_path):
    pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": "x", "answer": r"2\pi"}, {"prompt": "y", "answer": r"\frac{1}{2}"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("dataset", {"path": str(path), "verifier": "math"})
    for prompt in task.train_prompts + task.eval_prompts:
        assert task.verify(task.right_completion(prompt), prompt.answer)  # type: ignore[attr-defined]
    with path.open("a") as lines:
        lines.write('{"prompt": "z", "answer": "((((("}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl, line 3: answer '\(+' does not parse .*: fix or drop"):
        make_task("dataset", {"path": str(path), "verifier": "math"})


@pytest.fixture
def no_network(monkeypatch):
    """No HF_HUB_OFFLINE, no proxy, and no hub to be reached."""

    def refused(*_args, **_options):
        raise OSError("network is unreachable")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.create_connection", refused)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_data_set_of_a_hub_out_of_reach_is_refused_at_once(no_network):
    with pytest.raises(UsageError, match=r"hub:nobody/nothing: is not available .*\(https://.* cannot be reached\)"):
        make_task("dataset", {"path": "hub:nobody/nothing"})
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_data_set_in_the_cache_needs_no_hub(no_network, monkeypatch):
    asked = []

    def load_dataset(name, config, *, split, revision):
        asked.append((name, config, split, revision, datasets.config.HF_HUB_OFFLINE))
        return [{"question": f"{n}?", "answer": str(n)} for n in range(5)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    task = make_task("dataset", {"path": "hub:a/b:main@v1", "split": "test"})
    assert len(task.train_prompts) == 4
    assert asked == [("a/b", "main", "test", "v1", True)]


def test_a_missing_data_set_is_not_looked_for_on_the_hub():
    with pytest.raises(UsageError, match="no such file; a data set on the hub is written hub:name"):
        make_task("dataset", {"path": "openai/gsm8k"})


TASK_FILE = """
from lossbench.tasks.base import Prompt
from lossbench.tasks.verifiers import make_verifier

class Echo:
    name = "echo"
    shortest_answer_tokens = 2

    def __init__(self, words=2):
        self.train_prompts = [Prompt(i, f"say {i}", str(i)) for i in range(words)]
        self.eval_prompts = self.train_prompts

    def verify(self, completion, answer):
        return completion == answer

    def reward(self, correct, terminated, length_tokens):
        return float(correct)

class Raises(Echo):
    def verify(self, completion, answer):
        return {"0": 7}[completion]

class Counts(Raises):
    def __init__(self):
        super().__init__()
        self.verifier = make_verifier("numeric")

class Half:
    name = "half"

class Broken:
    def __init__(self):
        raise RuntimeError("no luck")
"""


def test_a_users_own_file_is_a_task(tmp_path):
    path = tmp_path / "mytask.py"
    path.write_text(TASK_FILE)
    task = make_task(f"{path}:Echo", {"words": 3})
    assert task.train_prompts[2] == Prompt(2, "say 2", "2")
    for attribute, words in [
        ("Ech", "did you mean 'Echo'"),
        ("Half", "lacks train_prompts"),
        ("Broken", "RuntimeError: no luck"),
    ]:
        with pytest.raises(UsageError, match=words):
            make_task(f"{path}:{attribute}")
    with pytest.raises(UsageError, match="no such file"):
        make_task("nowhere.py:Task")
    with pytest.raises(UsageError, match="say which class"):
        make_task(str(path))


@pytest.mark.parametrize(("attribute", "name"), [("Raises", "mytask.py:Raises"), ("Counts", "numeric")])
def test_an_error_in_a_users_own_verify_is_a_wrong_answer_counted_and_logged(tmp_path, caplog, attribute, name):
    path = tmp_path / "mytask.py"
    path.write_text(TASK_FILE)
    task = make_task(f"{path}:{attribute}", {})
    assert task.verify("0", "0") is True
    assert task.verifier.errors == 0  # type: ignore[attr-defined]
    assert [task.verify("1", "1") for _ in range(5)] == [False] * 5
    assert task.verifier.errors == 5 and task.verifier.name.endswith(name)  # type: ignore[attr-defined]
    assert len(caplog.records) == 3 and "counted as wrong: KeyError: '1'" in caplog.text
    assert (task.name, task.shortest_answer_tokens, task.reward(True, True, 2)) == ("echo", 2, 1.0)


def test_reasoning_gym_uses_the_generators_own_scorer():
    pytest.importorskip("reasoning_gym", reason="the `tasks` extra is not installed")
    task = make_task("reasoning-gym:leg_counting", {"train_size": 4, "eval_size": 2})
    prompt = task.train_prompts[0]
    assert task.verify(task.right_completion(prompt), prompt.answer)  # type: ignore[attr-defined]
    assert not task.verify("no idea", prompt.answer)
    with pytest.raises(UsageError, match="unknown reasoning-gym generator 'leg_countin': did you mean 'leg_counting'"):
        make_task("reasoning-gym:leg_countin")


def test_the_command_lists_tasks_and_shows_how_one_judges(tmp_path):
    listed = CliRunner().invoke(app, ["tasks", "-f", "json"])
    assert {"selfcheck", "reasoning-gym:NAME", "file.py:Task"} <= {row["task"] for row in json.loads(listed.stdout)}
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"[b]{n}[/b]?", "answer": f"#### {n}"}) + "\n" for n in range(9)))
    for arguments in (
        ["selfcheck"],
        ["arithmetic", "--set", "task_params.digits=2", "--set", "task_params.form=few-shot"],
        ["countdown"],
        ["--dataset", str(path), "--verifier", "numeric"],
    ):
        shown = CliRunner().invoke(app, ["tasks", *arguments, "--show", "2", "-f", "json"])
        assert shown.exit_code == 0, shown.output
        rows = json.loads(shown.stdout)
        assert len(rows) == 2
        for row in rows:
            assert (row["reward_right"], row["reward_cut"], row["reward_wrong"]) == (1.0, 0.0, 0.0), row
            assert row["right"] != row["wrong"]
    table = CliRunner().invoke(app, ["tasks", "--dataset", str(path)])
    assert "[b]" in table.stdout  # a prompt is text, not markup
    refused = CliRunner().invoke(app, ["tasks", "arithmetic", "--set", "digits"])
    assert isinstance(refused.exception, UsageError) and "written --set task_params.digits" in str(refused.exception)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("arithmetic", {"digits": 16}, "digits=16; valid: 1 <= digits <= 15"),
        ("arithmetic", {"shots": 0}, "shots=0; valid: shots >= 1"),
        ("arithmetic", {"train_size": 2.5}, "train_size=2.5; valid: a value of type int"),
        ("arithmetic", {"form": 3}, "form=3; valid: plain, few-shot, chat"),
        ("countdown", {"largest": 2}, "largest=2, numbers=3; valid: largest >= numbers"),
        ("countdown", {"chat": "maybe"}, "chat='maybe'; valid: a value of type bool"),
        ("dataset", {"path": "a.jsonl", "eval_size": "few"}, "eval_size='few'; valid: a value of type int"),
        ("selfcheck", {"overlong_max_tokens": "x"}, "overlong_max_tokens='x'; valid: a value of type int"),
    ],
)
def test_a_parameter_out_of_range_names_the_range(name, params, words):
    with pytest.raises(UsageError, match=re.escape(f"task '{name}': {words}")):
        make_task(name, params)


def test_a_number_too_long_to_compare_is_refused_as_what_it_is(tmp_path):
    file = tmp_path / "data.jsonl"
    rows = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "7" * 5000}]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match=r"line 2: .* holds a number of 5,000 digits, valid: at most 400"):
        make_task("dataset", {"path": str(file)})
