"""lossbench: side-by-side evidence on GRPO loss modes.

The names below load on first use, so that importing the package (and `lossbench --help`) loads nothing heavy.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from lossbench.version import __version__

if TYPE_CHECKING:
    from lossbench.api import Sweep, load, run_sweep
    from lossbench.diagnosis.watch import watch
    from lossbench.loss.modes import parse_mode
    from lossbench.loss.verl_agg_loss import agg_loss
    from lossbench.training.trainer import ModeTrainer

__all__ = ["ModeTrainer", "Sweep", "__version__", "agg_loss", "load", "parse_mode", "run_sweep", "watch"]

_LAZY = {
    "ModeTrainer": "training.trainer", "Sweep": "api", "agg_loss": "loss.verl_agg_loss", "load": "api",
    "parse_mode": "loss.modes", "run_sweep": "api", "watch": "diagnosis.watch",
}  # fmt: skip

# Nobody is told what is run here, whether the hub's client was imported before or comes later.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
if "huggingface_hub.constants" in sys.modules:
    sys.modules["huggingface_hub.constants"].HF_HUB_DISABLE_TELEMETRY = True  # type: ignore[attr-defined]


def __getattr__(name: str):
    """Import a public name from its module the first time it is asked for."""
    if name in _LAZY:
        return getattr(import_module(f"lossbench.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'lossbench' has no attribute {name!r}")
