"""The settings that give each mode in other frameworks, and where they agree with it exactly.

TRL, verl and ms-swift are checked against their own code by the conformance tests, the others were read. H stands for
the horizon in tokens.
"""

from dataclasses import dataclass

from lossbench.loss.advantages import TRL_SCALES
from lossbench.loss.equivalents_by_parts import BY_PARTS, Framework
from lossbench.loss.modes import Mode

FRAMEWORKS = ("TRL 1.16", "verl >= 0.7.1", "ms-swift 4.6", *(framework.name for framework in BY_PARTS))


@dataclass(frozen=True)
class Equivalent:
    """One framework's way to a mode: a short name, settings to paste, and the conditions; or the reason for none."""

    framework: str
    name: str | None
    settings: tuple[str, ...]
    conditions: tuple[str, ...]

    @property
    def possible(self) -> bool:
        """Whether the framework can do it at all."""
        return self.name is not None


# aggregations that are another's special case, by their canonical name
_ALIASES = {
    "length-power:0": "seq-mean-token-mean",
    "length-power:1": "seq-mean-token-sum-norm",
    "delta-l:0": "seq-mean-token-sum-norm",
}
_TRL_CLIP = {
    "seq-mean-token-mean": "grpo",
    "micro-token-mean": "bnpo",
    "token-mean": "dapo",
    "seq-mean-token-sum-norm": "dr_grpo",
    "seq-mean-token-sum": "luspo",
}
_TRL_OWN = {
    ("cispo", "token-mean"): "cispo",
    ("sapo", "seq-mean-token-mean"): "sapo",
    ("vespo", "token-mean"): "vespo",
}
_TRL_EXTRA = {
    "cispo": ("epsilon_high=5.0,  # the cap itself; the default falls back to 0.2",),
    "sapo": ("sapo_temperature_pos=1.0,", "sapo_temperature_neg=1.05,"),
    "vespo": ("vespo_k_pos=2.0,", "vespo_lambda_pos=3.0,", "vespo_k_neg=3.0,", "vespo_lambda_neg=2.0,"),
}
_TRL_CONDITIONS = {
    "grpo": (),
    "bnpo": ("equal to dapo at one micro-batch per optimizer step",),
    "dapo": ("exact where steps_per_generation == gradient_accumulation_steps; else TRL divides by an average window",),
    "dr_grpo": ("loss_type alone keeps the division by the standard deviation: scale_rewards must be set too",),
    "luspo": ("before 1.16 token-level luspo multiplied each row by its length and averaged over padded cells",),
    "sapo": ("the temperature is float32 in TRL: 1.05 is 1.04999995, a relative difference near 1e-7",),
}


def equivalents(mode: Mode) -> list[Equivalent]:
    """Settings of each framework for `mode`, in the order of `FRAMEWORKS`."""
    agg_mode = _ALIASES.get(mode.agg_mode, mode.agg_mode)
    others = [_by_parts(framework, mode, agg_mode) for framework in BY_PARTS]
    return [_trl(mode, agg_mode), _verl(mode, agg_mode), _swift(mode, agg_mode), *others]


def _by_parts(framework: Framework, mode: Mode, agg_mode: str) -> Equivalent:
    if reason := framework.missing(mode, agg_mode):
        return _impossible(framework.name, reason)
    settings = framework.settings(mode, agg_mode) or ("# the default",)
    return Equivalent(framework.name, framework.short[agg_mode], settings, framework.conditions)


def short_names(mode: Mode) -> str:
    """Names of the equivalents in one line: "TRL dapo, verl token-mean, ms-swift dapo"; empty where nothing does."""
    found = [f"{entry.framework.split()[0]} {entry.name}" for entry in equivalents(mode) if entry.possible]
    alias = _ALIASES.get(mode.agg_mode)
    return ", ".join(([f"{mode.loss_type}@{alias}"] if alias else []) + found)


def _impossible(framework: str, reason: str) -> Equivalent:
    return Equivalent(framework, None, (), (reason,))


def _trl_loss_type(surrogate: str, agg_mode: str) -> str | None:
    if surrogate in ("grpo", "gspo"):
        return _TRL_CLIP.get(agg_mode)
    return _TRL_OWN.get((surrogate, agg_mode))


