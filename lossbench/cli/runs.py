"""`lossbench runs`: where the runs of a sweep stand."""

from typing import Annotated, Literal

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk

Status = Literal["pending", "running", "completed", "failed", "interrupted"]


def runs(
    folder: Annotated[o.File, Argument(metavar="[DIR]", help="The sweep; default: the newest.")] = None,
    status: Annotated[Status | None, o.option("Only runs in this state.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """List a sweep's runs: status, progress, last reward and length, time, and the log of what failed.

    Example: lossbench runs --status failed --format json
    """
    from lossbench.api import load
    from lossbench.sweep.status import COLUMNS, run_rows

    sweep = load(folder)
    print_table([row for row in run_rows(sweep) if status in (None, row["status"])], COLUMNS, format)
    for problem in sweep.problems:
        talk(f"warning: {problem}")
