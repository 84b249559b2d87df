"""`lossbench diagnose`: any run's log, one answer."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show

if TYPE_CHECKING:
    from lossbench.diagnosis.diagnose import Diagnosis

_IN_FULL = 4


def diagnose(
    path: Annotated[Path, Argument(help="A sweep's folder, one of lossbench.watch, or a log that ingest reads.")],
    run: Annotated[o.Texts, o.option("A run's name; repeatable. Default: all.")] = None,
    kind: o.KindOption = "auto",
    columns: o.MapOption = None,
    mode: Annotated[o.Text, o.option("Loss mode that trained a log's run.")] = None,
    correct_above: o.CorrectAboveOption = None,
    format: o.FormatOption = "table",
) -> None:
    """Diagnose a run: what grew, what the loss pushed, what else could be the cause, and what to change.

    Example: lossbench diagnose my-run/ --mode grpo
    """
    from lossbench.diagnosis.diagnose import diagnose as diagnose_sweep
    from lossbench.diagnosis.diagnose import lines
    from lossbench.ingest.base import Request
    from lossbench.ingest.fields import Reading
    from lossbench.ingest.sweep_folder import opened

    request, reading = Request(o.mapping(columns), mode), Reading(None, correct_above, keep_text=False)
    with opened(path, request, reading, kind) as sweep:
        found = diagnose_sweep(sweep, run)
    if format == "table" and len(found) <= _IN_FULL:
        show("\n\n".join("\n".join(lines(item)) for item in found))
    elif format == "json":
        print_table([{**asdict(item), "advice": item.advice} for item in found], None, format)
    else:
        print_table([_row(item) for item in found], None, format)


def _row(item: "Diagnosis") -> dict[str, Any]:
    return {
        "run": item.run_id, "steps": item.steps, "wrong": _ends(item.wrong), "right": _ends(item.right),
        "reward": _ends(item.reward), "push_wrong": item.own_push.wrong if item.own_push else None,
        "also": item.confounders[0].name if item.confounders else None,
    }  # fmt: skip


def _ends(change: Any) -> str | None:
    return None if change is None else f"{change.first:.3g} → {change.last:.3g}{'' if change.told else ' ?'}"
