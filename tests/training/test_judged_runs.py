"""A run on a task that does not judge every completion: what it trains on, counts and says."""

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.sweeps import quick_run

from lossbench.errors import UsageError
from lossbench.training.run import execute

TASK = """
from lossbench.tasks.selfcheck import SelfCheck

class Odd(SelfCheck):
    name = "odd"

    def __init__(self, reward="0.5", verdict="True"):
        super().__init__()
        self.given, self.verdict, self.calls = eval(reward), eval(verdict), 0

    def verify(self, completion, answer):
        return self.verdict

    def reward(self, correct, terminated, length_tokens):
        self.calls += 1
        return self.given if self.calls % 4 == 1 else float(self.calls % 3)

class Raises(Odd):
    def verify(self, completion, answer):
        raise KeyError(answer)
"""
ROWS = 2 * 8  # two steps


def _run(tmp_path: Path, name: str, **params: str) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    (tmp_path / "mine.py").write_text(TASK)
    spec = quick_run(task=f"{tmp_path / 'mine.py'}:{name}", task_params=params, steps=2)
    execute(spec, tmp_path / "run")
    tables = (pd.read_parquet(tmp_path / "run" / f"{table}.parquet") for table in ("steps", "rollouts"))
    return json.loads((tmp_path / "run" / "run.json").read_text()), *tables


@pytest.mark.parametrize("given", ["float('nan')", "None"])
def test_rows_without_a_reward_are_left_out_counted_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    run, steps, rollouts = _run(tmp_path, "Odd", reward=given)
    assert (run["unrewarded"], run["unjudged"], run["verifier_errors"]) == (ROWS // 4, 0, 0)
    assert rollouts["reward"].isna().sum() == ROWS // 4
    assert (rollouts.loc[rollouts["reward"].isna(), "advantage"] == 0).all()
    # of eight rows the first and fifth have none; the others' rewards are their number modulo 3: 2 0 1 | 0 1 2
    assert steps["reward_mean"].iloc[0] == pytest.approx(1.0)
    assert f"warning: {ROWS // 4} completions have no reward" in capsys.readouterr().err


def test_completions_without_a_verdict_are_neither_right_nor_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, steps, rollouts = _run(tmp_path, "Odd", verdict="None")
    assert (run["unjudged"], run["unrewarded"]) == (ROWS, 0)
    assert rollouts["correct"].isna().all()
    assert steps["length_correct"].isna().all() and steps["length_incorrect"].isna().all()
    assert f"warning: {ROWS} completions have no verdict" in capsys.readouterr().err


def test_a_verifier_that_raises_on_every_row_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _, rollouts = _run(tmp_path, "Raises")
    assert run["verifier_errors"] == ROWS and not rollouts["correct"].any()
    assert f"warning: the verifier itself failed on {ROWS} completions" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["float('inf')", "{'reward': 1}", "'1.0'"])
def test_a_reward_that_is_no_number_ends_the_run_naming_task_and_value(tmp_path: Path, given: str) -> None:
    with pytest.raises(UsageError, match=r"task 'odd': reward is .*valid: a finite number, or None"):
        _run(tmp_path, "Odd", reward=given)
    reason = json.loads((tmp_path / "run" / "run.json").read_text())["reason"]
    assert reason.startswith("task 'odd': reward is ") and "\n" not in reason


def test_a_log_does_not_begin_with_notices_on_names_of_libraries(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _run(tmp_path, "Odd")
    assert [str(warning.message) for warning in told if issubclass(warning.category, FutureWarning)] == []


def test_the_task_s_forced_tokens_are_recorded(tmp_path: Path) -> None:
    assert _run(tmp_path, "Odd")[0]["forced_tokens"] == 2
