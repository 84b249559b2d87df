"""Pages stay true: generated parts are current, links and files exist, commands parse, programs run."""

import os
import re
import string
import subprocess
import sys
from unittest import mock

import pytest
import typer
from support.readme import BLOCKS, DOCS, README, ROOT, block, commands, names, pages, programs

from lossbench.cli import app
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer

PAGES = {page.name: page for page in pages()}
GENERATED = [(page, name) for page, path in PAGES.items() for name in names(path.read_text())]
COMMANDS = [(page, words) for page, path in PAGES.items() for words in commands(path.read_text())]
CHECKED = ("README.md", "modes.md")
RUNNABLE = ("modes", "weights", "recipes", "tasks")  # need neither a model nor results


@pytest.mark.parametrize(("page", "name"), GENERATED)
def test_generated_parts_are_current(page, name):
    assert block(PAGES[page].read_text(), name) == BLOCKS[name](), "run: python tests/support/readme.py"


def test_every_generated_part_is_on_a_page():
    assert {name for _, name in GENERATED} == set(BLOCKS)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_somewhere(page):
    path = PAGES[page]
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not target.startswith("https://"):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_files_it_names_exist(page):
    text = PAGES[page].read_text()
    for name in re.findall(r"(?<![\w/.-])((?:\w+/)+(?:\w+\.py)?)(?=[\s`,;:])", text):
        known = any((root / name).exists() for root in (ROOT, ROOT / "lossbench"))
        assert known or name.split("/")[0] in ("results", "rollouts", "runs", "figures"), name


def test_readme_links_every_page():
    text = README.read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"(lossbench/docs/{page.name})" not in text] == []


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_commands_parse(page, words):
    group = typer.main.get_command(app)
    command = group.commands[words[0]]
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("words", [w for page, w in COMMANDS if w[0] in RUNNABLE and page in CHECKED], ids=" ".join)
def test_commands_that_need_nothing_run(words, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, words).exit_code == 0


def test_programs_of_the_schema_page_run():
    for program in programs(PAGES["schema.md"].read_text()):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "dr_grpo" in done.stdout


@pytest.fixture(scope="module")
def your_own(tmp_path_factory):
    """Output of every program and command of your-own.md, run in order in one folder; programs by file name."""
    folder = tmp_path_factory.mktemp("your-own")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOSSBENCH_CACHE": str(folder / "cache")}
    (folder / "results").symlink_to(ROOT / "results")
    _save_policy(folder / "my-policy")
    said = {}
    for part in re.findall(r"^```(?:python|console)\n.*?^```$", PAGES["your-own.md"].read_text(), re.M | re.S):
        for program in programs(part):
            name = re.match(r"# (\w+\.py)\n", program)[1]
            (folder / name).write_text(program)
            said[name] = _output([sys.executable, name], folder, environment)
        for words in commands(part):
            said[" ".join(words)] = _output([sys.executable, "-m", "lossbench", *words], folder, environment)
    return said


def _save_policy(folder):
    """A random policy over printable characters."""
    with mock.patch("lossbench.policies.tiny.ALPHABET", string.printable):
        tokenizer = make_tokenizer()
    make_model(TinyPolicy(layers=1), len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _output(words, folder, environment):
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_task_of_your_own_is_shown_with_its_rewards(your_own):
    shown = your_own["tasks mytask.py:Parity --show 2"]
    assert "Is 0 even?" in shown and "Is 1 even?" in shown


@pytest.mark.slow
def test_an_aggregation_of_your_own_weighs_rows(your_own):
    name, _, weights = your_own["aggregation.py"].partition(" ")
    assert name == "grpo@root-length/none"
    assert eval(weights) == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.slow
def test_a_claim_of_your_own_is_judged(your_own):
    # late correct length of the committed runs: dr_grpo 18.55 - grpo 7.825 = 10.73, interval [8.2, 13.3]
    assert your_own["claim.py"].strip() == "supported 10.7 tokens [8.2, 13.3]"


@pytest.mark.slow
def test_a_sweep_from_python_trains_both_modes(your_own):
    line, _, table = your_own["sweep.py"].partition("\n")
    assert line == "<Sweep 'parity': grpo, grpo@prompt-mean/group; 2 of 2 runs completed>"
    assert [row.split()[1:3] for row in table.splitlines()[1:]] == [
        ["grpo", "1"], ["grpo", "2"], ["grpo@prompt-mean/group", "1"], ["grpo@prompt-mean/group", "2"],
    ]  # fmt: skip


@pytest.mark.slow
def test_a_script_that_is_watched_can_be_diagnosed(your_own):
    assert "dapo" in your_own["diagnose watched"]


@pytest.mark.slow
def test_a_loss_function_is_identified(your_own):
    assert your_own["identify my_loss.py:loss"].startswith("seq-mean-token-mean")


@pytest.mark.slow
def test_a_script_trains_under_any_mode(your_own):
    assert your_own["mode_train.py"].splitlines()[-1] == "grpo@prompt-mean/none 2"


@pytest.mark.slow
def test_a_log_format_of_your_own_is_read(your_own):
    row = your_own["runs ingested"].splitlines()[-1]
    assert "grpo" in row and "44.5" in row


@pytest.mark.slow
def test_a_surrogate_of_your_own_has_its_constant(your_own):
    # ratios 2 and 1, squared, times an advantage of 1, with the sign turned
    assert eval(your_own["surrogate.py"]) == [pytest.approx([-4.0, -1.0])]
