"""A report on disk: from a sweep's folder to index.html, report.md, summary.csv, summary.json and the figures."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.processes import cores, main_hidden
from lossbench.report.data import ReportData, gather
from lossbench.report.document import FigureBlock
from lossbench.report.figures import FIGURES
from lossbench.report.html import render_html
from lossbench.report.markdown import render_markdown
from lossbench.report.panels import Picture, readings, save
from lossbench.report.sections import make_document
from lossbench.report.style import look
from lossbench.report.summary import summary_csv, summary_json
from lossbench.store.read import load
from lossbench.store.write import refuse_links, write_json, write_text

REPORT = "report"
_FEWEST_RUNS = 16  # below, starting a process takes longer than it saves
_MOST_WORKERS = 4
_RETIRED = ("by_tokens", "cost_of_reward", "trajectory")
"""Figures of earlier versions."""

Save = Callable[[Picture, Path, str], object]


@dataclass(frozen=True)
class Report:
    """The written report and its folder; `complete` is False where runs or files are missing."""

    folder: Path
    data: ReportData

    @property
    def complete(self) -> bool:
        """Whether the report is of the whole plan."""
        return self.data.complete


def make_report(sweep_dir: Path, baseline: str | None = None, out: Path | None = None) -> Report:
    """Write the report of the sweep in `sweep_dir` to `out` (default: its folder `report`).

    Raises UsageError where the folder is not a sweep, the baseline is not one of its arms, or `out` cannot be written.
    """
    sweep = load(sweep_dir)
    folder = out if out is not None else sweep_dir / REPORT
    refuse_links(sweep_dir, *(() if out else (REPORT,)))
    refuse_links(folder, "figures")
    try:
        with _saver(len(sweep.run_ids)) as save_figure:
            data = gather(sweep, baseline)
            figures = write_figures(data, folder / "figures", save_figure)
            # What needs no figure's file goes on while figures are written.
            document = make_document(data, figures, folder)
            write_text(folder / "report.md", render_markdown(document))
            write_text(folder / "summary.csv", summary_csv(data))
            write_json(folder / "summary.json", summary_json(data))
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"cannot write the report to '{folder}': {error.strerror}") from None
    write_text(folder / "index.html", render_html(document))
    return Report(folder, data)


def write_figures(data: ReportData, folder: Path, save: Save = save) -> dict[str, FigureBlock]:
    """Write every figure that the sweep has data for into `folder` as PNG and SVG; those of an earlier report go."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*FIGURES, *_RETIRED):
        for suffix in (".png", ".svg"):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    blocks = {}
    for entry in FIGURES.values():
        picture = entry.picture(data)
        if picture is not None:
            save(picture, folder, entry.name)
            alt = f"{entry.subject}. {picture.title}."
            blocks[entry.name] = FigureBlock(entry.name, entry.caption, alt, tuple(readings(picture)))
    return blocks


@contextmanager
def _saver(runs: int) -> Iterator[Save]:
    """Yield a way to save figures, in processes of their own where that pays; all are saved when the context ends.

    Raises, at the end, what writing raised: OSError where a file cannot be written.
    """
    workers = min(cores(), _MOST_WORKERS)
    if workers < 2 or runs < _FEWEST_RUNS:
        yield save
        return
    saved = []
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    with main_hidden():
        try:
            for _ in range(workers):
                pool.submit(_warm)  # loads matplotlib there while the sweep is read here
            yield lambda picture, folder, name: saved.append(pool.submit(save, picture, folder, name))
            for future in saved:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _warm() -> None:
    import matplotlib.backends.backend_svg
    import matplotlib.figure

    with look():
        matplotlib.figure.Figure().text(0, 0, "").get_window_extent()
