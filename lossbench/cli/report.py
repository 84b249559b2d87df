"""`lossbench report`: figures, tables and verdicts of a sweep, as files that open anywhere."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossbench.cli._shared import OUTPUT, QuietOption, print_table, talk

if TYPE_CHECKING:
    from lossbench.report.write import Report

RESULTS = Path("results")
VERDICT_COLUMNS = ["claim", "status", "n", "effect", "ci_low", "ci_high", "unit", "p", "p_holm", "sentence"]
ARM_COLUMNS = ["arm", "runs", "planned", "incorrect", "correct", "reward", "difference", "ci_low", "ci_high", "p"]


class ReportFormat(StrEnum):
    """What is printed on stdout."""

    text = "text"
    json = "json"


def report(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The sweep; default: the newest below results/.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The arm that others are compared with; default: the recipe's, else grpo.")
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
    from lossbench.report.write import make_report
    from lossbench.store.read import newest_sweep

    sweep = folder if folder is not None else newest_sweep(RESULTS)
    made = make_report(sweep, baseline, out)
    if format is ReportFormat.json:
        _print_json(made)
    else:
        _print_text(made)
    if not quiet:
        _say(made)
    if not made.complete:
        raise typer.Exit(1)


def _print_json(made: "Report") -> None:
    print((made.folder / "summary.json").read_text(), end="")


def _print_text(made: "Report") -> None:
    """The finding, the verdicts and a table of arms."""
    from lossbench.report.finding import find, support

    finding = find(made.data)
    print("\n".join([finding.sentence, *support(made.data, finding)]))
    print()
    print_table(_arm_rows(made), ARM_COLUMNS, "table")
    if made.data.verdicts:
        print_table([verdict.row() for verdict in made.data.verdicts], VERDICT_COLUMNS, "table")


def _arm_rows(made: "Report") -> list[dict]:
    """Late lengths and reward per arm; the difference is that of incorrect length to the arm's reference."""
    data, rows = made.data, []
    for arm in data.arms:
        row = {"arm": arm.name, "runs": arm.completed, "planned": arm.planned}
        for name, metric in (
            ("incorrect", "late_length_incorrect"),
            ("correct", "late_length_correct"),
            ("reward", "late_reward"),
        ):
            values = data.values(arm.name, metric)
            row[name] = float(values.mean()) if values.size else None
        if arm.reference is not None:
            result = data.pair(arm.name, arm.reference, "late_length_incorrect")
            row |= {"difference": result.difference, "ci_low": result.ci_low, "ci_high": result.ci_high}
            row["p"] = result.p_two_sided
        rows.append(row)
    return rows


def _say(made: "Report") -> None:
    for notice in made.data.notices:
        talk(f"{notice.level}: {notice.message} (remedy: {notice.remedy})")
    talk(f"report: {made.folder / 'index.html'}")
