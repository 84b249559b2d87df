"""A policy in memory: the model, its tokenizer and their origin."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class LoadedPolicy:
    """A model ready to train, its tokenizer, and where exactly they come from."""

    model: Any
    tokenizer: Any
    resolved: dict[str, Any] = field(default_factory=dict)
