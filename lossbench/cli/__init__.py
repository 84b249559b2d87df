"""The `lossbench` command. Nothing heavy is imported here or at the top of a command's file."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from lossbench.cli._output import print_anywhere, talk
from lossbench.errors import UsageError
from lossbench.version import __version__

app = typer.Typer(
    name="lossbench",
    help="Side-by-side evidence on GRPO loss modes: train them, measure their length bias, judge it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_BadOption: Any = typer.BadParameter.__base__  # Typer names only this one of its refusals
# In the order of the help page; a new command is one file and one word.
PANELS = {
    "Start": ("sweep", "report", "compare", "reproduce"),
    "Your run": ("diagnose", "ingest", "identify", "probe"),
    "Understand": ("modes", "weights"),
    "Housekeeping": ("runs", "recipes", "tasks", "doctor"),
}
COMMANDS = tuple(name for names in PANELS.values() for name in names)

for _panel, _names in PANELS.items():
    for _name in _names:
        app.command(_name, rich_help_panel=_panel)(getattr(import_module(f"lossbench.cli.{_name}"), _name))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"lossbench {__version__}")
        raise typer.Exit()


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a user's mistake, or a full disk, is one line on stderr and exit code 2."""
    print_anywhere()
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except BrokenPipeError:  # whoever reads us has enough
        raise
    except UsageError as error:
        refusal = str(error)
    except _BadOption as error:
        refusal = " ".join(error.format_message().replace("Value error, ", "").split())
    except typer.Abort:
        refusal = "aborted"
    except OSError as error:
        refusal = f"{error.filename or 'output'}: {error.strerror or error}"
    talk(f"error: {refusal}")
    sys.exit(2)
