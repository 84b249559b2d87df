"""The record of one run: a row per optimizer step, a row per completion."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lossbench.store.step_row import Rollout, StepStats, sampling_row, step_row
from lossbench.store.write import PartWriter


class Recorder:
    """Writer of the part files of a run; `on_step(step, reward_mean, length_mean)` is called after each step."""

    def __init__(
        self,
        writer: PartWriter,
        labels: Mapping[str, Any],
        *,
        keep_text: bool = True,
        on_step: Callable[[int, float | None, float | None], None] | None = None,
    ) -> None:
        self.writer = writer
        self.labels = dict(labels)
        self.keep_text = keep_text
        self.on_step = on_step
        self._unused: dict[int, Rollout] = {}
        self._sampled: list[Rollout] = []

    def begin_generation(self, first_row: int, rollouts: Sequence[Rollout]) -> None:
        """A sampling round gave these completions, whose rows are numbered from `first_row`."""
        self._unused.update(enumerate(rollouts, first_row))
        self._sampled.extend(rollouts)

    def use_rows(self, step: int, term_of_row: Mapping[int, float], scalar: float) -> None:
        """Write the rows that are used for the first time, with the step and their weight (row term times `scalar`)."""
        fresh = [row for row in sorted(term_of_row) if row in self._unused]
        rows = [self._row(step, self._unused.pop(row), term_of_row[row] * scalar) for row in fresh]
        if rows:
            self._append("rollouts", step, rows)

    def end_step(self, stats: StepStats) -> None:
        """Write the step's row."""
        sampled, self._sampled = self._sampled, []
        row = {**step_row(stats), **(sampling_row(sampled) if sampled else {})}
        self._append("steps", stats.step, [row])
        if self.on_step:
            self.on_step(stats.step, row.get("reward_mean"), row.get("length_mean"))

    def _row(self, step: int, rollout: Rollout, weight: float) -> dict[str, Any]:
        text = {} if self.keep_text else {"prompt": None, "completion": None}
        return {"step": step, "token_weight": weight, **rollout.__dict__, **text}

    def _append(self, table: str, step: int, rows: list[dict[str, Any]]) -> None:
        self.writer.append(table, step, [{**self.labels, **row} for row in rows])
