"""LoRA: the options of a fresh adapter, and folders that hold a trained adapter without its base model."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.extras import require

ADAPTER_FILE = "adapter_config.json"
_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "r": (lambda r: isinstance(r, int) and r >= 1, "a whole number >= 1, as in --lora r=16"),
    "alpha": (lambda alpha: _is_number(alpha) and 0 < alpha < inf, "a number above 0, by default twice r"),
    "dropout": (lambda share: _is_number(share) and 0 <= share < 1, "from 0 up to but not 1"),
}
"""The options that are numbers: whether a value fits, and what is valid."""


def parse_lora(text: str) -> dict[str, int | float]:
    """The options of `--lora`, which takes those that are numbers. Raises UsageError in one line.

    >>> parse_lora("r=16, alpha=32")
    {'r': 16, 'alpha': 32}
    """
    found: dict[str, int | float] = {}
    for item in text.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        number = _number(value)
        if number is None:
            raise UsageError(f"--lora '{text}': write r=16 or r=16,alpha=32")
        if name not in _NUMBERS:
            raise UsageError(f"--lora '{text}': {unknown('LoRA option', name, _NUMBERS)}")
        if name in found:
            raise UsageError(f"--lora '{text}': {name} is given twice")
        found[name] = number
    _check_options(found)
    return found


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_options(lora: Mapping[str, Any]) -> None:
    names = (*_NUMBERS, "target_modules")
    for name in lora:
        if name not in names:
            raise UsageError(unknown("LoRA option", name, names))
    for name, (fits, valid) in _NUMBERS.items():
        if (name == "r" or name in lora) and not fits(lora.get(name)):
            raise UsageError(f"LoRA option {name}={lora.get(name)!r}; valid: {valid}")


def refuse_bad_lora(lora: Mapping[str, Any] | None) -> None:
    """Raise UsageError for an unknown option, a value out of range, or a missing `peft`."""
    if lora is not None:
        _check_options(lora)
        require("LoRA", "peft", "peft")


def with_lora(model: Any, lora: Mapping[str, Any]) -> Any:
    """`model` with fresh adapters on all its linear layers; alpha defaults to twice r."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora["r"],
        lora_alpha=lora.get("alpha", 2 * lora["r"]),
        lora_dropout=lora.get("dropout", 0.0),
        target_modules=lora.get("target_modules", "all-linear"),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def adapter_base(folder: Path, reference: str) -> str | None:
    """The model that the adapter in `folder` was trained on top of; None where the folder holds a whole model.

    Raises UsageError where the adapter does not say, or `peft` is missing.
    """
    file = folder / ADAPTER_FILE
    if (folder / "config.json").is_file() or not file.is_file():
        return None
    require(f"model '{reference}' is an adapter, which", "peft", "peft")
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    if not base:
        raise UsageError(f"model '{reference}': its {ADAPTER_FILE} does not name the base model: merge the two first")
    return str(base)


def with_trained_adapter(model: Any, folder: Path, reference: str) -> Any:
    """`model` with the adapter in `folder`, which alone is trained further. Raises UsageError where it does not fit."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(folder), is_trainable=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"model '{reference}': the adapter cannot be loaded ({one_line(error)})") from error
