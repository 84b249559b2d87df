"""`lossbench compare`: two modes of one sweep, or two sweeps, over the seeds they share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossbench.cli._shared import OUTPUT, Format, FormatOption, QuietOption, print_table, talk
from lossbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from lossbench.metrics.compare import Side
    from lossbench.metrics.length import Summary

TABLE_COLUMNS = ["metric", "at", "a", "b", "n", "mean_a", "mean_b", "difference", "ci_low", "ci_high", "ratio", "p",
                 "statement"]  # fmt: skip
RESULTS = Path("results")


def compare(
    a: Annotated[str, typer.Argument(help="A mode of the sweep, or a sweep's folder.", show_default=False)],
    b: Annotated[str, typer.Argument(help="What to compare it with: the same kind of thing.", show_default=False)],
    sweep: Annotated[
        Path | None, typer.Option("--in", help="The sweep of the two modes; the newest below results/ by default.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Comma list of metrics for the late window.", rich_help_panel=OUTPUT)
    ] = None,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Compare two modes of a sweep, or the common modes of two sweeps, run by run of equal seed.

    Differences are a minus b, with a 95 % t interval and the exact sign-flip p: late windows first, then at equal
    tokens and at equal reward.

    Example: lossbench compare grpo dr_grpo --in results/dr_grpo-1a2b3c
    """
    from lossbench.metrics.compare import COMPARED, comparison_rows, left_out

    chosen: list[str] = _metrics(metrics) if metrics is not None else [*COMPARED]
    rows: list[dict[str, Any]] = []
    for side_a, side_b in _sides(a, b, sweep, quiet):
        found, reasons = _compared(side_a, side_b, chosen)
        for at, comparisons in found:
            rows += [row | {"a": side_a.name, "b": side_b.name} for row in comparison_rows(comparisons, at)]
        seeds = {text for _, comparisons in found for item in comparisons for text in left_out(item.result)}
        for text in [*reasons, *(f"left out: {text}" for text in sorted(seeds))]:
            if not quiet:
                talk(f"{side_a.name} against {side_b.name}: {text}")
    print_table(rows, TABLE_COLUMNS if format in (Format.table, Format.md) else None, format)


def _metrics(text: str) -> list[str]:
    from lossbench.metrics.length import METRICS

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--metrics is empty: name at least one metric, such as late_length_incorrect")
    for name in names:
        if name not in METRICS:
            raise UsageError(unknown("metric", name, METRICS))
    return names


def _compared(side_a: "Side", side_b: "Side", metrics: list[str]) -> tuple[list[tuple[str, list]], list[str]]:
    """Where and what is compared, and why something is not."""
    from lossbench.claims.warnings import ONLY_CHARACTERS
    from lossbench.metrics.compare import compare_arms, matched

    frames = side_a.summary.metrics, side_b.summary.metrics
    late = [compare_arms(frames[0], side_a.arm, side_b.arm, metric, frames[1]) for metric in metrics]
    found, reasons = [("late window", late)], []
    if side_a.summary.only_characters or side_b.summary.only_characters:
        reasons.append(ONLY_CHARACTERS)
    for basis in ("tokens", "reward"):
        result = matched(side_a, side_b, basis)
        if result.reason is not None:
            reasons.append(f"not compared at equal {basis}: {result.reason}")
        else:
            found.append((f"{result.at:.4g} {result.unit}", list(result.comparisons)))
    return found, reasons


def _sides(a: str, b: str, sweep: Path | None, quiet: bool) -> "list[tuple[Side, Side]]":
    """The pairs of arms that the arguments name: folders mean all modes that two sweeps share."""
    from lossbench.metrics.compare import Side, arms_of
    from lossbench.store.read import is_sweep, newest_sweep

    folders = [is_sweep(Path(name)) for name in (a, b)]
    if not any(folders):
        path = sweep if sweep is not None else newest_sweep(RESULTS)
        if sweep is None and not quiet:
            talk(f"sweep: {path}")
        summary = _summary(path)
        return [(Side(summary, _arm(summary, a)), Side(summary, _arm(summary, b)))]
    if not all(folders):
        folder, other = (a, b) if folders[0] else (b, a)
        raise UsageError(f"'{folder}' is a sweep's folder but '{other}' is not: give two folders, or two modes of one")
    if sweep is not None:
        raise UsageError("--in names the sweep of two modes: it does not go with two folders")
    first, second = _summary(Path(a)), _summary(Path(b))
    shared = [arm for arm in arms_of(first.metrics) if arm in arms_of(second.metrics)]
    if not shared:
        names = ", ".join(arms_of(first.metrics)), ", ".join(arms_of(second.metrics))
        raise UsageError(f"the two sweeps share no mode: '{a}' has {names[0]}; '{b}' has {names[1]}")
    return [(Side(first, arm, f"{a}: {arm}"), Side(second, arm, f"{b}: {arm}")) for arm in shared]


def _summary(path: Path) -> "Summary":
    from lossbench.metrics.length import summarise
    from lossbench.store.read import load

    summary = summarise(load(path))
    for problem in summary.problems:
        talk(f"warning: {problem}")
    return summary


def _arm(summary: "Summary", text: str) -> str:
    """The sweep's arm that `text` names, by its stored name or another spelling of its mode."""
    from lossbench.loss.modes import parse_mode
    from lossbench.metrics.compare import arms_of

    arms = arms_of(summary.metrics)
    if text in arms:
        return text
    try:
        name = parse_mode(text).name
    except ValueError:
        name = text
    if name not in arms:
        raise UsageError(unknown("mode of this sweep", text, arms))
    return name
