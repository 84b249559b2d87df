"""A sweep as it is shown on stderr: live bars in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeRemaining
from typer import Abort, confirm

from lossbench.cli._output import talk
from lossbench.sweep.executors.base import Progress as Step
from lossbench.sweep.schedule import Watch
from lossbench.training.run_spec import RunSpec

# the methods are those of Watch, which documents them
_LINE_EVERY_S = 15.0


def watcher(quiet: bool) -> Watch:
    """The callbacks that show a sweep on this stderr."""
    if quiet:
        return Watch()
    return Bars() if sys.stderr.isatty() else Lines()


class Clock:
    """Time left, from the steps made since this call began: what a run had made before took no time of it."""

    def __init__(self, runs: Sequence[RunSpec]) -> None:
        self.left_of = {spec.run_id: spec.settings.steps for spec in runs}
        self.steps_total = sum(self.left_of.values())
        self.runs_total, self.runs_ended = len(runs), 0
        self.began_s = time.monotonic()
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
        """Steps that are no longer awaited."""
        return self.steps_total - sum(self.left_of.values())

    def left(self) -> str:
        """Estimated time left as m:ss, or a dash before there is anything to go by."""
        made = sum(self._made.values())
        if not made:
            return "-:--"
        minutes, seconds = divmod(int((time.monotonic() - self.began_s) / made * sum(self.left_of.values())), 60)
        return f"{minutes}:{seconds:02d}"


def _numbers(step: Step) -> str:
    reward = "  –  " if step.reward_mean is None else f"{step.reward_mean:.2f}"
    length = " –  " if step.length_mean is None else f"{step.length_mean:.1f}"
    return f"reward {reward}  length {length}"


class Lines(Watch):
    """A plain line for each start and end, and now and then for a run that goes on."""

    wants_notes = True

    def __init__(self) -> None:
        self.last_line_s: dict[str, float] = {}
        self.latest: dict[str, Step] = {}

    def note(self, text: str) -> None:
        talk(f"note: {text}")

    @contextmanager
    def warm_start(self, title: str) -> Iterator[Callable[[int, int], None]]:
        talk(f"{title} (once; about half a minute each) …")
        yield lambda done, total: None

    def begun(self, folder: Path, mine: Sequence[RunSpec], left: Sequence[RunSpec], slots: int | None) -> None:
        at_once = "as many at once as the queue lets" if slots is None else f"{slots} at once"
        talk(f"{len(mine)} runs in '{folder}', {len(mine) - len(left)} of them done, {at_once}")
        self.clock = Clock(left)

    def goes_on(self, runs: int) -> bool:
        """Ask in a terminal, where a second Ctrl-C means no."""
        self.over()
        if not sys.stdin.isatty():
            return True
        try:
            return confirm(f"{runs} runs are submitted. Let them go on without this command?", default=True, err=True)
        except Abort:
            return False

    def started(self, spec: RunSpec) -> None:
        talk(f"{spec.arm} seed {spec.seed}: started")
        self.last_line_s[spec.run_id] = time.monotonic()

    def progressed(self, progress: Step) -> None:
        """A step that sampled nothing itself is shown with the numbers of the last sampling."""
        self.clock.progressed(progress.run_id, progress.step)
        before = self.latest.get(progress.run_id)
        if before is not None and progress.reward_mean is None:
            progress = replace(before, step=progress.step)
        self.latest[progress.run_id] = progress
        self.advance(progress)

    def advance(self, step: Step) -> None:
        """A line every quarter of a minute and run."""
        now_s = time.monotonic()
        if now_s - self.last_line_s.get(step.run_id, now_s) > _LINE_EVERY_S:
            self.last_line_s[step.run_id] = now_s
            talk(f"{step.run_id}: step {step.step}  {_numbers(step)}  left {self.clock.left()}")

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        self.clock.ended(spec.run_id)
        latest = self.latest.get(spec.run_id)
        done = f"done  {_numbers(latest)}" if latest else "done"
        text = done if reason is None else f"failed: {reason}; its log: {log}"
        talk(f"[{self.clock.runs_ended}/{self.clock.runs_total}] {spec.arm} seed {spec.seed}: {text}")


class Bars(Lines):
    """A bar per running run and one for the sweep; what is said meanwhile stands above them."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: dict[str, TaskID] = {}

    @contextmanager
    def warm_start(self, title: str) -> Iterator[Callable[[int, int], None]]:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemaining())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(bar, completed=done, total=total)

    def begun(self, folder: Path, mine: Sequence[RunSpec], left: Sequence[RunSpec], slots: int | None) -> None:
        super().begun(folder, mine, left, slots)
        numbers = (MofNCompleteColumn(), TextColumn("{task.fields[numbers]}", markup=False), TimeElapsedColumn())
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), *numbers)
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.all = self.progress.add_task("all runs", total=self.clock.steps_total, numbers="")

    def started(self, spec: RunSpec) -> None:
        self.progress.start()
        label = f"{spec.arm}  seed {spec.seed}"
        self.bars[spec.run_id] = self.progress.add_task(label, total=spec.settings.steps, numbers="starting")

    def advance(self, step: Step) -> None:
        """Move the bars."""
        self.progress.update(self.bars[step.run_id], completed=step.step, numbers=_numbers(step))
        self.progress.update(self.all, completed=self.clock.steps_done, numbers=f"left {self.clock.left()}")

    def ended(self, spec: RunSpec, reason: str | None, log: Path) -> None:
        self.progress.remove_task(self.bars.pop(spec.run_id))
        super().ended(spec, reason, log)

    def over(self) -> None:
        self.progress.stop()
