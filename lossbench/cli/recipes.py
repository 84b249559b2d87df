"""`lossbench recipes`: list, print or copy the recipes that ship with the program."""

from typing import Annotated

from typer import Argument

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, show, talk
from lossbench.errors import UsageError, unknown


def recipes(
    name: Annotated[o.Text, Argument(help="Print this recipe.")] = None,
    copy: Annotated[o.File, o.option("Write the recipe to this file, to be edited.")] = None,
    format: o.FormatOption = "table",
) -> None:
    """List the recipes, or print or copy one.

    Example: lossbench recipes quick --copy mine.toml
    """
    from lossbench.sweep.recipe import load_recipe, recipe_dir, recipe_names

    if name is None:
        if copy is not None:
            raise UsageError("--copy needs the recipe's name: lossbench recipes NAME --copy FILE")
        rows = [{"recipe": found, "description": load_recipe(found).description} for found in recipe_names()]
        print_table(rows, ["recipe", "description"], format)
        return
    path = recipe_dir() / f"{name.replace('-', '_')}.toml"
    if not path.is_file():
        raise UsageError(unknown("recipe", name, recipe_names()))
    if copy is None:
        show(path.read_text(encoding="utf-8"), end="")
        return
    try:
        with copy.open("x", encoding="utf-8") as file:
            file.write(path.read_text(encoding="utf-8"))
    except FileExistsError:
        raise UsageError(f"'{copy}' exists: choose another file") from None
    talk(f"wrote '{copy}'; run it with: lossbench sweep {copy}")
