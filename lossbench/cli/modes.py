"""`lossbench modes`: what each loss mode is, and how to get it elsewhere."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._shared import Format, FormatOption, print_table, show, talk
from lossbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from lossbench.loss.modes import Mode

_FRAMEWORKS = ("trl", "verl", "swift", "openrlhf", "skyrl", "prime-rl", "slime")
_COLUMNS = ["mode", "triple", "weight", "length_exponent", "equals"]


def modes(
    name: Annotated[
        str | None, typer.Argument(help="A mode: a preset, loss_type@agg_mode or loss_type@agg_mode/advantage.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--for", help=f"Print only the settings for one of {', '.join(_FRAMEWORKS)}.")
    ] = None,
    cap: Annotated[int | None, typer.Option(help="The horizon H in those settings, in tokens.")] = None,
    format: FormatOption = Format.table,
) -> None:
    """List the loss modes, or explain one: formula, weights, caveats, settings that give it in other frameworks.

    Example: lossbench modes dr_grpo
    """
    from lossbench.loss.modes import catalogue, parse_mode

    if name is None:
        if framework is not None:
            raise UsageError("--for prints the settings of one mode: name a mode, such as dr_grpo")
        rows = [_row(mode) for mode in catalogue()]
        print_table(rows, _COLUMNS if format == Format.table else None, format)
        return
    try:
        mode = parse_mode(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if framework is not None:
        show(_code(mode, framework, cap))
    elif format == Format.table:
        show(_page(mode))
    else:
        print_table(_settings_rows(mode), None, format)


def _code(mode: "Mode", framework: str, cap: int | None) -> str:
    """The settings alone, with `cap` for H; the conditions go to stderr. Raises UsageError for a mode without any."""
    from lossbench.loss.equivalents import equivalents

    if framework not in _FRAMEWORKS:
        raise UsageError(unknown("framework", framework, _FRAMEWORKS))
    if cap is not None and cap < 1:
        raise UsageError(f"--cap is {cap}; valid: 1 or more")
    found = equivalents(mode)[_FRAMEWORKS.index(framework)]
    if not found.possible:
        raise UsageError(f"{found.framework} cannot do '{mode.name}': {'; '.join(found.conditions)}")
    code = "\n".join(found.settings)
    if re.search(r"\bH\b", code) and cap is None:
        raise UsageError(f"'{mode.name}' divides by a constant H: give it, such as --cap 1024")
    for condition in found.conditions:
        talk(f"where: {condition}")
    return re.sub(r"\bH\b", str(cap), code)


def _row(mode: "Mode") -> dict[str, Any]:
    from lossbench.loss.equivalents import short_names

    aggregation = mode.aggregation
    return {
        "mode": mode.name,
        "triple": mode.triple,
        "weight": aggregation.entry.formula,
        "length_exponent": aggregation.exponent,
        "token_loss": mode.surrogate.formula,
        "equals": short_names(mode) or None,
    }


def _exponent(mode: "Mode") -> str:
    note = mode.aggregation.entry.exponent_note
    return f"{mode.aggregation.exponent:g}" + (f" ({note})" if note else "")


def _settings_rows(mode: "Mode") -> list[dict[str, Any]]:
    from lossbench.loss.equivalents import equivalents

    return [
        {
            "mode": mode.name,
            "framework": entry.framework,
            "name": entry.name,
            "settings": "\n".join(entry.settings) or None,
            "conditions": "; ".join(entry.conditions) or None,
        }
        for entry in equivalents(mode)
    ]


def _page(mode: "Mode") -> str:
    """The explanation of one mode, as plain text."""
    from lossbench.loss.advantages import parse_advantage

    entry, surrogate, advantage = mode.aggregation.entry, mode.surrogate, parse_advantage(mode.advantage)
    lines = [
        f"{mode.name} = {mode.triple}",
        "",
        "  loss        Σ_i w_i · Σ_t m_it · ℓ_it",
        f"  w_i         {entry.formula}{_alpha_note(mode)}",
        f"  ℓ_it        {surrogate.formula}",
        f"  A_i         {advantage.formula}",
        f"  w_i·L_i     ~ L^{_exponent(mode)}",
        "  N rows, P prompts, M micro-batches × ranks, L_i live tokens, T their sum, T_g those of the prompt's group,",
        "  T_m those of the micro-batch, H the constant horizon; all over one optimizer step",
        "",
        *_example(mode),
        "",
        f"aggregation: {entry.source}",
        f"  {entry.caveat}",
        f"surrogate: {surrogate.source}",
        f"  {surrogate.caveat}",
        *(
            f"  {name} = {field.default}: {field.description}"
            for name, field in surrogate.constants.model_fields.items()
        ),
    ]
    for part in advantage.parts:
        lines += [f"advantage, {part.axis}: {part.source}", *([f"  {part.caveat}"] if part.caveat else [])]
    return "\n".join(lines + _elsewhere(mode))


def _alpha_note(mode: "Mode") -> str:
    alpha = mode.aggregation.alpha
    return "" if alpha is None else f"   with α = {alpha:g}"


def _example(mode: "Mode") -> list[str]:
    from lossbench.loss.window import window_weights

    lengths, horizon = [10, 100], 128
    weights = window_weights(mode.aggregation, lengths, [0, 0], horizon=horizon, advantages_N=[1, -1])
    lines = [f"weights of two completions of one prompt, H = {horizon}:"]
    for length, weight in zip(lengths, weights.tolist(), strict=True):
        lines.append(f"  {length:>4} tokens   per token {weight:.6g}   whole row {weight * length:.6g}")
    return lines


def _elsewhere(mode: "Mode") -> list[str]:
    from lossbench.loss.equivalents import equivalents

    lines: list[str] = []
    for entry in equivalents(mode):
        lines += ["", f"{entry.framework}: {entry.name or 'not possible'}"]
        lines += [f"    {line}" for line in entry.settings]
        lines += [f"  {'where' if entry.possible else 'because'}: {condition}" for condition in entry.conditions]
    return lines
