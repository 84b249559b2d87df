"""Options that several commands share."""

from typing import Annotated, Any

from typer import Option

from lossbench.cli._shared import EXECUTION, OUTPUT, TRAINING
from lossbench.errors import UsageError

VerifierOption = Annotated[
    str | None,
    Option(help="How --dataset's answers are judged: numeric, exact, choice, math.", rich_help_panel=TRAINING),
]
SamplerOption = Annotated[
    str | None, Option(help="lossbench, generate (transformers) or vllm.", rich_help_panel=TRAINING)
]
JobsOption = Annotated[
    int | None, Option(help="Runs at once; by default one per core (or GPU).", rich_help_panel=EXECUTION)
]
ExecutorOption = Annotated[str | None, Option(help="Where runs run: local, ray or slurm.", rich_help_panel=EXECUTION)]
AddressOption = Annotated[str | None, Option(help="Address of a Ray cluster.", rich_help_panel=EXECUTION)]
SlurmOption = Annotated[
    str | None,
    Option(help="Options of Slurm's sbatch: partition=gpu,time=120,gpus_per_node=1.", rich_help_panel=EXECUTION),
]
DetachOption = Annotated[
    bool,
    Option("--detach", help="Submit to Slurm and leave; the same command later follows the runs.",
           rich_help_panel=EXECUTION),
]  # fmt: skip
EmitOption = Annotated[
    str | None,
    Option(help="With --dry-run: print a script instead, sbatch, that runs one --shard per task.",
           rich_help_panel=OUTPUT),
]  # fmt: skip
RetryFailedOption = Annotated[bool, Option("--retry-failed", help="Run failed runs again.", rich_help_panel=EXECUTION)]
TaskSetOption = Annotated[
    list[str] | None, Option("--set", help="A parameter of the task: --set task_params.digits=2; repeatable.")
]
ProbeSetOption = Annotated[
    list[str] | None,
    Option("--set", help="A parameter of the task or a built-in policy: --set policy_params.check_truth=0.8; "
           "repeatable."),
]  # fmt: skip

_TABLE = "task_params."


def mapping(pairs: list[str]) -> dict[str, str]:
    """Field to column, from FIELD=COLUMN options."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"--map '{pair}'; valid: FIELD=COLUMN, such as length=response_len")
        if ours in mapping:
            raise UsageError(f"--map {ours} is given twice")
        mapping[ours] = theirs
    return mapping


def task_params(settings: list[str]) -> dict[str, Any]:
    """A task's parameters from `task_params.KEY=VALUE` each, as `sweep --set` takes them. Raises UsageError."""
    return params(settings, "task_params")["task_params"]


def params(settings: list[str], *tables: str) -> dict[str, dict[str, Any]]:
    """The `tables` of parameters from `TABLE.KEY=VALUE` each. Raises UsageError for another table, or none."""
    from lossbench.sweep.recipe import apply_assignments

    for setting in settings:
        if setting.partition(".")[0] not in tables:
            raise UsageError(f"--set '{setting}': a task's parameter is written --set {_TABLE}{setting}")
    found = apply_assignments({}, settings)
    return {table: found.get(table, {}) for table in tables}
