"""Generated parts of the pages that come from the code: registries, schema, module docstrings, recipes."""

import ast
import inspect
import re
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import lossbench
from lossbench.cli import COMMANDS
from lossbench.loss.advantages import PARTS
from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.equivalents import FRAMEWORKS, equivalents
from lossbench.loss.modes import PRESETS, make_mode, parse_mode
from lossbench.loss.surrogates import SURROGATES
from lossbench.store.schema import TABLES
from lossbench.sweep.recipe import recipe_dir, recipe_names

PACKAGE = Path(lossbench.__file__).parent


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(path: Path) -> str:
    """First line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def packages() -> str:
    """The packages from the top of the import order down, with their purpose."""
    from test_architecture import ROWS

    rows = []
    for row in ROWS:
        for name in sorted(row):
            folder = PACKAGE / name
            if folder.is_dir():
                rows.append([f"`{name}/`", summary(folder / "__init__.py")])
            elif folder.with_suffix(".py").is_file():
                rows.append([f"`{name}.py`", summary(folder.with_suffix(".py"))])
    return table(["package", "purpose"], rows)


def schema() -> str:
    """One Markdown table per parquet table: column, type, meaning."""
    parts = []
    for name, columns in TABLES.items():
        rows = [[f"`{column.name}`", _type(column.type), column.doc] for column in columns]
        parts.append(f"## `{name}`\n\n" + table(["column", "type", "meaning"], rows))
    return "\n\n".join(parts)


def _type(kind: object) -> str:
    return {"int64": "integer", "double": "real", "bool": "flag"}.get(str(kind), "text")


def presets() -> str:
    """Preset names and the triples they stand for."""
    rows = [[f"`{name}`", f"`{parse_mode(name).triple}`"] for name in PRESETS]
    return table(["preset", "the same, in full"], rows)


def _written(name: str) -> str:
    return f"`{name}:α`" if AGGREGATIONS[name].takes_alpha else f"`{name}`"


def weights() -> str:
    """The row weight of every aggregation."""
    rows = [[_written(name), f"`{entry.formula}`"] for name, entry in AGGREGATIONS.items()]
    return table(["`agg_mode`", "w_i"], rows)


def aggregations() -> str:
    """Weight, source and caveat of every aggregation."""
    rows = [[_written(name), f"`{e.formula}`", e.source, e.caveat] for name, e in AGGREGATIONS.items()]
    return table(["`agg_mode`", "w_i", "source", "caveat"], rows)


def surrogates() -> str:
    """Token loss, source and caveat of every surrogate."""
    rows = [[f"`{name}`", f"`{e.formula}`", e.source, e.caveat] for name, e in SURROGATES.items()]
    return table(["`loss_type`", "ℓ", "source", "caveat"], rows)


def constants() -> str:
    """The constants of the surrogates: whose they are, default and meaning."""
    rows: dict[str, list[str]] = {}
    for surrogate in SURROGATES.values():
        for name, field in surrogate.constants.model_fields.items():
            row = rows.setdefault(name, [f"`{name}`", "", f"`{field.default}`", field.description or ""])
            row[1] += f"{', ' if row[1] else ''}`{surrogate.name}`"
    return table(["constant", "of", "default", "meaning"], list(rows.values()))


def advantages() -> str:
    """Formula, source and caveat of every part of an advantage."""
    rows = [[f"`{name}`", e.axis, f"`{e.formula}`", e.source, e.caveat] for name, e in PARTS.items()]
    return table(["part", "axis", "formula", "source", "caveat"], rows)


def equivalent_names() -> str:
    """The name of each preset and of each aggregation under the clip surrogate, framework by framework."""
    modes = [parse_mode(name) for name in PRESETS]
    modes += [make_mode("grpo", f"{name}:0.5" if e.takes_alpha else name) for name, e in AGGREGATIONS.items()]
    rows = []
    for mode in {mode.triple: mode for mode in modes}.values():
        found = [f"`{entry.name}`" if entry.possible else "–" for entry in equivalents(mode)]
        rows.append([f"`{mode.name}`", *found])
    return table(["mode", *FRAMEWORKS], rows)


def recipes() -> str:
    """The recipes that ship, with their descriptions."""
    read = {name: tomllib.loads((recipe_dir() / f"{name}.toml").read_text()) for name in recipe_names()}
    return table(["recipe", "purpose"], [[f"`{name}`", keys["description"]] for name, keys in read.items()])


def commands() -> str:
    """Every command with its example and the first sentence of its help."""
    rows = []
    for name in COMMANDS:
        text = inspect.getdoc(getattr(import_module(f"lossbench.cli.{name}"), name)) or ""
        example = re.search(r"^Example: (.*(?:\n\S.*)*)", text, re.M)
        shown = " ".join(example[1].split()) if example else f"lossbench {name}"
        rows.append([f"`{shown}`", " ".join(text.split("\n\n")[0].split())])
    return table(["command", "purpose"], rows)


CODE_BLOCKS = {
    "commands": commands, "packages": packages, "schema": schema, "presets": presets, "weights": weights,
    "aggregations": aggregations, "surrogates": surrogates, "constants": constants, "advantages": advantages,
    "equivalents": equivalent_names, "recipes": recipes,
}  # fmt: skip
