"""torch and NumPy, imported when first used: names and formulas of modes are read where no array is ever made."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy import ndarray as Array
    from numpy.typing import ArrayLike
    from torch import Tensor
else:

    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    np, torch = _Lazy("numpy"), _Lazy("torch")
    Array = ArrayLike = Tensor = Any

__all__ = ["Array", "ArrayLike", "Tensor", "np", "torch"]
