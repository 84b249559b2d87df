"""The Python interface, on which the command line stands: run a sweep, load one, and ask it what it shows."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.claims.registry import fingerprint
from lossbench.claims.warnings import ONLY_CHARACTERS
from lossbench.errors import UsageError, unknown
from lossbench.store.read import Sweep as StoredSweep
from lossbench.store.read import is_sweep, newest_sweep
from lossbench.store.read import load as load_tables
from lossbench.sweep.overrides import resolve
from lossbench.sweep.run import Planned, check_planned, plan_recipe, run_planned
from lossbench.sweep.schedule import Watch

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from lossbench.metrics.compare import Side
    from lossbench.report.data import ReportData
    from lossbench.report.write import Report

RESULTS = Path("results")


def plan_sweep(
    recipe: str | Path | Mapping[str, Any] = "quick",
    assignments: Sequence[str] = (),
    /,
    *,
    command: str | None = None,
    **overrides: Any,
) -> Planned:
    """The runs that `run_sweep` would make, and their folder; writes nothing.

    `assignments` are texts `key=value`; `command` is recorded as what made the runs (default: the command line). Raises
    UsageError.
    """
    resolved, options = resolve(recipe, overrides, assignments)
    return plan_recipe(resolved, options, fingerprint(resolved.claims), command)


def run_sweep(
    recipe: str | Path | Mapping[str, Any] = "quick", /, *, watch: Watch | None = None, **overrides: Any
) -> "Sweep":
    """Train a recipe's modes x seeds, or what is left of them, and return the sweep.

    `recipe` is a built-in name, a TOML file, or a recipe's keys. `overrides` are keys of a recipe (`modes`, `seeds`,
    `steps`, `model` …) and options of `lossbench sweep` (`out`, `jobs`, `executor`, `fresh`, `retry_failed` …).
    `watch` receives notes, starts, steps and ends. Runs that fail are in `Sweep.runs` with their reason.

    Raises UsageError, before anything is written, for what cannot be run as asked.
    """
    typed = {name: str(value) if isinstance(value, Path) else value for name, value in overrides.items()}
    arguments = [repr(str(recipe) if isinstance(recipe, Path) else recipe), *(f"{k}={v!r}" for k, v in typed.items())]
    planned = plan_sweep(recipe, command=f"lossbench.run_sweep({', '.join(arguments)})", **overrides)
    watch = watch or Watch()
    return load(run_planned(check_planned(planned, watch, fetch=True), watch).folder)


def load(path: str | Path | None = None) -> "Sweep":
    """The sweep in folder `path`, or the newest below `results/`. Raises UsageError if none exists."""
    tables = load_tables(newest_sweep(RESULTS) if path is None else path)
    return Sweep(tables.path, tables.spec, tables.problems)


class Sweep(StoredSweep):
    """A sweep's folder: its tables as data frames, and what they show."""

    def __repr__(self) -> str:
        arms = list(dict.fromkeys(run.get("arm") for run in self.spec["runs"].values()))
        done = list(self.runs["status"]).count("completed")
        return f"<Sweep '{self.path}': {', '.join(map(str, arms))}; {done} of {len(self.runs)} runs completed>"

    def _repr_html_(self) -> str:
        from html import escape

        table = self.summary().to_html(index=False, na_rep="–", float_format="{:.4g}".format)
        return f"<p>{escape(repr(self))}</p>{table}"

    def data(self, baseline: str | None = None) -> "ReportData":
        """Arms, comparisons and verdicts. Raises UsageError where `baseline` is not an arm of the sweep."""
        from lossbench.report.data import gather

        return gather(self, baseline)

    def summary(self, baseline: str | None = None) -> "pd.DataFrame":
        """One row per arm: runs, late lengths in tokens and reward, and the incorrect length minus its reference's."""
        import pandas as pd

        return pd.DataFrame(arm_rows(self.data(baseline)))

    def compare(self, a: str, b: str, metrics: Sequence[str] | None = None) -> "pd.DataFrame":
        """Two modes, run by run of equal seed: a minus b in the late window, at equal tokens and at equal reward.

        Columns are those of `lossbench compare`; differences have a 95 % t interval and the exact sign-flip p. Raises
        UsageError for a mode that is not in the sweep and an unknown metric.
        """
        import pandas as pd

        rows, _ = compared(*_sides_of(self, a, b), metrics)
        return pd.DataFrame(rows)

    def report(self, out: Path | None = None, baseline: str | None = None) -> "Report":
        """Write index.html, report.md, summary.csv, summary.json and figures to `out` (default: the folder's `report`).

        Raises UsageError where the baseline is not one of the arms, or `out` cannot be written.
        """
        from lossbench.report.write import make_report

        return make_report(self.path, baseline, out)

    def plot(self, name: str, baseline: str | None = None) -> "Figure":
        """The report's figure `name`. Raises UsageError for an unknown one, or where the sweep has nothing to draw."""
        from lossbench.report.figures import FIGURES
        from lossbench.report.panels import draw
        from lossbench.report.style import look

        if name not in FIGURES:
            raise UsageError(unknown("figure", name, FIGURES))
        picture = FIGURES[name].picture(self.data(baseline))
        if picture is None:
            raise UsageError(f"figure '{name}': the sweep in '{self.path}' has nothing to draw there")
        with look():
            return draw(picture)


