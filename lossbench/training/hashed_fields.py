"""The fields behind a run's id and a sweep's plan hash.

A field that came after the first release is left out while it has its default, so old ids stay as they are. A new field
needs nothing done here, but its default can never change: it stands for every run made before the field existed.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

# the fields of RunSpec, its mode, Settings and Recipe that are hashed whatever they hold
_FIRST = {
    "arm", "mode", "seed", "policy", "policy_seed", "settings", "processes", "name", "loss_type", "agg_mode",
    "scale_rewards", "policy_seeds", "seeds_per_policy", "task", "task_params", "steps", "num_generations",
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations",
    "max_completion_length", "temperature", "top_p", "top_k", "sampler", "mask_truncated_completions", "learning_rate",
    "lr_scheduler_type", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm",
    "beta", "epsilon_low", "epsilon_high", "delta", "cispo_cap", "sapo_tau_pos", "sapo_tau_neg",
    "importance_sampling_level", "loss_scale_factor", "match_scale", "dtype", "device", "lora",
    "gradient_checkpointing", "trust_remote_code", "eval_every", "eval_samples", "eval_greedy", "text",
    "checkpoint_every", "probe_every", "report_to",
}  # fmt: skip


def hashed_fields(model: BaseModel, exclude: Collection[str] = ()) -> dict[str, Any]:
    """The model's fields as JSON values, without `exclude` and without later fields at their default."""
    found = model.model_dump(mode="json", exclude=set(exclude))
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name not in _FIRST and value == field.get_default(call_default_factory=True, validated_data={}):
            found.pop(name, None)
        elif name in found and isinstance(value, BaseModel):
            found[name] = hashed_fields(value)
    return found


def hash_of(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields in hexadecimal, whatever their order."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
