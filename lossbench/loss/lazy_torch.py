"""torch, imported when it is first used: the names and formulas of modes are read where no tensor is ever made."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()
    Tensor = Any

__all__ = ["Tensor", "torch"]
