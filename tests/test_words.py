"""Wording of what people read: docstrings, messages, help texts, captions, templates, recipes, docs and README.

Each pattern is a turn of phrase that reads as translated or as private vocabulary; its replacement stands beside it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.readme import ROOT, pages

import lossbench

PACKAGE = Path(lossbench.__file__).parent

ANYWHERE = {
    r"talk (goes )?to stderr": "progress and warnings go to stderr",
    r"asked for that cannot be": "invalid request",
    r"no such thing": "not applicable",
    r"\bword on the (answer|completion)|'s word\b": "verdict; whether the verifier accepted the answer",
    r"the same experiment here, train one": "mathematically identical in this setup",
    r"Start nothing more": "Stop after the first failed run",
    r"\bcosts? nothing\b": "adds no computation, costs little",
    r"\bdecides nothing|shows the way": "too small for verdicts",
    r"\bdrifted apart\b": "differ",
    r"\b(loss|front|upper|lower) room\b|\blodgers?\b|\bfront door\b|\bof the house\b": "package",
    r"task around another": "base class that delegates to another task",
    r"\bforbids? to\b": "is set, so it is not",
    r"\bthere (is|are) (not|none)\b|\bthere (is|are) no\b": "no ..., without ..., is missing",
    r"\bwhatever (the|its) (ending|number)\b": "even if it was cut off, regardless of",
    r"\b(is|are) told (of|it|so|nothing)\b": "receives, is called with",
    r"\bcan(not)? be had\b|\bnot to be had\b": "is not available",
    r"\bbut for\b": "except",
    r"\bof like length\b": "of similar length",
    r"\bcame to\b": "ended at",
    r"\ba person\b|\bwhoever\b": "people, the user, the reader",
    r"\bneeds? not be\b": "may differ from, is not necessarily",
    r"\bhave (a|its) say\b|\bhas nothing to say\b|\bsays? nothing\b": "means nothing, holds no information",
    r"\bgives? way\b|\bby the way of\b|\bin the way of\b": "plain words",
    r"\bmend(s|ed|ing)?\b": "fix",
}
FIRST_LINE = {
    r"What\b": "a noun phrase, or an imperative",
    r"(How|Why|Where|When|Who|Whom|Which|On how)\b": "a noun phrase, or an imperative",
    r"(Says|Tells|Makes|Writes|Reads|Yields|Keeps|Lets|Puts|Gathers|Cuts|Grows|Asks|Draws|Builds)\b(?= \w)":
        "an imperative, or a noun phrase",
    r"None where\b|As much of\b|Those of\b": "a noun phrase",
}  # fmt: skip
SHOWN = {
    r"(?<!check )(?<!Check )(?<!Checked )\bagainst\b(?! TRL| this program| these definitions)": "vs",
    r"(?<!or )(?<!`)\barms?\b(?! ==)": "run, mode (`arms` is a key of recipes)",
}
# Worded before the runs that they were tested on, and part of the fingerprint of a study's claims.
STATED = PACKAGE / "claims" / "registry.py"


def literals(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is documentation) of a file's strings that hold prose."""
    tree = ast.parse(path.read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    documentation = {id(node.value) for node in statements if isinstance(node.value, ast.Constant)}
    formatted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if " " in node.value.strip() or (id(node) in formatted and " " in node.value):
            yield node.lineno, node.value, id(node) in documentation


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line, first line) of every docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text.partition("\n")[0]


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != STATED)
TEXTS = [*pages(), *sorted(PACKAGE.rglob("*.j2")), *sorted((ROOT / "recipes").glob("*.toml"))]


def found(patterns: dict[str, str], text: str, flags: int = re.IGNORECASE) -> list[str]:
    """Each hit with what to write instead."""
    flat = " ".join(text.split())
    return [f"{m[0]!r} in {flat[max(0, m.start() - 40) : m.end() + 30]!r}: {better}"
            for pattern, better in patterns.items() for m in re.finditer(pattern, flat, flags)]  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_strings_of_the_package(path):
    faults = []
    for line, text, documentation in literals(path):
        patterns = ANYWHERE if documentation else ANYWHERE | SHOWN
        faults += [f"{line}: {hit}" for hit in found(patterns, text)]
    faults += [f"{line}: {better}: {text}" for line, text in first_lines(path)
               for pattern, better in FIRST_LINE.items() if re.match(pattern, text)]  # fmt: skip
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_pages_templates_and_recipes(path):
    text = path.read_text()
    if path.name in ("README.md", "evidence.md"):  # tables of claims, in the words in which they were stated
        text = re.sub(r"<!-- (claims|verdicts|finding|smollm2) -->.*?<!-- /\1 -->", "", text, flags=re.S)
    faults = found(ANYWHERE | {pattern: SHOWN[pattern] for pattern in SHOWN if "against" in pattern}, text)
    assert not faults, "\n".join(faults)
