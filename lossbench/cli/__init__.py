"""The `lossbench` command. Nothing heavy is imported here or at the top of a command's file."""

import sys
from importlib import import_module
from typing import Annotated

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

# In the order of the help page; a new command is one file and one row.
COMMANDS = (
    "sweep",
    "report",
    "reproduce",
    "probe",
    "compare",
    "diagnose",
    "identify",
    "modes",
    "weights",
    "ingest",
    "runs",
    "recipes",
    "tasks",
    "doctor",
)

for _name in COMMANDS:
    app.command(_name)(getattr(import_module(f"lossbench.cli.{_name}"), _name))


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
    """Run the command line; a user's mistake is one line on stderr and exit code 2.

    So is what the system refuses: a path that cannot be written, a full disk.
    """
    print_anywhere()
    try:
        app()
    except BrokenPipeError:  # whoever reads us has enough
        raise
    except UsageError as error:
        talk(f"error: {error}")
        sys.exit(2)
    except OSError as error:
        talk(f"error: {error.filename or 'output'}: {error.strerror or error}")
        sys.exit(2)
