"""Shared by the conformance tests: reading the vector files and comparing numbers with NaN and infinities in them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"


def document(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


def numbers(values: Any) -> Any:
    """Nested lists with "nan" and "inf" as strings and null for a missing value, as nested lists of floats."""
    if isinstance(values, list):
        return [numbers(value) for value in values]
    return float("nan") if values is None else float(values)


def tensor(values: Any) -> Tensor:
    return torch.tensor(numbers(values), dtype=torch.float64)


def equal(ours: Any, theirs: Any, rtol: float, atol: float) -> bool:
    return torch.allclose(torch.as_tensor(ours, dtype=torch.float64), tensor(theirs), rtol, atol, equal_nan=True)


@dataclass
class Count:
    """Equal and departing rows of one vector file."""

    name: str
    equal: int = 0
    departing: list[str] = field(default_factory=list)

    def show(self) -> str:
        total = self.equal + len(self.departing)
        return f"{self.name}: {self.equal} equal / {len(self.departing)} departing / {total} total"
