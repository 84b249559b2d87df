"""`lossbench identify`: which loss mode a piece of code computes, or trained a log."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show
from lossbench.errors import UsageError, one_line

_COLUMNS = ["agg_mode", "factor", "horizon", "nearest", "difference", "sentence", "notes"]


def identify(
    target: Annotated[o.Text, Argument(help="A loss function as file.py:name, or a log or sweep folder.")] = None,
    call: Annotated[o.Text, o.option("How to call it: 'loss(logp, old_logp, advantages[:, None], mask)'.")] = None,
    trl: Annotated[o.File, o.option("Settings instead: a GRPOConfig as JSON or YAML.")] = None,
    verl: Annotated[o.File, o.option("Settings instead: verl's .hydra/config.yaml.")] = None,
    swift: Annotated[o.File, o.option("Settings instead: ms-swift's args.json.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """Name the loss mode of a function, from its gradient; of settings; or of a log, from the loss that its steps log.

    Example: lossbench identify my_trainer.py:compute_loss
    """
    given = [item for item in (target, trl, verl, swift) if item is not None]
    if len(given) != 1:
        raise UsageError("give one of: a loss function as file.py:name, a log, --trl FILE, --verl FILE, --swift FILE")
    if target is not None and Path(target).suffix != ".py" and Path(target).exists():
        _print_log(Path(target), format)
        return
    title, notes, row = _of_settings(Path(given[0])) if target is None else _of_function(target, _adapter(call))
    if format == "table":
        show("\n".join([title, *(f"  {note}" for note in notes)]))
    else:
        print_table([row], None, format)


def _print_log(path: Path, format: str) -> None:
    """A line per run: the modes that predict the loss it logged."""
    from lossbench.diagnosis.loss_log import identify_log
    from lossbench.ingest.base import Request
    from lossbench.ingest.fields import Reading
    from lossbench.ingest.sweep_folder import opened
    from lossbench.loss.modes import BASELINE

    # A log's rows need the name of a mode, which is what is asked for here: any will do.
    with opened(path, Request(mode=f"grpo@{BASELINE}"), Reading(keep_text=False)) as sweep:
        found = [{"run": run_id, **asdict(identify_log(sweep, run_id))} for run_id in sweep.run_ids]
    if format == "table":
        show("\n".join(f"{row['run']}: {row['sentence']}" for row in found))
    else:
        print_table([{**row, "modes": " or ".join(row["modes"]) or None} for row in found], None, format)


def _of_settings(file: Path) -> tuple[str, list[str], dict[str, Any]]:
    """The mode that a framework's settings give, with the caveats of its parts."""
    from lossbench.ingest.run_config import mode_of_config, read_config
    from lossbench.loss.modes import parse_mode

    name = mode_of_config(read_config(file))
    if name is None:
        raise UsageError(f"{file}: names no loss mode that lossbench knows; see `lossbench modes`")
    mode = parse_mode(name)
    caveats = [text for text in (mode.aggregation.entry.caveat, mode.surrogate.caveat) if text]
    row = {"mode": mode.name, "triple": mode.triple, "caveats": "; ".join(caveats)}
    return f"{mode.name} = {mode.triple}", caveats, row


def _of_function(target: str, adapter: Any) -> tuple[str, list[str], dict[str, Any]]:
    from lossbench.diagnosis.loss_code import identify_loss
    from lossbench.user_code import attribute_of

    found = identify_loss(attribute_of(target, "loss"), adapter)
    notes = list(found.notes)
    if found.agg_mode is not None and not found.factor:
        notes.append(f"the same elsewhere: lossbench modes grpo@{found.agg_mode}")
    facts = {**asdict(found), "sentence": found.sentence, "notes": "; ".join(found.notes) or None}
    return found.sentence, notes, {name: facts[name] for name in _COLUMNS}


def _adapter(expression: str | None) -> Any:
    """A callable of the loss and its arguments that evaluates the user's own expression."""
    if expression is None:
        return None
    try:
        code = compile(expression, "--call", "eval")
    except SyntaxError as error:
        raise UsageError(f"--call '{expression}' is not an expression: {one_line(error)}") from error
    return lambda loss, **arguments: eval(code, {"loss": loss, **arguments})
