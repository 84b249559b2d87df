"""From a policy's name to a model and its tokenizer."""

from collections.abc import Mapping
from typing import Any

from lossbench.policies import BUILT_IN
from lossbench.policies.adapters import refuse_bad_lora, with_lora
from lossbench.policies.loaded import LoadedPolicy, from_folder
from lossbench.policies.prepare import built_in_policy, check_policy_params
from lossbench.policies.warmstart import ensure_policy, policy_key


def is_built_in(policy: str) -> bool:
    """Whether `policy` names a policy that lossbench makes itself."""
    return policy in BUILT_IN


def load_policy(
    policy: str, policy_seed: int | None = None, *, policy_params: Mapping[str, Any] | None = None, **options: Any
) -> LoadedPolicy:
    """The policy called `policy`: a built-in one at `policy_seed`, else a model reference (`load_pretrained`).

    `policy_params` change a built-in policy's configuration (`TinyPolicy`). `options` are those of `load_pretrained`
    (dtype, device, lora, ...), of which built-in policies take `lora`: they come in float32, on the CPU. Raises
    UsageError where a model is not available.
    """
    check_policy_params(policy, policy_params or {})
    if policy not in BUILT_IN:
        from lossbench.policies.hub import load_pretrained

        return load_pretrained(policy, **options)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = built_in_policy(policy, policy_seed, policy_params)
    folder = ensure_policy(config)
    model, tokenizer = (from_folder(kind, folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
    if lora := options.get("lora"):
        refuse_bad_lora(lora)
        model = with_lora(model, lora)
    return LoadedPolicy(model, tokenizer, {"policy": policy, "policy_key": policy_key(config), "lora": lora})
