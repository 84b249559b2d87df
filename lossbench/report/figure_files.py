"""Figures as files, written in processes of their own where that pays: layout and writing cost most."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lossbench.processes import cores, main_hidden
from lossbench.report.style import look, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WriteFigure = Callable[["Figure", Path, str], None]
"""Writes a figure into a folder under a name."""

_FEWEST_RUNS = 16  # below, starting a process takes longer than it saves
_MOST_WORKERS = 4


@contextmanager
def figure_writer(runs: int) -> Iterator[WriteFigure]:
    """Yield a writer of figures for a report on so many runs; all files are there when the context ends.

    Raises, at the end, what writing raised: OSError where a file cannot be written.
    """
    workers = min(cores(), _MOST_WORKERS)
    if workers < 2 or runs < _FEWEST_RUNS:
        yield save
        return
    written: list[Future[None]] = []
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    with main_hidden():
        try:
            for _ in range(workers):
                pool.submit(_write)  # loads matplotlib there while the sweep is read here
            yield lambda figure, folder, name: written.append(pool.submit(_write, figure, folder, name))
            for future in written:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _write(figure: "Figure | None" = None, folder: Path = Path(), name: str = "") -> None:
    with look():
        if figure is not None:
            save(figure, folder, name)
