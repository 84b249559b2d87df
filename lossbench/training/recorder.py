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
        self._writer, self._labels, self._keep_text, self._on_step = writer, labels, keep_text, on_step
        self._unused: dict[int, Rollout] = {}
        self._sampled: list[Rollout] = []

    def begin_generation(self, first_row: int, rollouts: Sequence[Rollout]) -> None:
        """A sampling round gave these completions, whose rows are numbered from `first_row`."""
        self._unused.update(enumerate(rollouts, first_row))
        self._sampled.extend(rollouts)

    def use_rows(self, step: int, term_of_row: Mapping[int, float], scalar: float) -> None:
        """Write the rows that are used for the first time, with the step and their weight (row term times `scalar`)."""
        fresh = [row for row in sorted(term_of_row) if row in self._unused]
        rows = [
            {"step": step, "token_weight": term_of_row[row] * scalar, **vars(self._unused.pop(row))} for row in fresh
        ]
        if rows:
            self.append("rollouts", step, rows)

    def end_step(self, stats: StepStats) -> None:
        """Write the step's row."""
        sampled, self._sampled = self._sampled, []
        row = {**step_row(stats), **(sampling_row(sampled) if sampled else {})}
        self.append("steps", stats.step, [row])
        if self._on_step:
            self._on_step(stats.step, row.get("reward_mean"), row.get("length_mean"))

    def append(self, table: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows with the run's labels, and their prompts and completions only where texts are kept."""
        hidden = {} if self._keep_text or table == "steps" else {"prompt": None, "completion": None}
        self._writer.append(table, step, [{**self._labels, **row, **hidden} for row in rows])
