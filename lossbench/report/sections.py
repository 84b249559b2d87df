"""The sections of a report and their content."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.diagnosis.diagnose import lines
from lossbench.report.data import ReportData
from lossbench.report.document import Block, Cell, Code, Details, Document, FigureBlock, Section, Text, cleaned, table
from lossbench.report.finding import HEADLINES, diagnosis, find, support
from lossbench.report.method import method
from lossbench.report.numbers import count, number_style
from lossbench.report.probe import probe_blocks
from lossbench.report.samples import arm_samples
from lossbench.report.tables import (
    arm_table,
    claims_in_detail,
    definition_table,
    matched_tables,
    missing_table,
    pairwise_table,
    verdict_table,
)
from lossbench.sweep.folder import reproducing_commands

Figures = Mapping[str, FigureBlock]


def make_document(data: ReportData, figures: Figures, folder: Path) -> Document:
    """The whole report; sections that would be empty are left out."""
    finding = find(data)
    document = Document(
        title=f"lossbench report: {data.spec.get('name') or data.sweep.path.name}",
        finding=finding.sentence,
        support=support(data, finding),
        hero=tuple(_figures(figures, "lengths")),
        facts=_facts(data),
        incomplete=_incomplete(data),
        sections=tuple(_sections(data, figures, finding.metric or HEADLINES[0])),
        modes=tuple(arm.name for arm in data.arms),
        folder=folder,
    )
    return cleaned(document)


def _figures(figures: Figures, *names: str) -> list[FigureBlock]:
    return [figures[name] for name in names if name in figures]


def _sections(data: ReportData, figures: Figures, metric: str) -> Iterable[Section]:
    """The sections in their order; below the warnings they are folded, except for the last."""

    def shown(*names: str) -> list[FigureBlock]:
        return _figures(figures, *names)

    change = data.claims_change
    exploratory = Text((f"Read the verdicts as exploratory: {change}.",)) if change else None
    run = None if data.compared else diagnosis(data)
    said = [Text((data.frozen.sentence,))] if data.frozen else []
    pairs = [pairwise_table(data, name) for name in dict.fromkeys((metric, "late_reward"))]
    samples = [found for arm in data.arms if (found := arm_samples(data, arm)) is not None]
    intro = Text(("Shortest, median and longest completions of one run of each mode, from its first and last fifth.",))
    content: list[tuple[str, str, bool, Sequence[Block | None]]] = [
        ("verdicts", "Verdicts", False, [exploratory, verdict_table(data), claims_in_detail(data)]),
        ("run", "The run", False, [Text(tuple(map(str.strip, lines(run)[2:])), listed=True)] if run else []),
        ("why", "Why: stopping, and the push on it", False, [*shown("stopping"), *said, *shown("response")]),
        ("modes", "Late means", False, [arm_table(data), *shown("forest")]),
        ("warnings", "Warnings", False, [_warnings(data)]),
        ("missing", "What is missing", False, [missing_table(data), *_problems(data)]),
        ("training", "During training", True, shown("length_by_correctness", "reward_length")),
        ("matched", "At equal step, tokens and reward", True, [*matched_tables(data)]),
        ("pairs", "Every pair of modes", True, pairs),
        ("lengths", "Lengths early and late", True, shown("length_distribution")),
        ("weights", "Weight vs length", True, [*shown("weights"), definition_table(data)]),
        ("probe", "Gradient probe", True,
         [*(probe_blocks(data.probe) if data.probe else []), *shown("drift", "dose_response", "trained_drift")]),
        ("guards", "Guards", True, shown("guards")),
        ("samples", "Sample completions", True, [intro, *samples] if samples else []),
        ("reproduce", "Reproduce", False, _reproduce(data)),
    ]  # fmt: skip
    for id, title, folded, blocks in content:
        kept = tuple(block for block in blocks if block is not None)
        if kept:
            yield Section(id, title, kept, folded)


def _facts(data: ReportData) -> tuple[tuple[str, str], ...]:
    runs = data.summary.runs
    done = sum(arm.completed for arm in data.arms)
    tokens = float(np.nansum(np.array(data.summary.metrics["tokens_total"], dtype=float)))
    facts = [
        ("runs", f"{done} of {len(runs)} completed"),
        ("modes", str(len(data.arms))),
        ("baseline", data.baseline if data.compared else ""),
        ("steps", _steps(data)),
        ("tokens generated", number_style("tokens", 1e6).plain(tokens) if tokens > 0 else ""),
    ]
    return tuple(fact for fact in facts if fact[1])


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


def _warnings(data: ReportData) -> Block:
    rows = [(Cell(notice.level, mark=notice.level), Cell(notice.message, f"Remedy: {notice.remedy}."))
            for notice in data.notices]  # fmt: skip
    return table("Warnings that apply", ["level", "what, and what to do"], rows) or Text(("No warning applies.",))


def _problems(data: ReportData) -> list[Block]:
    heading = "Files that could not be read; the rest of the sweep is reported without them:"
    return [Text((heading,)), Text(data.problems, listed=True)] if data.problems else []


def _reproduce(data: ReportData) -> list[Block | None]:
    spec = data.spec
    commands = reproducing_commands(spec)
    out = next(filter(None, map(written_to, commands)), f"results/{data.sweep.path.name}")
    commands.append(f"lossbench report {shlex.quote(out)}")
    shared = {key: value for key, value in sorted((spec.get("shared") or {}).items()) if value not in (None, [], {})}
    settings = [(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
                for key, value in shared.items()]  # fmt: skip
    tables = [
        table("Made with", ["what", "version"], _provenance(spec)),
        table("Settings that all runs share", ["key", "value"], settings),
    ]
    made = Details("Versions, machine and settings", tuple(found for found in tables if found))
    how = Details("How the numbers come about", (Text(method(spec), listed=True),))
    return [Code("\n".join(commands)), made if made.blocks else None, how]


def written_to(command: str) -> str | None:
    """Value of --out on a command line, None if lossbench chooses the folder."""
    try:
        typed = shlex.split(command)
    except ValueError:  # a quote left open, in a sweep.json that someone edited
        return None
    words = [part for word in typed for part in (word.split("=", 1) if word.startswith("--out=") else [word])]
    return words[words.index("--out") + 1] if "--out" in words[:-1] else None


def _provenance(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    git, machine = spec.get("git") or {}, spec.get("machine") or {}
    rows = [(name, version) for name, version in (spec.get("versions") or {}).items() if version]
    if git.get("commit"):
        rows.append(("commit", f"{git['commit']}{' (with uncommitted changes)' if git.get('dirty') else ''}"))
    if spec.get("plan_hash"):
        rows.append(("plan", str(spec["plan_hash"])[:12]))
    return [(str(name), str(value)) for name, value in [*rows, *machine.items()]]
