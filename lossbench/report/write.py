"""A report on disk: from a sweep's folder to index.html, report.md, summary.csv, summary.json and the figures."""

from dataclasses import dataclass
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.report.data import ReportData, gather
from lossbench.report.figure_files import figure_writer
from lossbench.report.figures import draw_all
from lossbench.report.html import render_html
from lossbench.report.markdown import render_markdown
from lossbench.report.sections import make_document
from lossbench.report.summary import summary_csv, summary_json
from lossbench.store.read import load
from lossbench.store.write import refuse_links, write_json, write_text

REPORT = "report"


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
        with figure_writer(len(sweep.run_ids)) as write_figure:
            data = gather(sweep, baseline)
            figures = draw_all(data, folder / "figures", write_figure)
            # What needs no figure's file goes on while figures are written.
            document = make_document(data, figures, folder)
            write_text(folder / "report.md", render_markdown(document))
            write_text(folder / "summary.csv", summary_csv(data))
            write_json(folder / "summary.json", summary_json(data))
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"cannot write the report to '{folder}': {error.strerror}") from None
    write_text(folder / "index.html", render_html(document))
    return Report(folder, data)
