"""Mutation score: single edits of the code that decides numbers, each of which a test has to notice.

`python tests/support/mutants.py [PACKAGE ...]` applies each edit of mutants.toml to a copy of the checkout,
runs the tests named beside the file until one fails, and prints the survivors and the score by package.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".toml")
GOALS = {"all": 0.95, "package": 0.90}
LIMIT_S = 300.0
HEAVY = ("torch", "transformers", "trl", "pandas", "duckdb", "scipy.stats", "matplotlib.pyplot", "hypothesis", "pytest")


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which occurs once in `path`, becomes `new`; `tests` are the ones that concern the file."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package of the file, or its name where it lies beside the packages."""
        return Path(self.path).parts[1].removesuffix(".py")

    def applied(self, text: str) -> str:
        """The file's text with the edit. Raises ValueError unless `old` occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """Every edit of the list, in its order."""
    entries = tomllib.loads(path.read_text())["file"]
    return [Mutant(entry["path"], old, new, tuple(entry["tests"])) for entry in entries for old, new in entry["edits"]]


def _run_tests(copy: Path, tests: tuple[str, ...]) -> None:
    """Run the tests in this (forked) process; the exit code is pytest's."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:0] = [str(copy)]
    sys.dont_write_bytecode = True
    with open(copy / "mutant.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])  # a failure is enough, however large
    settings.load_profile("mutants")
    os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout=240", *tests]))


def outcome(copy: Path, tests: tuple[str, ...]) -> str:
    """Result of the tests on the copy as it is: "survived", "killed" or "no tests"."""
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(copy, tests))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return "killed"
    return {0: "survived", 4: "no tests", 5: "no tests"}.get(process.exitcode, "killed")


def main(packages: list[str]) -> int:
    """Print each mutant's fate and the score by package; 1 where a score is below its goal."""
    mutants = [mutant for mutant in read_mutants() if not packages or mutant.package in packages]
    for name in HEAVY:
        import_module(name)
    fates: dict[str, Counter[str]] = {}
    sound: dict[tuple[str, ...], bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".venv", "*.egg-info"))
        for mutant in mutants:
            if mutant.tests not in sound:
                sound[mutant.tests] = outcome(copy, mutant.tests) == "survived"
                if not sound[mutant.tests]:
                    print(f"fails on the unchanged code, its edits are left out: {' '.join(mutant.tests)}", flush=True)
            if not sound[mutant.tests]:
                continue
            file, began = copy / mutant.path, time.monotonic()
            text = file.read_text()
            file.write_text(mutant.applied(text))
            fate = outcome(copy, mutant.tests)
            file.write_text(text)
            fates.setdefault(mutant.package, Counter())[fate] += 1
            line = f"{fate:9}{time.monotonic() - began:5.0f} s  {mutant.path}: {mutant.old!r} -> {mutant.new!r}"
            print(line, flush=True)
    return max(_print_scores(fates), 0 if all(sound.values()) else 1)


def _print_scores(fates: dict[str, Counter[str]]) -> int:
    total = sum(fates.values(), Counter())
    rows = [*sorted(fates.items()), ("all", total)]
    below = []
    for name, counts in rows:
        score = counts["killed"] / counts.total()
        below += [name] if score < GOALS.get(name, GOALS["package"]) else []
        print(f"{name:12} {counts['killed']:4} of {counts.total():4} killed  {score:6.1%}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
