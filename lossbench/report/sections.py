"""The sections of a report and their content."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.report.data import ReportData
from lossbench.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Details,
    Document,
    FigureBlock,
    Points,
    Section,
    Table,
    Text,
    Warnings,
    cleaned,
)
from lossbench.report.finding import HEADLINES, Finding, find, support
from lossbench.report.method import method
from lossbench.report.numbers import count, number_style
from lossbench.report.probe import probe_blocks
from lossbench.report.samples import arm_samples
from lossbench.report.tables import (
    arm_table,
    definition_table,
    matched_table,
    missing_table,
    pairwise_table,
    verdict_table,
)
from lossbench.sweep.folder import reproducing_commands

Figures = Mapping[str, FigureBlock]


def make_document(data: ReportData, figures: Figures, folder: Path) -> Document:
    """The whole report; sections that would be empty are left out."""
    finding = find(data)
    sections = [
        _verdicts(data),
        _differences(data, figures),
        _during(figures),
        _lengths(figures),
        _matched(data, figures),
        _pairs(data, finding),
        _mechanism(data, figures),
        _probe(data, figures),
        _guards(data, figures),
        _samples(data),
        _missing(data),
        _reproduce(data),
    ]
    document = Document(
        title=f"lossbench report: {data.spec.get('name') or data.sweep.path.name}",
        finding=finding.sentence,
        support=support(data, finding),
        facts=_facts(data),
        incomplete=_incomplete(data),
        sections=tuple(section for section in sections if section.blocks),
        folder=folder,
    )
    return cleaned(document)


def _section(id: str, title: str, *blocks: Block | None) -> Section:
    return Section(id, title, tuple(block for block in blocks if block is not None))


def _facts(data: ReportData) -> tuple[tuple[str, str], ...]:
    runs = data.summary.runs
    done = sum(arm.completed for arm in data.arms)
    tokens = float(np.nansum(np.array(data.summary.metrics["tokens_total"], dtype=float)))
    recipe = data.recipe
    facts = [
        ("runs", f"{done} of {len(runs)} completed"),
        ("arms", str(len(data.arms))),
        ("baseline", data.baseline),
        ("task", str(recipe["task"])) if recipe.get("task") else None,
        ("steps", _steps(data)),
        ("tokens generated", number_style("tokens", 1e6).plain(tokens)) if tokens > 0 else None,
    ]
    return tuple(fact for fact in facts if fact is not None)


def _steps(data: ReportData) -> str:
    planned = sorted({int(steps) for steps in data.summary.runs["steps_planned"].dropna()})
    return " to ".join(f"{steps:,}" for steps in dict.fromkeys((planned[0], planned[-1]))) if planned else "unknown"


def _incomplete(data: ReportData) -> str:
    parts = []
    if data.missing:
        parts.append(f"{len(data.missing)} of {count(len(data.summary.runs), 'planned run')} not completed")
    if data.problems:
        parts.append(f"{count(len(data.problems), 'file')} could not be read")
    return f"This report is incomplete: {'; '.join(parts)}." if parts else ""


def _verdicts(data: ReportData) -> Section:
    change = data.claims_change
    return _section(
        "verdicts",
        "Verdicts",
        Text(f"Read the verdicts as exploratory: {change}.") if change else None,
        verdict_table(data.verdicts) if data.verdicts else None,
    )


def _differences(data: ReportData, figures: Figures) -> Section:
    return _section("arms", "Late means", arm_table(data), figures.get("forest"))


def _during(figures: Figures) -> Section:
    names = ("length_by_correctness", "stopping", "reward_length", "trajectory")
    return _section("training", "During training", *(figures.get(name) for name in names))


def _lengths(figures: Figures) -> Section:
    return _section("lengths", "Lengths early and late", figures.get("length_distribution"))


def _matched(data: ReportData, figures: Figures) -> Section:
    tables = [matched_table(data, basis) for basis in ("step", "tokens", "reward")]
    return _section(
        "matched", "At equal step, tokens and reward", *tables, figures.get("by_tokens"), figures.get("cost_of_reward")
    )


def _pairs(data: ReportData, finding: Finding) -> Section:
    metric = finding.metric or next(iter(HEADLINES))
    reward = pairwise_table(data, "late_reward") if metric != "late_reward" else None
    more = Details("The same for late reward", (reward,)) if reward else None
    return _section("pairs", "Every pair of modes", pairwise_table(data, metric), more)


def _mechanism(data: ReportData, figures: Figures) -> Section:
    return _section("mechanism", "Why: weight vs length", figures.get("weights"), definition_table(data))


def _probe(data: ReportData, figures: Figures) -> Section:
    blocks = probe_blocks(data.probe) if data.probe is not None else []
    shown = [figures.get(name) for name in ("drift", "dose_response", "trained_drift")]
    return _section("probe", "Gradient probe", *blocks, *shown)


def _guards(data: ReportData, figures: Figures) -> Section:
    notices = tuple((notice.level, notice.message, notice.remedy) for notice in data.notices)
    return _section(
        "warnings", "Warnings and guards", Warnings(notices) if notices else Text("No warning applies."),
        figures.get("guards"),
    )  # fmt: skip


def _samples(data: ReportData) -> Section:
    found = [samples for arm in data.arms if (samples := arm_samples(data, arm)) is not None]
    intro = "Shortest, median and longest completions of one run of each mode, from its first and its last fifth."
    return _section("samples", "Sample completions", *([Text(intro), *found] if found else []))


def _missing(data: ReportData) -> Section:
    problems = Points(data.problems) if data.problems else None
    heading = (
        Text("Files that could not be read; the rest of the sweep is reported without them:") if problems else None
    )
    return _section("missing", "What is missing", missing_table(data), heading, problems)


def _reproduce(data: ReportData) -> Section:
    spec = data.spec
    lines = reproducing_commands(spec)
    out = next(filter(None, map(written_to, lines)), f"results/{data.sweep.path.name}")
    lines.append(f"lossbench report {shlex.quote(out)}")
    how = Details("How the numbers come about", (Points(method(spec)),))
    return _section("reproduce", "Reproduce", Code("\n".join(lines)), _provenance(spec), _settings(data), how)


def written_to(command: str) -> str | None:
    """Value of --out on a command line, None if lossbench chooses the folder."""
    try:
        typed = shlex.split(command)
    except ValueError:  # a quote left open, in a sweep.json that someone edited
        return None
    words = [part for word in typed for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    return words[words.index("--out") + 1] if "--out" in words[:-1] else None


def _provenance(spec: Mapping[str, Any]) -> Table | None:
    git, machine = spec.get("git") or {}, spec.get("machine") or {}
    rows = [(name, version) for name, version in (spec.get("versions") or {}).items() if version]
    if git.get("commit"):
        rows.append(("commit", f"{git['commit']}{' (with uncommitted changes)' if git.get('dirty') else ''}"))
    if spec.get("plan_hash"):
        rows.append(("plan", str(spec["plan_hash"])[:12]))
    rows += [(name, str(value)) for name, value in machine.items()]
    return _two_columns("Made with", "what", "version", rows)


def _settings(data: ReportData) -> Details | None:
    shared = data.spec.get("shared") or {}
    rows = [(key, _plain(value)) for key, value in sorted(shared.items()) if value not in (None, [], {})]
    table = _two_columns("Settings that all runs share", "key", "value", rows)
    return Details("Settings that all runs share", (table,)) if table else None


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _two_columns(caption: str, left: str, right: str, rows: list[tuple[str, Any]]) -> Table | None:
    if not rows:
        return None
    cells = tuple((Cell(str(name)), Cell(str(value))) for name, value in rows)
    return Table(caption, (Column(left, numeric=False), Column(right, numeric=False)), cells)
