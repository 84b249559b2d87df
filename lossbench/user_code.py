"""Python files of the user's own, given as `path/to/file.py:name`."""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown


def attribute_of(reference: str, what: str) -> Any:
    """The class or function that `reference` names; `what` says in messages what it is wanted for.

    Raises UsageError where the file or the name is missing, or running the file fails.
    """
    path_text, _, name = reference.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"{what} {reference}: no such file '{path}'")
    if not name:
        raise UsageError(f"{what} {reference}: say which class or function of the file, as {path}:Name")
    module = _run_file(path, f"{what} {reference}")
    if not hasattr(module, name):
        public = [n for n, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
        raise UsageError(unknown(f"name in {path}", name, public))
    return getattr(module, name)


def _run_file(path: Path, where: str) -> Any:
    name = f"lossbench_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{where}: '{path}' cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code: its failure is the user's to read, in one line
        raise UsageError(f"{where}: running the file raised {type(error).__name__}: {one_line(error)}") from error
    return module
