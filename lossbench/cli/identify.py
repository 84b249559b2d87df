"""`lossbench identify`: which loss mode a piece of code computes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._shared import Format, FormatOption, print_table, show
from lossbench.errors import UsageError, one_line

if TYPE_CHECKING:
    from lossbench.diagnosis.loss_code import Identified

_COLUMNS = ["agg_mode", "factor", "horizon", "nearest", "difference", "sentence", "notes"]


def identify(
    target: Annotated[str | None, typer.Argument(help="A loss function, as file.py:name.")] = None,
    call: Annotated[
        str | None,
        typer.Option(
            help="How to call it, as an expression of `loss` and its arguments: "
            "'loss(logp, old_logp, advantages[:, None], mask)'."
        ),
    ] = None,
    trl: Annotated[Path | None, typer.Option(help="Settings instead: a GRPOConfig as JSON or YAML.")] = None,
    verl: Annotated[Path | None, typer.Option(help="Settings instead: verl's .hydra/config.yaml.")] = None,
    swift: Annotated[Path | None, typer.Option(help="Settings instead: ms-swift's args.json.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Name the aggregation that a loss function computes, its divisor and scope, or the mode that settings give.

    Example: lossbench identify my_trainer.py:compute_loss
    """
    given = [item for item in (target, trl, verl, swift) if item is not None]
    if len(given) != 1:
        raise UsageError("give one of: a loss function as file.py:name, --trl FILE, --verl FILE, --swift FILE")
    if target is None:
        _identify_settings(Path(given[0]), format)
        return
    from lossbench.diagnosis.loss_code import identify_loss
    from lossbench.user_code import attribute_of

    found = identify_loss(attribute_of(target, "loss"), _adapter(call))
    if format == Format.table:
        show("\n".join([found.sentence, *(f"  {note}" for note in found.notes), *_paste(found)]))
    else:
        row = {**asdict(found), "sentence": found.sentence, "notes": "; ".join(found.notes) or None}
        print_table([row], _COLUMNS, format)


def _identify_settings(file: Path, format: Format) -> None:
    """Print the mode that a framework's settings give, with the caveats of its parts."""
    from lossbench.ingest.run_config import mode_of_config, read_config
    from lossbench.loss.modes import parse_mode

    name = mode_of_config(read_config(file))
    if name is None:
        raise UsageError(f"{file}: names no loss mode that lossbench knows; see `lossbench modes`")
    mode = parse_mode(name)
    caveats = [text for text in (mode.aggregation.entry.caveat, mode.surrogate.caveat) if text]
    if format == Format.table:
        typer.echo("\n".join([f"{mode.name} = {mode.triple}", *(f"  {text}" for text in caveats)]))
    else:
        print_table([{"mode": mode.name, "triple": mode.triple, "caveats": "; ".join(caveats)}], None, format)


def _adapter(expression: str | None) -> Any:
    """A callable of the loss and its arguments that evaluates the user's own expression."""
    if expression is None:
        return None
    try:
        code = compile(expression, "--call", "eval")
    except SyntaxError as error:
        raise UsageError(f"--call '{expression}' is not an expression: {one_line(error)}") from error
    return lambda loss, **arguments: eval(code, {"loss": loss, **arguments})


def _paste(found: "Identified") -> list[str]:
    """The settings that give the same mode in TRL, where there are some."""
    if found.agg_mode is None or found.factor:
        return []
    return [f"the same elsewhere: lossbench modes grpo@{found.agg_mode}"]
