"""What works without the training libraries, and the one line of what does not."""

import subprocess
import sys

import pytest

BLOCK = """
import importlib.util, sys
HIDDEN = ("trl", "transformers", "accelerate", "datasets")
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Hide())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else real(name, package)
from lossbench.cli import main
sys.argv = ["lossbench", *sys.argv[1:]]
main()
"""


def without_training_libraries(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", BLOCK, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments", [("sweep", "--dry-run"), ("doctor",), ("probe", "--batches", "2"), ("reproduce", "--smoke")]
)
def test_training_commands_say_what_to_install(arguments: tuple[str, ...], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = without_training_libraries(*arguments)
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert (
        "needs trl, transformers, accelerate, datasets: pip install 'lossbench[train]'" in found.stderr.splitlines()[-1]
    )
    assert not list(tmp_path.iterdir())


def test_the_others_work(tmp_path) -> None:
    (tmp_path / "grpo-s0.csv").write_text(
        "step,reward,length\n" + "".join(f"{step},0.5,{20 + step}\n" for step in range(1, 61))
    )
    (tmp_path / "mine.py").write_text("def loss(loss_mat, mask):\n    return (loss_mat * mask).sum() / mask.sum()\n")
    out = str(tmp_path / "out")
    for arguments, words in [
        (("modes", "dr_grpo"), "1/(N·H)"),
        (("weights", "--lengths", "10,100"), "token_weight"),
        (("identify", f"{tmp_path / 'mine.py'}:loss"), "token-mean"),
        (("ingest", str(tmp_path / "grpo-s0.csv"), "--mode", "grpo", "--out", out), "grpo"),
        (("diagnose", out), "grpo"),
        (("report", out), ""),
    ]:
        found = without_training_libraries(*arguments)
        assert found.returncode in (0, 1) and "Traceback" not in found.stderr, found.stderr
        assert words in found.stdout
