"""What TRL's and ms-swift's tables have in common: which columns are the reward, and messages as text."""

import pytest
from support.logs import completions, notes, read, state, written

from lossbench.ingest.trainer_logs import message_text
from lossbench.store.read import load


def logged(reward, *names):
    return {"step": 1, "loss": 0.1, "reward": reward} | {f"rewards/{name}/mean": 0.5 for name in names}


ONE, HALF = [1.0, 0.0], [1.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "log", "mapped", "rewards", "noted"),
    [
        # What a step log names is the reward, whatever else has numbers, and whatever a function is called.
        ({"acc": ONE, "n": [9, 9]}, logged(0.5, "acc"), {}, ONE, None),
        ({"reward": ONE, "form": HALF}, logged(1.5, "reward", "form"), {}, [2.0, 1.0], "plain sum of reward, form"),
        ({"accuracy": ONE, "f": HALF}, logged(1.5, "accuracy", "f"), {}, [2.0, 1.0], "plain sum of accuracy, f"),
        ({"acc": ONE, "form": HALF}, logged(0.7, "acc", "form"), {}, [2.0, 1.0], "(1.5 vs 0.7 at step 1)"),
        ({"acc": ONE, "form": HALF}, logged(0.5, "acc", "form"), {"reward": "acc"}, ONE, None),
        # Without such a log: a column of that name, else the columns of numbers that are nothing else.
        ({"reward": ONE, "form": HALF}, None, {}, ONE, None),
        ({"acc": ONE, "n": [120, 300]}, None, {"length": "n"}, ONE, "reward is acc: no log of the steps names"),
        ({"correct": ONE, "form": HALF}, None, {}, HALF, "reward is form: no log"),
        ({"mine": ONE, "form": HALF}, None, {"correct": "mine"}, HALF, "reward is form: no log"),
        ({"accuracy_reward": ONE, "form": HALF}, None, {}, [2.0, 1.0], "plain sum of accuracy_reward, form: no log"),
        ({"accuracy": ONE}, None, {}, ONE, "reward is accuracy: no log"),
        ({"said": ["x", "y"], "ok": [True, False]}, None, {}, None, None),
    ],
)  # fmt: skip
def test_which_columns_are_the_reward(columns, log, mapped, rewards, noted, tmp_path):
    completions(tmp_path / "run" / "completions", 1, **columns)
    written(tmp_path / "run" / "trainer_state.json", state(*([log] if log else [])))
    result = read(tmp_path / "run", tmp_path / "out", columns=mapped)
    found = load(tmp_path / "out").rollouts["reward"]
    assert found.isna().all() if rewards is None else found.tolist() == rewards
    said = [note for note in notes(result).split(" | ") if "reward" in note and "correct" not in note]
    assert (noted in " ".join(said)) if noted else not said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", ""),
        ([], ""),
        ({"content": None}, None),
        ({"content": [{"text": "a"}, {"text": "b"}]}, "a\nb"),
        ([{"content": "a"}, {"content": None}, {"content": ["b", ["c"]]}, 7], "a\nb\nc\n7"),
    ],
)
def test_messages_as_text(value, text):
    assert message_text(value) == text
    deep = "end"
    for _ in range(100_000):
        deep = [deep]
    assert message_text(deep) == "end"
