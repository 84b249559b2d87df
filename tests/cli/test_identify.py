"""`lossbench identify` on files of loss functions."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lossbench.cli import app
from lossbench.errors import UsageError

CODE = """
def loss(loss_mat, mask):
    return (loss_mat * mask).sum() / mask.sum()

def positional(a, b, scale):
    return scale * ((a * b).sum(-1) / b.sum(-1)).mean()
"""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["identify", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_a_function_is_named_with_its_scope(code: Path) -> None:
    lines = run(f"{code}:loss").splitlines()
    assert lines[0] == "token-mean"
    assert "over several micro-batches it is micro-token-mean" in lines[1]


def test_an_expression_adapts_a_function(code: Path) -> None:
    (row,) = json.loads(run(f"{code}:positional", "--call", "loss(loss_mat, mask, 2.0)", "--format", "json"))
    # Twice the mean over sequences of their token means.
    assert (row["agg_mode"], row["factor"]) == ("seq-mean-token-mean", "2")


@pytest.mark.parametrize(
    ("flag", "settings", "mode"),
    [
        ("--trl", {"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr_grpo"),
        ("--trl", {"loss_type": "dr_grpo"}, "grpo@seq-mean-token-sum-norm/group"),
        ("--swift", {"loss_type": "grpo", "importance_sampling_level": "sequence"}, "gspo"),
        (
            "--verl",
            {
                "algorithm": {"norm_adv_by_std_in_grpo": False},
                "actor_rollout_ref": {"actor": {"loss_agg_mode": "seq-mean-token-sum-norm"}},
            },
            "dr_grpo",
        ),
    ],
)
def test_settings_are_named(tmp_path: Path, flag: str, settings: dict, mode: str) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert run(flag, str(tmp_path / "settings.json")).startswith(f"{mode} =")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of"),
        (["--trl", "{code}"], "names no loss mode"),
        (["nowhere.py:loss"], "no such file"),
        (["{code}"], "say which class or function"),
        (["{code}:losss"], "losss"),
        (["{code}:positional"], "parameter 'a' is not known"),
        (["{code}:loss", "--call", "loss("], "is not an expression"),
        (["{code}:loss", "--call", "loss(nothing)"], "NameError"),
    ],
)
def test_a_mistake_is_one_line(code: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["identify", *(a.format(code=code) for a in arguments)], catch_exceptions=False)


@pytest.mark.slow
def test_a_log_names_the_mode_that_trained_it():
    lines = run("results/reference/boundaries").splitlines()
    assert sum("grpo@seq-mean-token-sum-norm/none with H = 128" in line for line in lines) == 8
    assert sum("grpo@seq-mean-token-sum-norm/none with H = 18:" in line for line in lines) == 4
    assert sum("a per-sequence mean" in line for line in lines) == 16
