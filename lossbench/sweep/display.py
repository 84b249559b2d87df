"""What a sweep shows on stderr while it runs: live bars in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from lossbench.sweep.executors.base import Progress as Step
from lossbench.training.run_spec import RunSpec

_LINE_EVERY_S = 15.0


def make_display(runs: list[RunSpec], quiet: bool) -> "Silent | Live":
    """The display that fits stderr."""
    if quiet:
        return Silent()
    return Live(runs) if sys.stderr.isatty() else Lines(runs)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None: ...
    def started(self, spec: RunSpec) -> None:
        """Nothing."""

    def progressed(self, progress: Step) -> None:
        """Nothing."""

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        """Nothing."""


class _Clock:
    """Time left, from the steps made since this call began: what a run had made before took no time of it."""

    def __init__(self, runs: list[RunSpec]) -> None:
        self.left_of = {spec.run_id: spec.settings.steps for spec in runs}
        self.steps_total = sum(self.left_of.values())
        self.runs_total = len(runs)
        self.runs_ended = 0
        self.began = time.monotonic()
        self._steps = dict(self.left_of)
        self._first: dict[str, int] = {}
        self._made: dict[str, int] = {}

    def progressed(self, run_id: str, step: int) -> None:
        """A run has made this step."""
        self._made[run_id] = step + 1 - self._first.setdefault(run_id, step)
        self.left_of[run_id] = self._steps[run_id] - step

    def ended(self, run_id: str) -> None:
        """A run has ended, whether or not it made all its steps."""
        self.runs_ended += 1
        self.left_of[run_id] = 0

    @property
    def steps_done(self) -> int:
        """Steps that need not be waited for."""
        return self.steps_total - sum(self.left_of.values())

    def left(self) -> str:
        """Estimated time left as m:ss, or a dash before there is anything to go by."""
        made = sum(self._made.values())
        if not made:
            return "-:--"
        seconds = (time.monotonic() - self.began) / made * sum(self.left_of.values())
        return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def _with_last_numbers(step: Step, before: Step | None) -> Step:
    """`step`, with the numbers of the last sampling where it sampled nothing itself."""
    return step if before is None or step.reward_mean is not None else replace(before, step=step.step)


def _numbers(step: Step) -> str:
    reward = "  –  " if step.reward_mean is None else f"{step.reward_mean:.2f}"
    length = " –  " if step.length_mean is None else f"{step.length_mean:.1f}"
    return f"reward {reward}  length {length}"


class Lines(Silent):
    """A plain line for each start and end, and now and then for a run that goes on."""

    def __init__(self, runs: list[RunSpec]) -> None:
        self.clock = _Clock(runs)
        self.last_line: dict[str, float] = {}
        self.latest: dict[str, Step] = {}

    def started(self, spec: RunSpec) -> None:
        """One line."""
        self._say(f"{spec.arm} seed {spec.seed}: started")
        self.last_line[spec.run_id] = time.monotonic()

    def progressed(self, progress: Step) -> None:
        """A line every quarter of a minute and run."""
        self.clock.progressed(progress.run_id, progress.step)
        progress = _with_last_numbers(progress, self.latest.get(progress.run_id))
        self.latest[progress.run_id] = progress
        now = time.monotonic()
        if now - self.last_line.get(progress.run_id, now) > _LINE_EVERY_S:
            self.last_line[progress.run_id] = now
            self._say(f"{progress.run_id}: step {progress.step}  {_numbers(progress)}  left {self.clock.left()}")

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        """One line, with the log of a run that failed."""
        self.clock.ended(spec.run_id)
        latest = self.latest.get(spec.run_id)
        done = f"done  {_numbers(latest)}" if latest else "done"
        text = done if reason is None else f"failed: {reason}; its log: {log}"
        self._say(f"[{self.clock.runs_ended}/{self.clock.runs_total}] {spec.arm} seed {spec.seed}: {text}")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Live:
    """A bar per running run and one for the sweep."""

    def __init__(self, runs: list[RunSpec]) -> None:
        self.clock = _Clock(runs)
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}
        self.latest: dict[str, Step] = {}
        self.all = self.progress.add_task("all runs", total=self.clock.steps_total, numbers="")

    def __enter__(self) -> "Live":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, spec: RunSpec) -> None:
        """A bar of its own."""
        label = Text(f"{spec.arm}  seed {spec.seed}").plain.replace("[", r"\[")
        self.tasks[spec.run_id] = self.progress.add_task(label, total=spec.settings.steps, numbers="starting")

    def progressed(self, progress: Step) -> None:
        """Move the bars."""
        progress = _with_last_numbers(progress, self.latest.get(progress.run_id))
        self.latest[progress.run_id] = progress
        self.clock.progressed(progress.run_id, progress.step)
        self.progress.update(self.tasks[progress.run_id], completed=progress.step, numbers=_numbers(progress))
        self.progress.update(self.all, completed=self.clock.steps_done, numbers=f"left {self.clock.left()}")

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        """A line above the bars."""
        self.progress.remove_task(self.tasks.pop(spec.run_id))
        self.clock.ended(spec.run_id)
        count = f"[{self.clock.runs_ended}/{self.clock.runs_total}]"
        text = "done" if reason is None else f"failed: {reason}; its log: {log}"
        self.console.print(Text(f"{count} {spec.arm} seed {spec.seed}: {text}"))