def arm_rows(data: "ReportData") -> list[dict[str, Any]]:
    """Late lengths and reward per arm; the difference is that of incorrect length to the arm's reference."""
    rows = []
    for arm in data.arms:
        row: dict[str, Any] = {"arm": arm.name, "runs": arm.completed, "planned": arm.planned}
        for name in ("length_incorrect", "length_correct", "reward"):
            values = data.values(arm.name, f"late_{name}")
            row[name.removeprefix("length_")] = float(values.mean()) if values.size else None
        result = None if arm.reference is None else data.pair(arm.name, arm.reference, "late_length_incorrect")
        rows.append(row | {
            "difference": result and result.difference, "ci_low": result and result.ci_low,
            "ci_high": result and result.ci_high, "p": result and result.p_two_sided,
        })  # fmt: skip
    return rows


def sides(a: str, b: str, sweep: Path | None = None) -> "list[tuple[Side, Side]]":
    """The pairs of arms that `lossbench compare A B` names: two modes of a sweep, or all modes two folders share.

    Raises UsageError.
    """
    from lossbench.metrics.compare import Side, arms_of
    from lossbench.metrics.length import summarise

    folders = [is_sweep(Path(name)) for name in (a, b)]
    if not any(folders):
        return [_sides_of(load(sweep), a, b)]
    if not all(folders):
        folder, other = (a, b) if folders[0] else (b, a)
        raise UsageError(f"'{folder}' is a sweep's folder but '{other}' is not: give two folders, or two modes of one")
    if sweep is not None:
        raise UsageError("--in names the sweep of two modes: it does not go with two folders")
    first, second = (summarise(load(path)) for path in (a, b))
    shared = [arm for arm in arms_of(first.metrics) if arm in arms_of(second.metrics)]
    if not shared:
        names = ", ".join(arms_of(first.metrics)), ", ".join(arms_of(second.metrics))
        raise UsageError(f"the two sweeps share no mode: '{a}' has {names[0]}; '{b}' has {names[1]}")
    return [(Side(first, arm, f"{a}: {arm}"), Side(second, arm, f"{b}: {arm}")) for arm in shared]


def _sides_of(sweep: StoredSweep, a: str, b: str) -> "tuple[Side, Side]":
    """Two arms of a sweep, each by its stored name or another spelling of its mode. Raises UsageError."""
    from lossbench.loss.modes import parse_mode
    from lossbench.metrics.compare import Side, arms_of
    from lossbench.metrics.length import summarise

    summary = summarise(sweep)
    arms, names = arms_of(summary.metrics), [a, b]
    for i, text in enumerate(names):
        with suppress(ValueError):
            names[i] = text if text in arms else parse_mode(text).name
        if names[i] not in arms:
            raise UsageError(unknown("mode of this sweep", text, arms))
    return Side(summary, names[0]), Side(summary, names[1])


def compared(a: "Side", b: "Side", metrics: Sequence[str] | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of a minus b per metric (late window, equal tokens, equal reward), and what is not compared, with why."""
    from lossbench.metrics.compare import COMPARED, compare_arms, comparison_rows, left_out, matched
    from lossbench.metrics.length import METRICS

    for name in metrics or ():
        if name not in METRICS:
            raise UsageError(unknown("metric", name, METRICS))
    chosen = COMPARED if metrics is None else metrics
    late = [compare_arms(a.summary.metrics, a.arm, b.arm, name, b.summary.metrics) for name in chosen]
    found, reasons = [("late window", late)], []
    if a.summary.only_characters or b.summary.only_characters:
        reasons.append(ONLY_CHARACTERS)
    for basis in ("tokens", "reward"):
        result = matched(a, b, basis)
        if result.reason is not None:
            reasons.append(f"not compared at equal {basis}: {result.reason}")
        else:
            found.append((f"{result.at:.4g} {result.unit}", list(result.comparisons)))
    names = {"a": a.name, "b": b.name}
    rows = [row | names for at, comparisons in found for row in comparison_rows(comparisons, at)]
    seeds = {text for _, comparisons in found for item in comparisons for text in left_out(item.result)}
    return rows, [*reasons, *(f"left out: {text}" for text in sorted(seeds))]
