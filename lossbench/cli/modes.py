"""`lossbench modes`: what each loss mode is, and how to get it elsewhere."""

import re
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show, talk
from lossbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from lossbench.loss.modes import Mode

_FRAMEWORKS = ("trl", "verl", "swift", "openrlhf", "skyrl", "prime-rl", "slime")
_COLUMNS = ["mode", "triple", "weight", "length_exponent", "equals"]


def modes(
    name: Annotated[o.Text, Argument(help="A preset, loss_type@agg_mode or loss_type@agg_mode/advantage.")] = None,
    framework: Annotated[
        o.Text, o.option(f"Print only the settings for one of {', '.join(_FRAMEWORKS)}.", "--for")
    ] = None,
    cap: Annotated[o.Count, o.option("The horizon H in those settings, in tokens.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """List the loss modes, or explain one: formula, weights, caveats, settings that give it in other frameworks.

    Example: lossbench modes dr_grpo
    """
    from lossbench.loss.equivalents import equivalents
    from lossbench.loss.modes import catalogue, parse_mode

    if name is None:
        if framework is not None:
            raise UsageError("--for prints the settings of one mode: name a mode, such as dr_grpo")
        print_table([_row(mode) for mode in catalogue()], _COLUMNS if format == "table" else None, format)
        return
    try:
        mode = parse_mode(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if framework is not None:
        show(_code(mode, framework, cap))
    elif format == "table":
        show(_page(mode))
    else:
        rows = [
            {"mode": mode.name, "framework": found.framework, "name": found.name,
             "settings": "\n".join(found.settings) or None, "conditions": "; ".join(found.conditions) or None}
            for found in equivalents(mode)
        ]  # fmt: skip
        print_table(rows, None, format)


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

    return {
        "mode": mode.name, "triple": mode.triple, "weight": mode.aggregation.entry.formula,
        "length_exponent": mode.aggregation.exponent, "token_loss": mode.surrogate.formula,
        "equals": short_names(mode) or None,
    }  # fmt: skip


def _page(mode: "Mode") -> str:
    """The explanation of one mode, as plain text."""
    from lossbench.loss.advantages import parse_advantage
    from lossbench.loss.equivalents import equivalents

    aggregation, surrogate, advantage = mode.aggregation, mode.surrogate, parse_advantage(mode.advantage)
    entry, alpha = aggregation.entry, aggregation.alpha
    lines = [
        f"{mode.name} = {mode.triple}",
        "",
        "  loss        Σ_i w_i · Σ_t m_it · ℓ_it",
        f"  w_i         {entry.formula}" + ("" if alpha is None else f"   with α = {alpha:g}"),
        f"  ℓ_it        {surrogate.formula}",
        f"  A_i         {advantage.formula}",
        f"  w_i·L_i     ~ L^{aggregation.exponent:g}" + (f" ({entry.exponent_note})" if entry.exponent_note else ""),
        "  N rows, P prompts, M micro-batches × ranks, L_i live tokens, T their sum, T_g those of the prompt's group,",
        "  T_m those of the micro-batch, H the constant horizon; all over one optimizer step",
        "",
        *_example(mode),
        "",
        f"aggregation: {entry.source}",
        f"  {entry.caveat}",
        f"surrogate: {surrogate.source}",
        f"  {surrogate.caveat}",
        *(f"  {name} = {field.default}: {field.description}"
          for name, field in surrogate.constants.model_fields.items()),
    ]  # fmt: skip
    for part in advantage.parts:
        lines += [f"advantage, {part.axis}: {part.source}", *([f"  {part.caveat}"] if part.caveat else [])]
    for found in equivalents(mode):
        lines += ["", f"{found.framework}: {found.name or 'not possible'}"]
        lines += [f"    {line}" for line in found.settings]
        lines += [f"  {'where' if found.possible else 'because'}: {condition}" for condition in found.conditions]
    return "\n".join(lines)


def _example(mode: "Mode") -> list[str]:
    from lossbench.loss.window import window_weights

    lengths, horizon = [10, 100], 128
    weights = window_weights(mode.aggregation, lengths, [0, 0], horizon=horizon, advantages_N=[1, -1])
    return [
        f"weights of two completions of one prompt, H = {horizon}:",
        *(f"  {length:>4} tokens   per token {weight:.6g}   whole row {weight * length:.6g}"
          for length, weight in zip(lengths, weights.tolist(), strict=True)),
    ]  # fmt: skip
