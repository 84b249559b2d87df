"""`lossbench report`: figures, tables and verdicts of a sweep, as files that open anywhere."""

from typing import Annotated, Literal

from typer import Argument, Exit

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show, talk

VERDICT_COLUMNS = ["claim", "status", "n", "effect", "ci_low", "ci_high", "unit", "p", "p_holm", "sentence"]


def report(
    folder: Annotated[o.File, Argument(metavar="[DIR]", help="The sweep; default: the newest below results/.")] = None,
    baseline: Annotated[o.Text, o.option("The mode to compare others with; default: the recipe's, else grpo.")] = None,
    out: Annotated[o.File, o.output("Where to write; default: DIR/report.")] = None,
    format: Annotated[Literal["text", "json"], o.output("What to print on stdout.", "--format", "-f")] = "text",
    quiet: o.QuietOption = False,
) -> None:
    """Write a sweep's report: index.html, report.md, summary.csv, summary.json and figures; print what was found.

    Works on sweeps that are not finished and says what is missing; the exit code is then 1.

    Example: lossbench report results/quick-1a2b3c --baseline dr_grpo
    """
    from lossbench.api import arm_rows, load
    from lossbench.report.finding import find, support

    made = load(folder).report(out, baseline)
    if format == "json":
        show((made.folder / "summary.json").read_text(encoding="utf-8"), end="")
    else:
        finding = find(made.data)
        show("\n".join([finding.sentence, *support(made.data, finding), ""]))
        print_table(arm_rows(made.data))
        if made.data.verdicts:
            print_table([verdict.row() for verdict in made.data.verdicts], VERDICT_COLUMNS)
    if not quiet:
        for notice in made.data.notices:
            talk(f"{notice.level}: {notice.message} (remedy: {notice.remedy})")
        talk(f"report: {made.folder / 'index.html'}")
    if not made.complete:
        raise Exit(1)
