"""Training without dropout, so that the policy that is trained is the one that was sampled."""

from typing import Any

from torch import nn

_NOISE = ("drop", "jitter")  # attention_dropout, resid_pdrop, layerdrop, router_jitter_noise, ...


def switch_dropout_off(model: Any) -> None:
    """Set every dropout probability of `model` to 0, adapters included, for good.

    TRL's `disable_dropout_in_model` does it for dropout modules; here also for the probabilities that a module keeps as
    a number, or reads from its config at each forward. Unlike evaluation mode it leaves gradient checkpointing on.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for holder in (module, getattr(module, "config", None)):
            _zero(holder)


def _zero(holder: Any) -> None:
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        if isinstance(value, float) and any(part in name for part in _NOISE):
            setattr(holder, name, 0.0)
