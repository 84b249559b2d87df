"""LoRA: the options of a fresh adapter, and folders that hold a trained adapter without its base model."""

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line, unknown
from lossbench.extras import require

LORA_NUMBERS = ("r", "alpha", "dropout")
LORA_OPTIONS = (*LORA_NUMBERS, "target_modules")
ADAPTER_FILE = "adapter_config.json"


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
        if name not in LORA_NUMBERS:
            raise UsageError(f"--lora '{text}': {unknown('LoRA option', name, LORA_NUMBERS)}")
        if name in found:
            raise UsageError(f"--lora '{text}': {name} is given twice")
        found[name] = number
    check_options(found)
    return found


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def check_options(lora: Mapping[str, Any]) -> None:
    """Raise UsageError for an unknown option or a value out of range."""
    for name in lora:
        if name not in LORA_OPTIONS:
            raise UsageError(unknown("LoRA option", name, LORA_OPTIONS))
    for name in ("alpha", "dropout"):
        if isinstance(lora.get(name, 0), bool) or not isinstance(lora.get(name, 0), int | float):
            raise UsageError(f"LoRA option {name}={lora[name]!r}; valid: a number")
    if not isinstance(lora.get("r"), int) or lora["r"] < 1:
        raise UsageError(f"LoRA option r={lora.get('r')}; valid: a whole number >= 1, as in --lora r=16")
    if not 0 < lora.get("alpha", 1) < inf:
        raise UsageError(f"LoRA option alpha={lora['alpha']}; valid: a number above 0, by default twice r")
    if not 0 <= lora.get("dropout", 0) < 1:
        raise UsageError(f"LoRA option dropout={lora['dropout']}; valid: from 0 up to but not 1")


def refuse_bad_lora(lora: Mapping[str, Any] | None) -> None:
    """Raise UsageError for bad options (`check_options`), or a missing `peft`."""
    if lora is not None:
        check_options(lora)
        _need_peft("LoRA")


def _need_peft(what: str) -> None:
    require(what, "peft", "peft")


def with_lora(model: Any, lora: Mapping[str, Any], gradient_checkpointing: bool = False) -> Any:
    """`model` with fresh adapters on all its linear layers; alpha defaults to twice r."""
    from peft import LoraConfig, get_peft_model

    if gradient_checkpointing:  # frozen embeddings would cut the graph in front of the first checkpoint
        model.enable_input_require_grads()
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
    _need_peft(f"model '{reference}' is an adapter, which")
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    if not base:
        raise UsageError(f"model '{reference}': its {ADAPTER_FILE} does not name the base model: merge the two first")
    return str(base)


def with_trained_adapter(model: Any, folder: Path, reference: str, gradient_checkpointing: bool = False) -> Any:
    """`model` with the adapter in `folder`, which alone is trained further. Raises UsageError where it does not fit."""
    from peft import PeftModel

    if gradient_checkpointing:
        model.enable_input_require_grads()
    try:
        return PeftModel.from_pretrained(model, str(folder), is_trainable=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"model '{reference}': the adapter cannot be loaded ({one_line(error)})") from error
