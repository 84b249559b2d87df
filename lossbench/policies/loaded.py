"""A policy in memory, and models and tokenizers from folders of this machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class LoadedPolicy:
    """A model ready to train, its tokenizer, and where exactly they come from."""

    model: Any
    tokenizer: Any
    resolved: dict[str, Any] = field(default_factory=dict)


def hide_progress_bars() -> None:
    """Keep transformers from drawing bars into logs, on loading and saving."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def from_folder(kind: Any, folder: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """`kind.from_pretrained(folder)`, offline; code in the folder runs only where `trust_remote_code` says so."""
    hide_progress_bars()
    return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code, **options)
