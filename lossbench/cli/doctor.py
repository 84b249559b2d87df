"""`lossbench doctor`: does the installed TRL compute what its loss types are taken for, and what is this machine?"""

import math
from typing import Any

from typer import Exit

from lossbench.cli import _options as o
from lossbench.cli._output import print_table, talk

_PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets")


def doctor(format: o.FormatOption = "table") -> None:
    """Check the installed TRL against this program's definitions, in seconds; exits with 1 if they differ.

    Example: lossbench doctor
    """
    from lossbench.extras import TRAIN, require

    require("doctor", "train", *TRAIN)
    _say_environment()
    rows = _conformance()
    print_table(rows, None, format)
    drifted = [row["loss_type"] for row in rows if row["verdict"] != "ok"]
    if drifted:
        talk(f"TRL's loss has drifted from the definitions for: {', '.join(drifted)}; install trl>=1.16,<1.17")
        raise Exit(1)
    talk("TRL's losses agree with the definitions (largest relative difference in the columns loss and gradient)")


def _say_environment() -> None:
    import platform
    from importlib.metadata import version

    import torch

    from lossbench.version import __version__

    devices = ["cpu", *map(torch.cuda.get_device_name, range(torch.cuda.device_count()))]
    devices += ["mps"] * torch.backends.mps.is_available()
    talk(f"lossbench {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    talk(", ".join(f"{package} {version(package)}" for package in _PACKAGES))
    talk(f"devices: {', '.join(devices)}; threads: {torch.get_num_threads()}")


def _conformance() -> list[dict[str, Any]]:
    """One row per TRL loss type: the worst relative differences, at token and sequence level, with and without KL."""
    from lossbench.training.trl_check import TRL_LOSS_TYPES, difference

    rows = []
    for loss_type, mode in TRL_LOSS_TYPES.items():
        try:
            worst = difference(loss_type)
            loss, gradient, verdict = worst.loss, worst.gradient, "drifted" if worst.drifted else "ok"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # a TRL whose method reads or calls something else is a TRL that moved: that is the finding
            loss, gradient, verdict = math.nan, math.nan, f"changed: {type(error).__name__}: {error}"
        rows.append({"loss_type": loss_type, "equals": mode, "loss": loss, "gradient": gradient, "verdict": verdict})
    return rows
