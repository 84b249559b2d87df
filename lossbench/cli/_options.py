"""Options that several commands share, and the panels of the help pages."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from lossbench.cli._output import Format
from lossbench.errors import UsageError

Text = str | None

grid, training, execution, output = (
    partial(Option, rich_help_panel=panel) for panel in ("Grid", "Training", "Execution", "Output")
)

FormatOption = Annotated[Format, output("--format", "-f", help="How to print the data.")]
QuietOption = Annotated[bool, output("--quiet", "-q", help="No progress on stderr.")]
SweepOutOption = Annotated[Path | None, output(help="The sweep's folder; by default results/<recipe>-<hash>.")]
VerifierOption = Annotated[
    str | None, training(help="How --dataset's answers are judged: numeric, exact, choice, math.")
]
SamplerOption = Annotated[str | None, training(help="lossbench, generate (transformers) or vllm.")]
JobsOption = Annotated[int | None, execution(help="Runs at once; by default one per core (or GPU).")]
ExecutorOption = Annotated[str | None, execution(help="Where runs run: local, ray or slurm.")]
AddressOption = Annotated[str | None, execution(help="Address of a Ray cluster.")]
RetryFailedOption = Annotated[bool, execution("--retry-failed", help="Run failed runs again.")]
MapOption = Annotated[
    list[str] | None, Option("--map", help="FIELD=COLUMN of the log, such as length=response_len; repeatable.")
]
KindOption = Annotated[str, Option("--as", help="A format, such as trl, verl, swift, csv, or auto.")]
CorrectAboveOption = Annotated[
    float | None,
    Option(
        help="A completion counts as correct where its verdict (a column such as acc) is a number above this, or "
        "without such a column its reward is; a verdict of true or false stands."
    ),
]


def items(text: str) -> list[Any]:
    """The items of a comma list, whose kinds whoever takes them checks."""
    return [item.strip() for item in text.split(",") if item.strip()]


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Values by name, which may hold an equals sign itself, from NAME=VALUE options. Raises UsageError."""
    return _by_name(option, [(pair, *pair.rpartition("=")[::2]) for pair in given or ()], "NAME=VALUE")


def mapping(given: Sequence[str] | None) -> dict[str, str]:
    """Columns by field, from --map FIELD=COLUMN. Raises UsageError."""
    valid = "FIELD=COLUMN, such as length=response_len"
    found = _by_name("--map", [(pair, *pair.partition("=")[::2]) for pair in given or ()], valid)
    for field in (field for field, column in found.items() if not column):
        raise UsageError(f"--map '{field}='; valid: {valid}")
    return found


def _by_name(option: str, split: Sequence[tuple[str, str, str]], valid: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair, name, value in split:
        if not name or "=" not in pair:
            raise UsageError(f"{option} '{pair}'; valid: {valid}")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = value
    return found


def params(settings: Sequence[str] | None, *tables: str) -> dict[str, dict[str, Any]]:
    """The `tables` of parameters from --set TABLE.KEY=VALUE each. Raises UsageError for another table, or none."""
    from lossbench.sweep.recipe import apply_assignments

    for setting in settings or ():
        if setting.partition(".")[0] not in tables:
            raise UsageError(f"--set '{setting}': a task's parameter is written --set task_params.{setting}")
    found = apply_assignments({}, list(settings or ()))
    return {table: found.get(table, {}) for table in tables}
