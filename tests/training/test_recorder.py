"""Recorded rows: each completion once, with the step that first used it and its weight there."""

from typing import Any

from lossbench.store.step_row import Rollout, StepStats
from lossbench.training.recorder import Recorder

STATS = StepStats(
    step=1, loss=0.0, tokens=4, entropy_sum=1.0, clipped_tokens=0.0, kl_sum=None, weight_sum=1.0, grad_norm=0.1, lr=1.0,
    wall_s=1.0,
)  # fmt: skip


class Kept:
    """Stands in for the part writer: rows by table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"rollouts": [], "steps": []}

    def append(self, table: str, step: int, rows: list[dict[str, Any]]) -> None:
        self.rows[table] += rows


def rollout(length: int) -> Rollout:
    return Rollout(
        generation=1, prompt_id=0, group=0, sample=length, length_tokens=length, terminated=True, reward=1.0,
        correct=True, advantage=0.5, prompt="1+1=", completion="20",
    )  # fmt: skip


def test_a_row_is_recorded_once_with_its_term_times_the_scalar():
    kept = Kept()
    recorder = Recorder(kept, {"mode": "dapo"})  # type: ignore[arg-type]
    recorder.begin_generation(10, [rollout(2), rollout(3)])
    recorder.use_rows(1, {10: 2.0}, 0.25)
    recorder.use_rows(2, {10: 2.0, 11: 4.0}, 0.5)
    found = [(row["step"], row["sample"], row["token_weight"]) for row in kept.rows["rollouts"]]
    assert found == [(1, 2, 0.5), (2, 3, 2.0)]


def test_sampling_columns_stand_in_the_step_that_began_the_generation():
    kept, told = Kept(), []
    recorder = Recorder(kept, {}, on_step=lambda *values: told.append(values))  # type: ignore[arg-type]
    recorder.begin_generation(0, [rollout(2), rollout(4)])
    recorder.end_step(STATS)
    recorder.end_step(STATS)
    assert [row.get("length_mean") for row in kept.rows["steps"]] == [3.0, None]
    assert told == [(1, 1.0, 3.0), (1, None, None)]
