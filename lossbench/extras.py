"""Optional dependencies: what is missing, and the extra that installs it."""

import importlib.util

from lossbench.errors import UsageError

TRAIN = ("trl", "transformers", "accelerate", "datasets")  # packages of the extra `train`


def require(what: str, extra: str, *packages: str) -> None:
    """Raise UsageError where one of `packages` is missing, which `what` needs and `extra` installs."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{what} needs {', '.join(missing).replace('_', '-')}: pip install 'lossbench[{extra}]'")