def _trl(mode: Mode, agg_mode: str) -> Equivalent:
    framework = FRAMEWORKS[0]
    if mode.advantage not in TRL_SCALES:
        return _impossible(framework, f'no advantage {mode.advantage}; nearest: scale_rewards="{mode.scale_rewards}"')
    if (mode.loss_type, agg_mode) == ("gmpo", "seq-mean-token-mean"):
        settings = (
            "from trl.experimental.gmpo import GMPOConfig, GMPOTrainer",
            f'GMPOConfig(epsilon=0.4, scale_rewards="{mode.scale_rewards}", beta=0.0)',
        )
        return Equivalent(framework, "experimental gmpo", settings, ("epsilon is in log space",))
    loss_type = _trl_loss_type(mode.loss_type, agg_mode)
    if loss_type is None:
        reason = f"no loss_type joins the {mode.loss_type} surrogate to {agg_mode}; GRPOTrainer has no hook for one"
        return _impossible(framework, reason)
    level = "sequence" if mode.loss_type == "gspo" else "token"
    clip = ("epsilon=0.2,", "epsilon_high=0.2,") if mode.loss_type in ("grpo", "gspo") else ()
    horizon = ("max_completion_length=H,",) if loss_type == "dr_grpo" else ()
    settings = (
        "GRPOConfig(",
        f'    loss_type="{loss_type}",',
        f'    importance_sampling_level="{level}",',
        f'    scale_rewards="{mode.scale_rewards}",',
        "    beta=0.0,",
        *(f"    {line}" for line in (*clip, *_TRL_EXTRA.get(mode.loss_type, ()), *horizon)),
        ")",
    )
    key = "dapo" if loss_type in ("cispo", "vespo") else loss_type
    name = f"{loss_type} at sequence level" if level == "sequence" else loss_type
    return Equivalent(framework, name, settings, _TRL_CONDITIONS[key])


# advantage -> verl's adv_estimator, and whether its grpo divides by the deviation
_VERL_ADVANTAGES: dict[str, tuple[str, bool | None]] = {
    "group": ("grpo", True),
    "none": ("grpo", False),
    "loo": ("rloo", None),
    "length-weighted": ("opo", None),
    "none+whiten-tokens": ("reinforce_plus_plus_baseline", None),
    "center-batch+whiten-tokens": ("reinforce_plus_plus", None),
}
# verl's loss_mode for each surrogate; those in _VERL_FORCED ignore loss_agg_mode
_VERL_LOSS_MODES = {"grpo": "vanilla", "cispo": "cispo", "sapo": "sapo", "gspo": "gspo", "gmpo": "geo_mean"}
_VERL_FORCED = ("sapo", "gspo", "gmpo")
_VERL_AGG = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum")
_VERL_EXTRA = {
    "grpo": ("clip_ratio_low=0.2", "clip_ratio_high=0.2", "clip_ratio_c=1e9"),
    "cispo": ("clip_ratio_low=1.0", "clip_ratio_high=4.0"),
    "sapo": ("tau_pos=1.0", "tau_neg=1.05"),
    "gspo": ("clip_ratio_low=0.2", "clip_ratio_high=0.2"),
    "gmpo": ("clip_ratio=0.4", "clip_ratio_low=0.4", "clip_ratio_high=0.4"),
}
_VERL_CONDITIONS = {
    "grpo": ("clip_ratio_c disables the dual clip, which is on at 3.0 by default",),
    "cispo": ("the cap is 1 + clip_ratio_high = 5.0; clip_ratio_low=1.0 removes the lower bound",),
    "sapo": ("loss_agg_mode is ignored: sapo always takes seq-mean-token-mean",),
    "gspo": (
        "loss_agg_mode is ignored: gspo always takes seq-mean-token-mean",
        "its token form has the same value and gradient while the advantage is constant over a row",
    ),
    "gmpo": ("geo_mean takes a plain mean over each micro-batch: exact at one micro-batch per optimizer step only",),
}
_VERL_AGG_CONDITIONS = {
    "seq-mean-token-sum-norm": (
        "loss_scale_factor=null divides by the padded width; 0.7.0 and older do not divide by the row count",
    ),
    "token-sum": ("verl >= 0.9",),
}


