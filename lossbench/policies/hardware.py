"""Device and precision of a run: decided here alone, for runs, probes and `--dry-run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, unknown

DEVICES, DTYPES = ("auto", "cpu", "cuda"), ("auto", "float32", "bfloat16")
_GPU_FILES = ("nvidia[0-9]*", "nvmap", "kfd", "dxg")  # NVIDIA's on a PC and on a board, AMD's, either's inside WSL


@dataclass(frozen=True)
class Placement:
    """A device, the dtype that the weights are kept in there, and the one that the model computes in."""

    device: str
    weights: str
    compute: str

    @property
    def sentence(self) -> str:
        """The placement in words."""
        return f"device {self.device}, weights {self.weights}, computed in {self.compute}"


def may_have_gpu() -> bool:
    """Whether this machine has a device file of a GPU. Where it has none, nobody needs to import torch to know."""
    return any(any(Path("/dev").glob(pattern)) for pattern in _GPU_FILES)


def choose_device(asked: str) -> str:
    """`asked`, with "auto" resolved: the GPU where there is one. Raises UsageError for a missing device."""
    if asked == "cpu":
        return asked
    if asked == "auto":
        return "cuda" if _has_gpu() else "cpu"
    if asked.partition(":")[0] != "cuda":
        raise UsageError(unknown("device", asked, DEVICES))
    if not _has_gpu():
        raise UsageError(f"device '{asked}': torch sees no GPU here; valid: auto, cpu")
    return asked


def _has_gpu() -> bool:
    if not may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def placement(device: str, dtype: str) -> Placement:
    """Device and precision of a run with these settings on this machine.

    "auto" keeps the weights float32 everywhere, so that small updates are not rounded away, and computes in bfloat16
    where the GPU has instructions for it: emulated it is slower than float32, and on a CPU it may be. Raises UsageError
    where the device, or the dtype on it, is not available.
    """
    place = choose_device(device)
    if dtype not in DTYPES:
        raise UsageError(unknown("dtype", dtype, DTYPES))
    weights = "bfloat16" if dtype == "bfloat16" else "float32"
    if place == "cpu" or dtype == "float32":
        return Placement(place, weights, weights)
    import torch

    native = torch.cuda.is_bf16_supported(including_emulation=False)
    if dtype == "bfloat16" and not native:
        raise UsageError("dtype 'bfloat16': this GPU cannot compute in it; valid: auto, float32")
    return Placement(place, weights, "bfloat16" if native else "float32")


def torch_dtype(name: str) -> Any:
    """The `torch.dtype` of that name."""
    import torch

    return getattr(torch, name)
