"""Any terminal, locale and platform: ASCII and closed outputs, UTF-8 files, an unwritable home, no telemetry."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sweeps import planned, quick_recipe

import lossbench
from lossbench.cli._output import print_table
from lossbench.errors import UsageError
from lossbench.sweep.run import RunOptions, plan_recipe, run_planned
from lossbench.sweep.schedule import Watch

PACKAGE = Path(lossbench.__file__).parent


def run(*arguments, stdout=subprocess.PIPE, **environment):
    command = [sys.executable, "-m", "lossbench", *map(str, arguments)]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=os.environ | environment, cwd=PACKAGE.parent
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_narrow_encoding_gets_plain_characters(encoding):
    shown = run("modes", "dr_grpo", PYTHONIOENCODING=encoding)
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout.decode(encoding)
    assert "Traceback" not in shown.stderr.decode(encoding) and "dr_grpo" in text
    wide = run("modes", "dr_grpo", PYTHONIOENCODING="utf-8").stdout.decode()
    assert not wide.isascii() and len(text.splitlines()) == len(wide.splitlines())


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault(closed):
    command = f"{sys.executable} -m lossbench recipes {closed}"
    assert subprocess.run(command, shell=True, capture_output=True, cwd=PACKAGE.parent).returncode == 0


def test_a_recipe_with_an_accent_is_read_in_any_locale(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('description = "é"\nmodes = ["grpo"]\nseeds = 1\n', encoding="utf-8")
    shown = run("sweep", path, "--dry-run", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert shown.returncode == 0, shown.stderr


def test_every_text_file_is_opened_as_utf_8():
    careless = []
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            is_text = name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)
            is_text |= name == "open" and any(set(text) <= set("rwxa+t") for text in texts if text)
            if is_text and "encoding" not in {keyword.arg for keyword in call.keywords}:
                careless.append(f"{path.relative_to(PACKAGE)}:{call.lineno}")
    assert careless == []


def test_control_codes_and_formulas_do_not_reach_the_terminal_or_a_spreadsheet(capsys):
    rows = [{"name": "=1+2\x1b]0;title\x07", "other": "a\u202eb\x9b2J"}]
    for format in ("table", "md", "csv", "json"):
        print_table(rows, None, format)
        printed = capsys.readouterr().out
        assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert "\\u001b]0;title" in printed and "\\u202e" in printed
        assert "'=1+2" in printed or format != "csv"


def test_an_unwritable_home_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    arguments = ("sweep", "--modes", "grpo", "--seeds", "1", "--out", tmp_path / "out")
    refused = run(*arguments, LOSSBENCH_CACHE="", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.decode().splitlines() if line.startswith("error: ")]
    assert "cannot write to the cache" in line and "set LOSSBENCH_CACHE" in line


def test_without_fcntl_everything_but_training_works(tmp_path, monkeypatch):
    runs = planned(tmp_path / "sweep", quick_recipe())
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import lossbench, lossbench.cli, lossbench.api\n"
        f"print(lossbench.load({str(tmp_path / 'sweep')!r}).runs['status'].tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.stdout.strip() == str(["pending"] * len(runs)), shown.stderr
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="need Linux, macOS or WSL"):
        run_planned(plan_recipe(quick_recipe(), RunOptions(out=tmp_path / "other")), Watch())
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("first", ["huggingface_hub.constants", "lossbench"])
def test_telemetry_is_off_whatever_is_imported_first(first):
    code = (
        f"import {first}, lossbench; from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_DISABLE_TELEMETRY"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert shown.stdout.strip() == "True", shown.stderr
