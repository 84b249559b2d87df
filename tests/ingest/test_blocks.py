"""Tables of completions are read in blocks, and what is read does not depend on where a block ends."""

import random

import pandas as pd
import pytest
from support.logs import lines, read, written

from lossbench.store.read import load


@pytest.mark.parametrize("bytes_at_once", [1, 1 << 20])
def test_columns_that_begin_late_count_row_by_row(bytes_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr("lossbench.ingest.reading.BLOCK_BYTES", bytes_at_once)
    rows = [
        {"step": 1, "prompt": "p", "response": "a"},
        {"step": 1, "prompt": "q", "response": "b"},
        {"step": 1, "prompt": "p", "completion": "c", "group": float("nan")},
        {"step": 1, "prompt": "p", "completion": "d", "group": 0.0},
        {"step": 1, "prompt": "q", "completion": "e", "group": 0.0},
    ]
    read(written(tmp_path / "grpo-s0.jsonl", lines(*rows)), tmp_path / "out", kind="csv")
    found = load(tmp_path / "out").table("rollouts")
    assert found["completion"].tolist() == [*"abcde"]
    # A row without a group's name belongs to that of its prompt.
    assert found["group"].tolist() == [0, 1, 0, 2, 2] and found["sample"].tolist() == [0, 0, 1, 0, 1]


def random_row(draw, columns):
    """A row as someone might have logged it: mostly sound, out of order, here and there a cell of another kind."""
    usual = {
        "mode": ["grpo", "dapo"], "seed": [0, 1], "step": [1, 2, 3], "prompt": ["q1", "q2", None], "group": ["a", None],
        "completion": ["a b", "é 一", ""], "reward": [0, 1, 0.5], "correct": [True, False], "length": [1, 5, None],
    }  # fmt: skip
    odd = {"step": ["x", None, "2", 1.5, 1e300], "reward": ["0.5", None, True], "correct": ["yes", 0.3], "seed": ["b"]}
    return {name: draw.choice(odd.get(name, usual[name]) if draw.random() < 0.05 else usual[name]) for name in columns}


@pytest.mark.parametrize("number", range(12))
def test_what_is_read_does_not_depend_on_where_blocks_end(number, tmp_path, monkeypatch):
    draw = random.Random(number)
    some = [name for name in ("prompt", "group", "reward", "correct", "length") if draw.random() < 0.6]
    axes = ["mode", "seed"] if number % 2 else []
    rows = [random_row(draw, [*axes, "step", "completion", *some]) for _ in range(draw.randint(1, 250))]
    path = written(tmp_path / "grpo-s0.jsonl", lines(*rows[:100]) + "torn\n" + lines(*rows[100:]))
    whole = read(path, tmp_path / "whole", kind="csv", mode=None, seed=None)
    monkeypatch.setattr("lossbench.ingest.reading.BLOCK_BYTES", 3000)
    monkeypatch.setattr("lossbench.ingest.staging.ROWS_AT_ONCE", 7)
    pieces = read(path, tmp_path / "pieces", kind="csv", mode=None, seed=None)
    assert pieces.damage.count == whole.damage.count and pieces.runs.keys() == whole.runs.keys()
    for table in ("rollouts", "steps"):
        one, other = (load(tmp_path / name).table(table) for name in ("whole", "pieces"))
        pd.testing.assert_frame_equal(one, other)
