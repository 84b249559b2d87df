"""From a policy's name to a model and its tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lossbench.policies import BUILT_IN
from lossbench.policies.warmstart import ensure_policy, policy_key, policy_path


@dataclass
class LoadedPolicy:
    """A model ready to train, its tokenizer, and where exactly they come from."""

    model: Any
    tokenizer: Any
    resolved: dict[str, Any] = field(default_factory=dict)


def is_built_in(policy: str) -> bool:
    """Whether `policy` names a policy that lossbench makes itself."""
    return policy in BUILT_IN


def policy_is_ready(policy: str, policy_seed: int | None) -> bool:
    """Whether the built-in policy is in the cache already."""
    return policy_path(replace(BUILT_IN[policy], policy_seed=policy_seed or 0)).is_dir()


def prepare_policy(policy: str, policy_seed: int | None, on_step: Callable[[int, int], None] | None = None) -> None:
    """Make sure a built-in policy is in the cache; a model reference needs nothing."""
    if policy in BUILT_IN:
        ensure_policy(replace(BUILT_IN[policy], policy_seed=policy_seed or 0), on_step)


def load_policy(policy: str, policy_seed: int | None = None, **options: Any) -> LoadedPolicy:
    """The policy called `policy`: a built-in one at `policy_seed`, else a model reference (`load_pretrained`).

    `options` are those of `load_pretrained` (dtype, device, lora, ...). Raises UsageError where a model cannot be had.
    """
    if policy not in BUILT_IN:
        from lossbench.policies.hub import load_pretrained

        return load_pretrained(policy, **options)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = replace(BUILT_IN[policy], policy_seed=policy_seed or 0)
    folder = ensure_policy(config)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return LoadedPolicy(model, tokenizer, {"policy": policy, "policy_key": policy_key(config)})
