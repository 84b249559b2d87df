"""Selection of the parameters that the probe differentiates by."""

from collections.abc import Sequence

from torch import nn

from lossbench.errors import UsageError


def select_parameters(model: nn.Module, patterns: Sequence[str] | None = None) -> dict[str, nn.Parameter]:
    """Name to parameter, each tensor once, in the model's order.

    Without patterns: the trainable ones (with adapters, those of the adapters alone). A pattern is a run of whole parts
    of a dotted name, such as `lm_head` or `layers.-1.mlp`; a negative number counts from the end of its list. A tied
    parameter answers to each of its names. Raises UsageError for a pattern that nothing matches.
    """
    named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False) if p.is_floating_point()]
    if not patterns:
        chosen = [(name, p) for name, p in named if p.requires_grad]
        if not chosen:
            raise UsageError("the policy has no trainable parameters: name some with --params")
    else:
        counts = _list_lengths([name for name, _ in named])
        hits = {pattern: [item for item in named if _matches(item[0], pattern, counts)] for pattern in patterns}
        if missing := [pattern for pattern, found in hits.items() if not found]:
            parts = dict.fromkeys(part for name, _ in named for part in name.split(".") if not part.isdigit())
            raise UsageError(f"--params '{missing[0]}' matches no parameter; parts of names here: {', '.join(parts)}")
        wanted = {id(p) for found in hits.values() for _, p in found}
        chosen = [(name, p) for name, p in named if id(p) in wanted]
    unique: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in chosen:
        unique.setdefault(id(parameter), (name, parameter))
    return dict(unique.values())


def _list_lengths(names: Sequence[str]) -> dict[str, int]:
    """Length of each module list, by the dotted name in front of its number."""
    lengths: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                prefix = ".".join(parts[:place])
                lengths[prefix] = max(lengths.get(prefix, 0), int(part) + 1)
    return lengths


def _matches(name: str, pattern: str, counts: dict[str, int]) -> bool:
    parts, wanted = name.split("."), pattern.strip().split(".")
    return any(
        all(_same(parts, first + i, part, counts) for i, part in enumerate(wanted))
        for first in range(len(parts) - len(wanted) + 1)
    )


def _same(parts: list[str], place: int, wanted: str, counts: dict[str, int]) -> bool:
    if wanted.startswith("-") and wanted[1:].isdigit() and parts[place].isdigit():
        return int(parts[place]) == counts[".".join(parts[:place])] + int(wanted)
    return parts[place] == wanted
