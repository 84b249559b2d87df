"""`lossbench compare`: two modes of one sweep, or two sweeps, over the seeds they share."""

from typing import Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk
from lossbench.errors import UsageError

_TABLE_COLUMNS = ["metric", "at", "a", "b", "n", "mean_a", "mean_b", "difference", "ci_low", "ci_high", "ratio", "p",
                  "statement"]  # fmt: skip


def compare(
    a: Annotated[str, Argument(help="A mode of the sweep, or a sweep's folder.", show_default=False)],
    b: Annotated[str, Argument(help="What to compare it with: the same kind of thing.", show_default=False)],
    sweep: Annotated[o.File, o.option("The sweep of the two modes; default: the newest.", "--in")] = None,
    metrics: Annotated[o.Text, o.output("Comma list of metrics for the late window.", "--metrics")] = None,
    format: o.FormatOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Compare two modes of a sweep, or the common modes of two sweeps, run by run of equal seed.

    Differences are a minus b, with a 95 % t interval and the exact sign-flip p: late windows first, then at equal
    tokens and at equal reward.

    Example: lossbench compare grpo dr_grpo --in results/dr_grpo-1a2b3c
    """
    from lossbench.api import compared, sides

    chosen = None if metrics is None else o.items(metrics)
    if chosen == []:
        raise UsageError("--metrics is empty: name at least one metric, such as late_length_incorrect")
    rows: list[dict[str, Any]] = []
    for side_a, side_b in (pairs := sides(a, b, sweep)):
        found, remarks = compared(side_a, side_b, chosen)
        rows += found
        for text in () if quiet else remarks:
            talk(f"{side_a.name} vs {side_b.name}: {text}")
    for problem in dict.fromkeys(text for pair in pairs for side in pair for text in side.summary.problems):
        talk(f"warning: {problem}")
    print_table(rows, _TABLE_COLUMNS if format in ("table", "md") else None, format)