def _verl(mode: Mode, agg_mode: str) -> Equivalent:
    framework = FRAMEWORKS[1]
    loss_mode = _VERL_LOSS_MODES.get(mode.loss_type)
    if loss_mode is None:
        return _impossible(framework, f"no policy loss for the {mode.loss_type} surrogate")
    if mode.loss_type in _VERL_FORCED and agg_mode != "seq-mean-token-mean":
        return _impossible(
            framework, f"loss_mode={loss_mode} always takes seq-mean-token-mean, whatever loss_agg_mode says"
        )
    if agg_mode not in _VERL_AGG:
        return _impossible(framework, f"no loss_agg_mode for {agg_mode}")
    if mode.advantage not in _VERL_ADVANTAGES:
        return _impossible(framework, f"no adv_estimator for {mode.advantage}; nearest: grpo, rloo or opo")
    estimator, scales = _VERL_ADVANTAGES[mode.advantage]
    actor = (
        f"policy_loss.loss_mode={loss_mode}",
        f"loss_agg_mode={agg_mode}",
        *(("loss_scale_factor=H",) if agg_mode == "seq-mean-token-sum-norm" else ()),
        *_VERL_EXTRA[mode.loss_type],
        "use_kl_loss=False",
    )
    settings = (
        f"algorithm.adv_estimator={estimator}",
        *((f"algorithm.norm_adv_by_std_in_grpo={scales}",) if scales is not None else ()),
        *(f"actor_rollout_ref.actor.{line}" for line in actor),
    )
    std = ("its eps beside the deviation is 1e-6, here 1e-4",) if scales else ()
    eps = ("it adds 1e-8 to token counts",) if agg_mode == "seq-mean-token-mean" else ()
    conditions = (*_VERL_CONDITIONS[mode.loss_type], *_VERL_AGG_CONDITIONS.get(agg_mode, ()), *eps, *std)
    return Equivalent(
        framework, agg_mode if loss_mode == "vanilla" else f"{loss_mode} ({agg_mode})", settings, conditions
    )


_SWIFT_OWN = {("cispo", "token-mean"): "cispo", ("sapo", "seq-mean-token-mean"): "sapo"}
_SWIFT_EXTRA = {"cispo": " --epsilon_high 5.0", "sapo": " --tau_pos 1.0 --tau_neg 1.05"}


def _swift(mode: Mode, agg_mode: str) -> Equivalent:
    framework = FRAMEWORKS[2]
    if mode.advantage not in (*TRL_SCALES, "loo"):
        return _impossible(framework, f"no advantage {mode.advantage}; nearest: --scale_rewards {mode.scale_rewards}")
    clip = {name: loss_type for name, loss_type in _TRL_CLIP.items() if loss_type != "luspo"}
    loss_type = clip.get(agg_mode) if mode.loss_type in ("grpo", "gspo") else _SWIFT_OWN.get((mode.loss_type, agg_mode))
    if loss_type is None:
        return _impossible(framework, f"no loss_type joins the {mode.loss_type} surrogate to {agg_mode}")
    level = "sequence" if mode.loss_type == "gspo" else "token"
    extra = _SWIFT_EXTRA.get(mode.loss_type, " --epsilon 0.2 --epsilon_high 0.2")
    horizon = " --max_completion_length H" if loss_type == "dr_grpo" else ""
    settings = (
        f"--loss_type {loss_type} --importance_sampling_level {level} --scale_rewards {mode.scale_rewards}"
        f" --beta 0{extra}{horizon}{' --advantage_estimator rloo' if mode.advantage == 'loo' else ''}",
    )
    conditions = ["--beta is 0.04 unless set"]
    if loss_type in ("dapo", "cispo"):
        conditions.append(
            "exact at gradient_accumulation_steps = 1 with one optimizer step per generation;"
            " 4.6.0.dev0 divides by the accumulation steps once more"
        )
    name = f"{loss_type} at sequence level" if level == "sequence" else loss_type
    return Equivalent(framework, name, settings, tuple(conditions))
