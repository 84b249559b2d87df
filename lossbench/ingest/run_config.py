"""Loss mode from the configuration that a run was started with: TRL's, ms-swift's or verl's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.loss.advantages import TRL_SCALES
from lossbench.loss.equivalents import loss_of_trl, loss_of_verl
from lossbench.loss.modes import make_mode

CONFIGS = (".hydra/config.yaml", "args.json", "config.yaml", "grpo_config.json", "training_args.json")
"""Files beside a run's log, best first: verl's, ms-swift's, W&B's, a GRPOConfig as JSON. Pickles are not read."""


def read_config(file: Path) -> dict[str, Any]:
    """The settings in a YAML or JSON file; W&B's `{key: {"value": ...}}` as `{key: ...}`. Raises UsageError."""
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        config = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not readable as settings ({one_line(error)})") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file}: holds {type(config).__name__}, not settings by name")
    return {k: v["value"] if isinstance(v, dict) and "value" in v else v for k, v in config.items()}


def mode_of_config(config: Mapping[str, Any]) -> str | None:
    """Stored name of the mode that settings give, None where they name none that lossbench knows.

    Sources: verl `core_algos.agg_loss` and `compute_grpo_outcome_advantage`; `GRPOConfig` of TRL 1.16 and of ms-swift
    4, whose `dr_grpo` is the divisor alone: advantages keep the std unless `scale_rewards` says otherwise.
    """
    if "actor_rollout_ref" in config:
        algorithm, actor = _at(config, "algorithm"), _at(config, "actor_rollout_ref", "actor")
        loss_mode = str(_at(actor, "policy_loss").get("loss_mode", "vanilla"))
        loss = loss_of_verl(loss_mode, str(actor.get("loss_agg_mode", "token-mean")))
        scale = "group" if algorithm.get("norm_adv_by_std_in_grpo", True) else "none"
        return make_mode(*loss, scale).name if loss and algorithm.get("adv_estimator", "grpo") == "grpo" else None
    loss = loss_of_trl(str(config.get("loss_type")), config.get("importance_sampling_level") or "token")
    if loss is None or config.get("advantage_estimator", "grpo") != "grpo":
        return None
    scale = config.get("scale_rewards", "group")
    scale = {True: "group", False: "none"}.get(scale, scale) if isinstance(scale, bool) else scale
    return make_mode(*loss, scale).name if scale in TRL_SCALES else None


def _at(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = config.get(key)
        config = value if isinstance(value, Mapping) else {}
    return config


def config_of(source: Path, above: int) -> tuple[str, int | None, Path] | None:
    """(mode, seed, file) of the configuration in a log's folder, or up to `above` folders above; None without one."""
    own = source if source.is_dir() else source.parent
    for folder in [own, *own.parents][: 1 + above]:
        for file in (folder / name for name in CONFIGS):
            if file.is_file():
                try:
                    config = read_config(file)
                except UsageError:  # its format's reader says so, where it is the trainer's
                    continue
                if mode := mode_of_config(config):
                    seed = config.get("seed")
                    return mode, seed if isinstance(seed, int) else None, file
    return None
