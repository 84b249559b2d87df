"""`lossbench diagnose`: any run's log, one answer."""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._options import mapping
from lossbench.cli._shared import Format, FormatOption, print_table, show

if TYPE_CHECKING:
    from lossbench.diagnosis.diagnose import Diagnosis

_IN_FULL = 4


def diagnose(
    path: Annotated[
        Path, typer.Argument(help="A sweep's folder, one that lossbench.watch fills, or a log that ingest reads.")
    ],
    run: Annotated[list[str] | None, typer.Option(help="A run's name; repeatable. Default: all.")] = None,
    kind: Annotated[str, typer.Option("--as", help="Format of a log: see `lossbench ingest`.")] = "auto",
    columns: Annotated[list[str] | None, typer.Option("--map", help="FIELD=COLUMN of a log; repeatable.")] = None,
    mode: Annotated[str | None, typer.Option(help="Loss mode that trained a log's run.")] = None,
    correct_above: Annotated[
        float | None, typer.Option(help="Verdict or reward above which a log's completion is right.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Diagnose a run: what grew, what the loss pushed, what else could be the cause, and what to change.

    Example: lossbench diagnose my-run/ --mode grpo
    """
    from lossbench.diagnosis.diagnose import diagnose as diagnose_sweep
    from lossbench.diagnosis.diagnose import lines
    from lossbench.ingest.base import Request
    from lossbench.ingest.fields import Reading
    from lossbench.ingest.sweep_folder import ingest
    from lossbench.store.read import is_sweep, load

    with TemporaryDirectory() as folder:
        if not is_sweep(path):
            request = Request(mapping(columns or []), mode)
            ingest(
                path, Path(folder) / path.resolve().stem, kind, request, Reading(None, correct_above, keep_text=False)
            )
            path = Path(folder) / path.resolve().stem
        found = diagnose_sweep(load(path), run)
    if format != Format.table:
        print_table([_row(item, nested=format == Format.json) for item in found], None, format)
    elif len(found) <= _IN_FULL:
        show("\n\n".join("\n".join(lines(item)) for item in found))
    else:
        print_table([_row(item, nested=False) for item in found], None, format)


def _row(item: "Diagnosis", *, nested: bool) -> dict[str, Any]:
    if nested:
        return {**asdict(item), "advice": item.advice}
    worst = item.confounders[0].name if item.confounders else None
    return {
        "run": item.run_id, "steps": item.steps, "wrong": _ends(item.wrong), "right": _ends(item.right),
        "reward": _ends(item.reward), "push_wrong": item.own_push.wrong if item.own_push else None, "also": worst,
    }  # fmt: skip


def _ends(change: Any) -> str | None:
    return None if change is None else f"{change.first:.3g} → {change.last:.3g}{'' if change.told else ' ?'}"
