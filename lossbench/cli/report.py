"""`lossbench report`: figures, tables and verdicts of a sweep, as files that open anywhere."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossbench.cli._shared import OUTPUT, QuietOption, print_table, show, talk

if TYPE_CHECKING:
    from lossbench.report.write import Report

VERDICT_COLUMNS = ["claim", "status", "n", "effect", "ci_low", "ci_high", "unit", "p", "p_holm", "sentence"]


class ReportFormat(StrEnum):
    """Output on stdout."""

    text = "text"
    json = "json"


def report(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The sweep; default: the newest below results/.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The mode that others are compared with; default: the recipe's, else grpo.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: DIR/report.", rich_help_panel=OUTPUT)
    ] = None,
    format: Annotated[
        ReportFormat, typer.Option("--format", "-f", help="What to print on stdout.", rich_help_panel=OUTPUT)
    ] = ReportFormat.text,
    quiet: QuietOption = False,
) -> None:
    """Write a sweep's report: index.html, report.md, summary.csv, summary.json and figures; print what was found.

    Works on sweeps that are not finished and says what is missing; the exit code is then 1.

    Example: lossbench report results/quick-1a2b3c --baseline dr_grpo
    """
    from lossbench.api import load

    made = load(folder).report(out, baseline)
    if format is ReportFormat.json:
        show((made.folder / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        _print_text(made)
    if not quiet:
        _say(made)
    if not made.complete:
        raise typer.Exit(1)


def _print_text(made: "Report") -> None:
    """The finding, the verdicts and a table of arms."""
    from lossbench.api import arm_rows
    from lossbench.report.finding import find, support

    finding = find(made.data)
    show("\n".join([finding.sentence, *support(made.data, finding), ""]))
    print_table(arm_rows(made.data))
    if made.data.verdicts:
        print_table([verdict.row() for verdict in made.data.verdicts], VERDICT_COLUMNS, "table")


def _say(made: "Report") -> None:
    for notice in made.data.notices:
        talk(f"{notice.level}: {notice.message} (remedy: {notice.remedy})")
    talk(f"report: {made.folder / 'index.html'}")
