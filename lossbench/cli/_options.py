"""Options that several commands share, and the panels of the help pages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from lossbench.errors import UsageError

Text = str | None
Texts = list[str] | None
Count = int | None
Number = float | None
File = Path | None


def panel(name: str | None) -> Callable[..., Any]:
    """A maker of options in one panel of the help page: its help, then its names if the parameter's is not one."""

    def option(help: str, *names: str, **more: Any) -> Any:
        return Option(*names, help=help, rich_help_panel=name, **more)

    return option


option, grid, training, execution, output = map(panel, (None, "Grid", "Training", "Execution", "Output"))

FormatOption = Annotated[Literal["table", "json", "csv", "md"], output("How to print the data.", "--format", "-f")]
QuietOption = Annotated[bool, output("No progress on stderr.", "--quiet", "-q")]
SweepOutOption = Annotated[File, output("The sweep's folder; by default results/<recipe>-<hash>.")]
VerifierOption = Annotated[Text, training("How --dataset's answers are judged: numeric, exact, choice, math.")]
SamplerOption = Annotated[Text, training("lossbench, generate (transformers) or vllm.")]
JobsOption = Annotated[Count, execution("Runs at once; by default one per core (or GPU).")]
ExecutorOption = Annotated[Text, execution("Where runs run: local, ray or slurm.")]
AddressOption = Annotated[Text, execution("Address of a Ray cluster.")]
RetryFailedOption = Annotated[bool, execution("Run failed runs again.", "--retry-failed")]
MapOption = Annotated[Texts, option("FIELD=COLUMN of the log: length=response_len; repeatable.", "--map")]
KindOption = Annotated[str, option("A format, such as trl, verl, swift, csv, or auto.", "--as")]
CorrectAboveOption = Annotated[
    Number,
    option(
        "A completion counts as correct where its verdict (a column such as acc) is a number above this, or "
        "without such a column its reward is; a verdict of true or false stands."
    ),
]


def items(text: str) -> list[Any]:
    """The items of a comma list, their kinds unchecked."""
    return [item.strip() for item in text.split(",") if item.strip()]


def pairs(
    option: str,
    given: Sequence[str] | None,
    valid: str = "NAME=VALUE",
    split: Callable[[str, str], tuple[str, str, str]] = str.rpartition,
) -> dict[str, str]:
    """Values by name, from NAME=VALUE options. Raises UsageError, which says what is `valid`."""
    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = split(pair, "=")
        if not (name and equals):
            raise UsageError(f"{option} '{pair}'; valid: {valid}")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = value
    return found


def mapping(given: Sequence[str] | None) -> dict[str, str]:
    """Columns by field, from --map FIELD=COLUMN. Raises UsageError."""
    valid = "FIELD=COLUMN, such as length=response_len"
    found = pairs("--map", given, valid, str.partition)
    if "" in found.values():
        raise UsageError(f"--map names a field without its column; valid: {valid}")
    return found


def params(settings: Sequence[str] | None, *tables: str) -> dict[str, dict[str, Any]]:
    """The `tables` of parameters from --set TABLE.KEY=VALUE each. Raises UsageError for another table, or none."""
    from lossbench.sweep.recipe import apply_assignments

    for setting in settings or ():
        if setting.partition(".")[0] not in tables:
            raise UsageError(f"--set '{setting}': a task's parameter is written --set task_params.{setting}")
    found = apply_assignments({}, list(settings or ()))
    return {table: found.get(table, {}) for table in tables}
