"""The order of the packages: imports point one way, and there are no cycles."""

import ast
from pathlib import Path

import lossbench

PACKAGE = Path(lossbench.__file__).parent
# From the top down; packages in one row do not import each other, but that policies may know tasks.
ROWS = [
    {"cli"}, {"api"}, {"report"}, {"claims", "diagnosis"}, {"sweep"}, {"training"}, {"probe", "ingest"},
    {"metrics", "sampling", "policies"}, {"tasks"}, {"store"}, {"loss"},
]  # fmt: skip
LEVEL = {name: -row for row, names in enumerate(ROWS) for name in names}


def name_of(path: Path) -> str:
    parts = ("lossbench", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path) -> set[str]:
    """Modules of lossbench that a file imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in MODULES}


IMPORTS = {name: imported(path) - {name} for name, path in MODULES.items()}


def package_of(module: str) -> str | None:
    """The package of a module below lossbench; None for shared modules such as errors, which all may import."""
    name = module.split(".")[1] if "." in module else ""
    return name if name in LEVEL else None


def test_every_package_has_a_place_in_the_order() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(LEVEL)


def test_nothing_imports_what_lies_above_it() -> None:
    upward = []
    for module, targets in IMPORTS.items():
        for target in targets:
            here, there = package_of(module), package_of(target)
            if here and there and here != there and LEVEL[here] <= LEVEL[there]:
                upward.append(f"{module} -> {target}")
    assert not upward


def test_shared_modules_import_no_package() -> None:
    shared = {module for module in MODULES if package_of(module) is None} - {"lossbench", "lossbench.__main__"}
    assert not [f"{module} -> {t}" for module in shared for t in IMPORTS[module] if package_of(t)]


def test_no_cycle_of_modules() -> None:
    settled: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in settled:
            for target in IMPORTS[module]:
                visit(target, (*above, module))
            settled.add(module)

    for module in MODULES:
        visit(module, ())
