"""The options of `sweep`, as types: the command's signature then reads as a list of what it takes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lossbench.cli._shared import EXECUTION, GRID, OUTPUT, TRAINING
from lossbench.errors import UsageError

RecipeArgument = Annotated[str, Argument(help="A built-in recipe (see `lossbench recipes`) or a TOML file.")]

ModesOption = Annotated[
    str | None, Option(help="Modes, comma-separated: grpo,dr_grpo,grpo@token-mean/none.", rich_help_panel=GRID)
]
LossTypesOption = Annotated[
    str | None, Option(help="An axis of a grid: surrogates (or, alone, presets).", rich_help_panel=GRID)
]
AggModesOption = Annotated[str | None, Option(help="An axis of a grid: aggregations.", rich_help_panel=GRID)]
ScaleRewardsOption = Annotated[str | None, Option(help="An axis of a grid: group, batch, none.", rich_help_panel=GRID)]
SeedsOption = Annotated[
    str | None, Option(help="4 means 0 to 3; 0,3 and 2-5 are lists; 7-7 is one seed.", rich_help_panel=GRID)
]
SkipDuplicatesOption = Annotated[
    bool,
    Option("--skip-duplicates", help="Of modes that are the same experiment here, train one.", rich_help_panel=GRID),
]

StepsOption = Annotated[int | None, Option(help="Optimizer steps per run.", rich_help_panel=TRAINING)]
ModelOption = Annotated[
    str | None, Option(help="Policy: a hub id (id@revision), a folder, or a .gguf file.", rich_help_panel=TRAINING)
]
TaskOption = Annotated[
    str | None, Option(help="A task (see `lossbench tasks`), or file.py:Name.", rich_help_panel=TRAINING)
]
DatasetOption = Annotated[
    str | None, Option(help="Train on the prompts and answers of this file.", rich_help_panel=TRAINING)
]
VerifierOption = Annotated[
    str | None,
    Option(help="How --dataset's answers are judged: numeric, exact, choice, math.", rich_help_panel=TRAINING),
]
LoraOption = Annotated[
    str | None, Option(help="Train a LoRA adapter: r=16 or r=16,alpha=32.", rich_help_panel=TRAINING)
]
SamplerOption = Annotated[
    str | None, Option(help="lossbench, generate (transformers) or vllm.", rich_help_panel=TRAINING)
]
ReportToOption = Annotated[
    str | None, Option(help="Also log through TRL to tensorboard, wandb or trackio.", rich_help_panel=TRAINING)
]
ProbeEveryOption = Annotated[
    int | None, Option(help="Probe the length bias every so many steps.", rich_help_panel=TRAINING)
]
CheckpointEveryOption = Annotated[int | None, Option(help="Checkpoint every so many steps.", rich_help_panel=TRAINING)]
SetOption = Annotated[
    list[str] | None, Option("--set", help="Any key of the recipe: --set learning_rate=1e-5.", rich_help_panel=TRAINING)
]

JobsOption = Annotated[
    int | None, Option(help="Runs at once; by default one per core (or GPU).", rich_help_panel=EXECUTION)
]
ExecutorOption = Annotated[str, Option(help="Where runs run: local or ray.", rich_help_panel=EXECUTION)]
GpusPerRunOption = Annotated[
    float | None,
    Option(
        help="GPUs of each run, 0.5 for two runs on one GPU; by default one per process.", rich_help_panel=EXECUTION
    ),
]
AddressOption = Annotated[str | None, Option(help="Address of a Ray cluster.", rich_help_panel=EXECUTION)]
ProcessesOption = Annotated[
    int,
    Option(
        "--nproc-per-run",
        help="Processes that share one run; each takes its part of every micro-batch: the window stays the same.",
        rich_help_panel=EXECUTION,
        min=1,
    ),
]
ShardOption = Annotated[
    str | None,
    Option(
        help="i/n: only the i-th of n slices of the plan, all in one folder. Slices made on separate disks join where "
        "their folders are copied over each other.",
        rich_help_panel=EXECUTION,
    ),
]
RetryFailedOption = Annotated[bool, Option("--retry-failed", help="Run failed runs again.", rich_help_panel=EXECUTION)]
FailFastOption = Annotated[
    bool, Option("--fail-fast", help="Start nothing more once a run failed.", rich_help_panel=EXECUTION)
]
FreshOption = Annotated[
    bool, Option("--fresh", help="Start over in a new folder; nothing is deleted.", rich_help_panel=EXECUTION)
]

OutOption = Annotated[
    Path | None, Option(help="The sweep's folder; by default results/<recipe>-<hash>.", rich_help_panel=OUTPUT)
]
DryRunOption = Annotated[
    bool, Option("--dry-run", help="Print the resolved runs and start nothing.", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True)
class Launch:
    """How to run a plan, apart from what it says."""

    jobs: int | None = None
    executor: str = "local"
    address: str | None = None
    gpus_per_run: float | None = None
    processes: int = 1
    shard: str | None = None
    retry_failed: bool = False
    fail_fast: bool = False
    fresh: bool = False
    skip_duplicates: bool = False
    out: Path | None = None
    dry_run: bool = False
    format: str = "table"
    quiet: bool = False


TaskSetOption = Annotated[list[str] | None, Option("--set", help="PARAMETER=VALUE of the task; repeatable.")]


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
    """A task's parameters from `PARAMETER=VALUE` each; values are JSON where they can be, else text. UsageError."""
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not (key and equals):
            raise UsageError(f"--set '{setting}'; valid: PARAMETER=VALUE, such as digits=2")
        try:
            params[key] = json.loads(text)
        except json.JSONDecodeError:
            params[key] = text
    return params


def dataset_task(dataset: str | None, verifier: str | None, task: str | None) -> dict[str, Any]:
    """`--dataset` and `--verifier` as the keys of the task they stand for; {} without. Raises UsageError."""
    if dataset is None:
        if verifier is not None:
            raise UsageError("--verifier judges the answers of a --dataset: give both")
        return {}
    if task is not None:
        raise UsageError("--dataset is a task of its own: give --task or --dataset, not both")
    return {"task": "dataset", "task_params": {"path": dataset, **({"verifier": verifier} if verifier else {})}}
