"""The progress bar of a warm start."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lossbench.cli._shared import talk


@contextmanager
def warm_start_bar(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields `on_step(done, total)`: a bar in a terminal, a line at the start elsewhere, nothing when quiet."""
    if quiet or not sys.stderr.isatty():
        if not quiet:
            talk(f"{title} (once; about a minute each) …")
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
