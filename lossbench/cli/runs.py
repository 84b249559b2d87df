"""`lossbench runs`: where the runs of a sweep stand."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lossbench.cli import _options as o
from lossbench.cli._output import Format, print_table, talk


class Status(StrEnum):
    """The states of a run."""

    pending = "pending"
    running = "running"
    completed = "completed"
    failed = "failed"
    interrupted = "interrupted"


def runs(
    folder: Annotated[Path | None, Argument(metavar="[DIR]", help="The sweep; default: the newest.")] = None,
    status: Annotated[Status | None, Option(help="Only runs in this state.")] = None,
    format: o.FormatOption = Format.table,
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
