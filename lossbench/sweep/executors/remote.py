"""Base of executors whose runs are jobs of a cluster: the cluster tells when a job begins and ends, the run's folder
which step it has reached."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

from lossbench.sweep.executors.base import Ended, Executor, Progress
from lossbench.sweep.executors.local import LocalExecutor
from lossbench.training.run_spec import RunSpec


class RemoteExecutor(Executor):
    """Follows jobs; a subclass submits, polls and cancels them."""

    def __init__(self) -> None:
        self._going: dict[str, Path] = {}
        self._steps: dict[str, int] = {}

    @abstractmethod
    def _submit(self, spec: RunSpec, run_dir: Path) -> None:
        """Hand the run over to the cluster."""

    @abstractmethod
    def _poll(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Jobs that began (as step 0) and ended since the last call; the files of an ended one are in its folder."""

    @abstractmethod
    def _cancel(self) -> None:
        """End the jobs that are going, and leave the cluster."""

    def start(self, spec: RunSpec, run_dir: Path) -> None:
        """Submit the run as a job."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._submit(spec, run_dir)
        self._going[spec.run_id] = run_dir
        self._steps[spec.run_id] = 0

    def events(self, timeout_s: float) -> Iterable[Progress | Ended]:
        """Begins, the newest step of each run, and ends since the last call."""
        polled = list(self._poll(timeout_s))
        yield from (event for event in polled if isinstance(event, Progress))
        for run_id, run_dir in self._going.items():
            yield from self._newest_step(run_id, run_dir)
        for event in polled:
            if isinstance(event, Ended):
                del self._going[event.run_id]
                yield event

    def _newest_step(self, run_id: str, run_dir: Path) -> Iterable[Progress]:
        """The newest step in the run's folder, unless it has been told already."""
        from lossbench.store.write import part_files, part_path

        before = step = self._steps[run_id]
        if not step or not part_path(run_dir, "steps", step).exists():  # nothing yet, or it began again
            step = max((int(path.stem.split("-")[1]) for path in part_files(run_dir).get("steps", [])), default=0)
        while part_path(run_dir, "steps", step + 1).exists():  # a look per step: listing long runs takes time
            step += 1
        self._steps[run_id] = step
        if step and step != before and (numbers := _numbers(part_path(run_dir, "steps", step))):
            yield Progress(run_id, step, *numbers)

    def stop(self) -> None:
        """Cancel what is going, unless it goes on by itself."""
        if not self.detached:
            self._cancel()
        self._going.clear()


def _numbers(part: Path) -> tuple[float | None, float | None] | None:
    """Mean reward and mean length of a step; None where its file has just been joined with the others."""
    import pyarrow.parquet as pq

    try:
        row = pq.read_table(part, columns=["reward_mean", "length_mean"]).to_pylist()[0]
    except OSError:
        return None
    return row["reward_mean"], row["length_mean"]


def run_here(spec: RunSpec, run_dir: Path, gpus: tuple[str, ...], on_step: Callable[[int], None]) -> str | None:
    """Make the run on this node, in a process of its own as on one machine; the reason where it failed.

    `on_step` is called with 0 when the run begins, then with each step.
    """
    executor = LocalExecutor([gpus])
    try:
        executor.start(spec, run_dir)
        while True:
            for event in executor.events(timeout_s=60):
                if isinstance(event, Ended):
                    return event.reason
                on_step(event.step)
    finally:
        executor.stop()
