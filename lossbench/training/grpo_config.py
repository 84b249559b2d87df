"""Settings of TRL's GRPOConfig under a mode: honoured, or refused by name, never ignored."""

import dataclasses
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from trl import GRPOConfig

from lossbench.errors import UsageError
from lossbench.loss.equivalents import trl_loss_types
from lossbench.loss.modes import Mode, parse_mode
from lossbench.loss.surrogates import SurrogateParams
from lossbench.sampling.endings import ended_rows
from lossbench.training.run_spec import Sampler

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
_DEFAULTS["scale_rewards"] = "group"  # what GRPOConfig makes of every spelling of it

CONSTANTS = {
    "epsilon": "epsilon_low", "epsilon_high": "epsilon_high", "delta": "delta", "sapo_temperature_pos": "sapo_tau_pos",
    "sapo_temperature_neg": "sapo_tau_neg", "vespo_k_pos": "vespo_k_pos", "vespo_lambda_pos": "vespo_lambda_pos",
    "vespo_k_neg": "vespo_k_neg", "vespo_lambda_neg": "vespo_lambda_neg",
    "importance_sampling_level": "importance_sampling_level",
}  # fmt: skip
"""TRL's names of the surrogates' constants, and lossbench's."""

_UNDEFINED = {
    "entropy_coef": "an entropy bonus",
    "use_adaptive_entropy": "an entropy bonus",
    "top_entropy_quantile": "an entropy mask",
    "off_policy_mask_threshold": "an off-policy sequence mask",
    "use_liger_kernel": "a fused kernel with losses of its own",
    "multi_objective_aggregation": "another advantage estimator",
    "neftune_noise_alpha": "noise on the embeddings",
}
_STOCK_SAMPLING = (
    "min_p", "repetition_penalty", "generation_kwargs", "cache_implementation", "use_transformers_continuous_batching",
    "use_vllm",
)  # fmt: skip


def _changed(args: GRPOConfig, name: str) -> bool:
    return name in _DEFAULTS and getattr(args, name) != _DEFAULTS[name]


def check_args(args: GRPOConfig, mode: Mode) -> None:
    """Raise UsageError for a setting that changes the loss in a way that `mode` does not state.

    `loss_type` and `scale_rewards` may be left out, or say what the mode says.
    """
    for name, what in _UNDEFINED.items():
        if _changed(args, name):
            raise UsageError(
                f"{name}={getattr(args, name)} puts {what} into the loss, which no mode states; use {_DEFAULTS[name]}"
            )
    if _changed(args, "scale_rewards") and args.scale_rewards != mode.scale_rewards:
        raise UsageError(
            f"scale_rewards={args.scale_rewards!r}, and mode '{mode.name}' has '{mode.scale_rewards}': leave it "
            f"out, or use mode '{mode.loss_type}@{mode.agg_mode}/{args.scale_rewards}'"
        )
    if _changed(args, "loss_type") and args.loss_type != mode.name:
        named = trl_loss_types().get(args.loss_type)
        theirs = named and parse_mode(named)
        if not theirs or (theirs.loss_type, theirs.agg_mode) != (mode.loss_type, mode.agg_mode):
            raise UsageError(
                f"loss_type={args.loss_type!r}, and mode is '{mode.name}', which decides: leave loss_type out, or use "
                f"mode '{named or mode.name}'"
            )


def surrogate_params_of(args: GRPOConfig, mode: Mode, given: BaseModel | None) -> BaseModel:
    """The surrogate's constants: `given`, or those of `args` under TRL's names.

    As in TRL, `epsilon_high` is cispo's cap for cispo, and defaults to `epsilon` for the others. Raises UsageError
    where both say something, and not the same.
    """
    capped = "cispo_cap" in mode.surrogate.constants.model_fields
    ours = {**CONSTANTS, "epsilon_high": "cispo_cap"} if capped else CONSTANTS
    found = {ours[name]: getattr(args, name) for name in CONSTANTS if _changed(args, name)}
    if "epsilon_low" in found and not capped:
        found.setdefault("epsilon_high", found["epsilon_low"])
    if given is None:
        return SurrogateParams(**found)
    for name, value in found.items():
        if (other := getattr(given, name, value)) != value:
            raise UsageError(f"{name} is {value} in args and {other} in surrogate_params: give one of the two")
    return given


def rollout_func(args: GRPOConfig, sampler: Sampler | None, trl: dict[str, Any]) -> Callable[..., Any] | None:
    """TRL's rollout hook: the built-in sampler, the caller's own function, or None for TRL's sampling.

    Raises UsageError for a sampler that the other arguments contradict.
    """
    own = trl.get("rollout_func")
    others = [name for name in ("rollout_func", "tools", "environment_factory") if trl.get(name)]
    if sampler == "vllm" and not args.use_vllm:
        raise UsageError("sampler='vllm' needs use_vllm=True in args")
    if sampler == "lossbench" and others:
        raise UsageError(f"sampler='lossbench' samples by itself, without {others[0]}: leave one of the two out")
    if sampler != "lossbench" and (sampler or others or args.use_vllm):
        return own and (lambda prompts, trainer: ended_rows(own(prompts, trainer), trainer.eos_token_ids))
    for name in _STOCK_SAMPLING:
        if _changed(args, name):
            raise UsageError(
                f"{name}={getattr(args, name)} is a setting of other samplers: leave it at {_DEFAULTS[name]}, or use "
                f"sampler='{'vllm' if name == 'use_vllm' else 'generate'}'"
            )
    return lambda prompts, trainer: trainer._sample(prompts)
