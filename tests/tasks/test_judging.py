"""Rewards and verdicts are checked where they enter, whatever task they are of."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossbench.errors import UsageError
from lossbench.tasks import make_task
from lossbench.tasks.judging import checked_reward, checked_verdict, judge
from lossbench.tasks.selfcheck import SelfCheck


class Odd(SelfCheck):
    """A task whose verdicts and rewards are what a test says."""

    name = "odd"

    def __init__(self, verdict: Any = True, reward: Any = 1.0) -> None:
        super().__init__()
        self.verdict, self.given = verdict, reward

    def verify(self, completion: str, answer: str) -> Any:
        return self.verdict

    def reward(self, correct: Any, terminated: bool, length_tokens: int) -> Any:
        return self.given


async def _later() -> float:
    return 1.0


def _judged(task: Any) -> dict[str, Any]:
    return judge(task, "1+2=", "30", "30", [5, 4, 1], [1])


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        (1, 1.0), (True, 1.0), (0.25, 0.25), (np.float32(0.5), 0.5), (np.int64(-2), -2.0), (np.bool_(True), 1.0),
        (Fraction(1, 4), 0.25), (None, None), (math.nan, None), (np.float64("nan"), None), (torch.tensor(0.5), 0.5),
    ],
)  # fmt: skip
def test_a_number_is_a_reward_and_none_or_nan_is_none(given: Any, reward: float | None) -> None:
    found = _judged(Odd(reward=given))["reward"]
    assert found == reward and type(found) in (float, type(None))


@pytest.mark.parametrize(
    "given",
    [math.inf, -math.inf, 10**400, "1.0", {"reward": 1}, [1.0], np.ones(2), torch.ones(1), Decimal(1), 1j, object()],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_naming_task_and_value(given: Any) -> None:
    with pytest.raises(UsageError, match=r"task 'odd': reward is .*valid: a finite number, or None") as caught:
        _judged(Odd(reward=given))
    assert repr(given).split("\n")[0][:20] in str(caught.value) and len(str(caught.value)) < 160


def test_an_async_reward_is_refused_on_the_first_row() -> None:
    waiting = _later()
    with pytest.raises(UsageError, match="reward is <coroutine object"):
        _judged(Odd(reward=waiting))
    waiting.close()


@pytest.mark.parametrize(
    ("given", "correct"),
    [(True, True), (0, False), (7, True), (np.bool_(False), False), (1.0, True), (None, None), (math.nan, None)],
)
def test_a_verdict_is_true_false_or_none(given: Any, correct: bool | None) -> None:
    assert _judged(Odd(verdict=given))["correct"] is correct


@pytest.mark.parametrize("given", ["no", 0.5, [True], {}, math.inf])
def test_any_other_verdict_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"task 'odd': verify returned .*valid: True, False, or None"):
        _judged(Odd(verdict=given))


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_float_is_itself_none_or_refused(value: float) -> None:
    if math.isinf(value):
        with pytest.raises(UsageError):
            checked_reward("t", value)
    else:
        assert checked_reward("t", value) == (None if math.isnan(value) else value)


def test_the_border_is_the_same_for_user_tasks_and_those_with_a_penalty(tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from lossbench.tasks.selfcheck import SelfCheck\n"
        "class Mine(SelfCheck):\n"
        "    def __init__(self, gives='inf'):\n"
        "        super().__init__()\n"
        "        self.gives = gives\n"
        "    def verify(self, completion, answer):\n"
        "        return None\n"
        "    def reward(self, correct, terminated, length_tokens):\n"
        "        return float(self.gives)\n"
        "class Later(Mine):\n"
        "    async def reward(self, *_):\n"
        "        return 1.0\n"
        "class Silent(Mine):\n"
        "    def reward(self, *_):\n"
        "        return None\n"
    )
    with pytest.raises(UsageError, match="reward is asynchronous"):
        make_task(f"{path}:Later")
    assert _judged(make_task(f"{path}:Silent", {"overlong_max_tokens": 1}))["reward"] is None
    for penalty in ({}, {"overlong_max_tokens": 100}):
        with pytest.raises(UsageError, match="task 'selfcheck': reward is inf"):
            _judged(make_task(f"{path}:Mine", penalty))
        found = _judged(make_task(f"{path}:Mine", {"gives": "nan", **penalty}))
        assert (found["correct"], found["reward"]) == (None, None)
    assert checked_verdict("t", None) is None
