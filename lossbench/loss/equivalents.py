"""The settings that give each mode in other frameworks, and where they agree with it exactly.

TRL, verl and ms-swift are checked against their own code by the conformance tests; OpenRLHF, SkyRL, prime-rl and slime
were read, as of autumn 2026. H stands for the horizon in tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lossbench.loss.advantages import TRL_SCALES
from lossbench.loss.modes import PRESETS, Mode


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


@dataclass(frozen=True)
class Framework:
    """One framework as tables by part; what is missing from `losses` or `advantages` is not available.

    `losses` names each loss by surrogate and aggregation, its setting first. `settings` by surrogate is the text to
    paste, in which {loss}, {level}, {agg_mode}, {aggregation} and {advantage} are filled in. `nearest` says what to
    take instead; `conditions`, one a line, what holds for modes that have a part, "" for all.
    """

    name: str
    losses: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, str]
    advantages: Mapping[str, str]
    nearest: str
    aggregations: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)

    def equivalent(self, mode: Mode, agg_mode: str) -> Equivalent:
        """Its way to a mode, whose aggregation is `agg_mode`."""
        name = self.losses.get(mode.loss_type, {}).get(agg_mode)
        advantage = self.advantages.get(mode.advantage)
        if name is None or advantage is None:
            lacking = [f"no {mode.loss_type}@{agg_mode}"] * (name is None)
            lacking += [f"no advantage {mode.advantage}"] * (advantage is None)
            return Equivalent(self.name, None, (), (f"{' and '.join(lacking)}; nearest: {self.nearest}",))
        level, more = "sequence" if mode.surrogate.sequence_level else "token", self.aggregations.get(agg_mode, "")
        text = self.settings[mode.loss_type].format(
            loss=name.split()[0], level=level, agg_mode=agg_mode, aggregation=more, advantage=advantage
        )
        settings = tuple(line.rstrip() for line in text.split("\n") if line.strip()) or ("# the default",)
        parts = "", mode.loss_type, agg_mode, mode.advantage
        conditions = (line for part in parts for line in self.conditions.get(part, "").splitlines())
        return Equivalent(self.name, name, settings, tuple(conditions))


_CLIP = {
    "seq-mean-token-mean": "grpo", "micro-token-mean": "bnpo", "token-mean": "dapo",
    "seq-mean-token-sum-norm": "dr_grpo", "seq-mean-token-sum": "luspo",
}  # fmt: skip
_SEQUENCE = {agg_mode: f"{loss_type} at sequence level" for agg_mode, loss_type in _CLIP.items()}


def _trl(*constants: str) -> str:
    lines = 'loss_type="{loss}",', 'importance_sampling_level="{level}",', "{advantage}", "beta=0.0,", *constants
    return "\n    ".join(["GRPOConfig(", *lines, "{aggregation}"]) + "\n)"


_TRL = Framework(
    name="TRL 1.16",
    losses={
        "grpo": _CLIP, "gspo": _SEQUENCE, "cispo": {"token-mean": "cispo"}, "vespo": {"token-mean": "vespo"},
        "sapo": {"seq-mean-token-mean": "sapo"}, "gmpo": {"seq-mean-token-mean": "experimental gmpo"},
    },
    settings={
        **dict.fromkeys(("grpo", "gspo"), _trl("epsilon=0.2,", "epsilon_high=0.2,")),
        "cispo": _trl("epsilon_high=5.0,  # the cap itself; the default falls back to 0.2"),
        "sapo": _trl("sapo_temperature_pos=1.0,", "sapo_temperature_neg=1.05,"),
        "vespo": _trl("vespo_k_pos=2.0,", "vespo_lambda_pos=3.0,", "vespo_k_neg=3.0,", "vespo_lambda_neg=2.0,"),
        "gmpo": "from trl.experimental.gmpo import GMPOConfig, GMPOTrainer\n"
        "GMPOConfig(epsilon=0.4, {advantage} beta=0.0)",
    },
    aggregations={"seq-mean-token-sum-norm": "max_completion_length=H,"},
    advantages={scale: f'scale_rewards="{scale}",' for scale in TRL_SCALES},
    nearest=f"a loss_type of TRL with scale_rewards {', '.join(TRL_SCALES)}; GRPOTrainer has no hook for another loss",
    conditions={
        "micro-token-mean": "equal to dapo at one micro-batch per optimizer step",
        "token-mean": "exact where steps_per_generation == gradient_accumulation_steps; else TRL divides by an average"
        " window",
        "seq-mean-token-sum-norm": "loss_type alone keeps the division by the standard deviation: scale_rewards must be"
        " set too",
        "seq-mean-token-sum": "before 1.16 token-level luspo multiplied each row by its length and averaged over padded"
        " cells",
        "sapo": "the temperature is float32 in TRL: 1.05 is 1.04999995, a relative difference near 1e-7",
        "gmpo": "epsilon is in log space",
    },
)  # fmt: skip


# surrogate -> loss_mode; those in _VERL_FORCED ignore loss_agg_mode
_VERL_MODES = {"grpo": "vanilla", "cispo": "cispo", "sapo": "sapo", "gspo": "gspo", "gmpo": "geo_mean"}
_VERL_FORCED = ("sapo", "gspo", "gmpo")
_ACTOR, _STD = "\nactor_rollout_ref.actor", "algorithm.norm_adv_by_std_in_grpo"
_VERL_AGG = "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum"


def _verl(surrogate: str, *constants: str) -> str:
    actor = f"policy_loss.loss_mode={_VERL_MODES[surrogate]}", "loss_agg_mode={agg_mode}{aggregation}", *constants
    return f"{_ACTOR}.".join(["algorithm.adv_estimator={advantage}", *actor, "use_kl_loss=False"])


_VERL = Framework(
    name="verl >= 0.7.1",
    losses={
        "grpo": {agg_mode: agg_mode for agg_mode in _VERL_AGG},
        "cispo": {agg_mode: f"cispo ({agg_mode})" for agg_mode in _VERL_AGG},
        **{name: {"seq-mean-token-mean": f"{_VERL_MODES[name]} (seq-mean-token-mean)"} for name in _VERL_FORCED},
    },
    settings={
        "grpo": _verl("grpo", "clip_ratio_low=0.2", "clip_ratio_high=0.2", "clip_ratio_c=1e9"),
        "cispo": _verl("cispo", "clip_ratio_low=1.0", "clip_ratio_high=4.0"),
        "sapo": _verl("sapo", "tau_pos=1.0", "tau_neg=1.05"),
        "gspo": _verl("gspo", "clip_ratio_low=0.2", "clip_ratio_high=0.2"),
        "gmpo": _verl("gmpo", "clip_ratio=0.4", "clip_ratio_low=0.4", "clip_ratio_high=0.4"),
    },
    aggregations={"seq-mean-token-sum-norm": f"{_ACTOR}.loss_scale_factor=H"},
    advantages={
        "group": f"grpo\n{_STD}=True", "none": f"grpo\n{_STD}=False", "loo": "rloo", "length-weighted": "opo",
        "none+whiten-tokens": "reinforce_plus_plus_baseline", "center-batch+whiten-tokens": "reinforce_plus_plus",
    },
    nearest="loss_mode vanilla or cispo with another loss_agg_mode, and adv_estimator grpo, rloo or opo; sapo, gspo and"
    " geo_mean always take seq-mean-token-mean",
    conditions={
        "grpo": "clip_ratio_c disables the dual clip, which is on at 3.0 by default",
        "cispo": "the cap is 1 + clip_ratio_high = 5.0; clip_ratio_low=1.0 removes the lower bound",
        "sapo": "loss_agg_mode is ignored: sapo always takes seq-mean-token-mean",
        "gspo": "loss_agg_mode is ignored: gspo always takes seq-mean-token-mean\n"
        "its token form has the same value and gradient while the advantage is constant over a row",
        "gmpo": "geo_mean takes a plain mean over each micro-batch: exact at one micro-batch per optimizer step only",
        "seq-mean-token-sum-norm": "loss_scale_factor=null divides by the padded width; 0.7.0 and older do not divide"
        " by the row count",
        "token-sum": "verl >= 0.9",
        "seq-mean-token-mean": "it adds 1e-8 to token counts",
        "group": "its eps beside the deviation is 1e-6, here 1e-4",
    },
)  # fmt: skip

_SWIFT_TEXT = "--loss_type {loss} --importance_sampling_level {level} {advantage} --beta 0"
_SWIFT = Framework(
    name="ms-swift 4.6",
    losses={
        surrogate: {agg_mode: name for agg_mode, name in _TRL.losses[surrogate].items() if "luspo" not in name}
        for surrogate in ("grpo", "gspo", "cispo", "sapo")
    },
    settings={
        **dict.fromkeys(("grpo", "gspo"), f"{_SWIFT_TEXT} --epsilon 0.2 --epsilon_high 0.2 {{aggregation}}"),
        "cispo": f"{_SWIFT_TEXT} --epsilon_high 5.0",
        "sapo": f"{_SWIFT_TEXT} --tau_pos 1.0 --tau_neg 1.05",
    },
    aggregations={"seq-mean-token-sum-norm": "--max_completion_length H"},
    advantages={scale: f"--scale_rewards {scale}" for scale in TRL_SCALES}
    | {"loo": "--scale_rewards none --advantage_estimator rloo"},
    nearest="a loss_type of ms-swift with --scale_rewards group, batch or none",
    conditions={
        "": "--beta is 0.04 unless set",
        "token-mean": "exact at gradient_accumulation_steps = 1 with one optimizer step per generation; 4.6.0.dev0"
        " divides by the accumulation steps once more",
    },
)
_OPENRLHF = Framework(
    name="OpenRLHF 0.11.2",
    losses={"grpo": {agg_mode: agg_mode for agg_mode in ("token-mean", "seq-mean-token-mean")}},
    settings={"grpo": "--actor.policy_loss_type ppo --actor.eps_clip 0.2\n--actor.loss_agg_mode {agg_mode}\n"
                      "--algo.advantage.estimator {advantage}"},
    advantages={"group": "group_norm", "none": "dr_grpo"},
    nearest="token-mean with estimator dr_grpo, which takes the std away and adds no constant divisor",
    conditions={"": "estimator dr_grpo is the advantage alone\nempty rows are left out of the sequence count"},
)  # fmt: skip
_SKYRL_TEXT = (
    "trainer.algorithm.policy_loss_type=%s\ntrainer.algorithm.loss_reduction={loss}{aggregation}\n"
    "trainer.algorithm.advantage_estimator=grpo\ntrainer.algorithm.grpo_norm_by_std={advantage}"
)
_SKYRL_AGG = {
    "token-mean": "token_mean", "micro-token-mean": "token_mean_legacy", "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm", "prompt-mean": "prompt_mean",
}  # fmt: skip
_SKYRL = Framework(
    name="SkyRL 0.3",
    losses={"grpo": _SKYRL_AGG, "gspo": _SKYRL_AGG},
    settings={"grpo": _SKYRL_TEXT % "regular", "gspo": _SKYRL_TEXT % "gspo"},
    aggregations={"seq-mean-token-sum-norm": "\ntrainer.algorithm.max_seq_len=H"},
    advantages={"group": "true", "none": "false"},
    nearest="loss_reduction token_mean, sequence_mean, seq_mean_token_sum_norm or prompt_mean with estimator grpo",
    conditions={"": "KL and entropy terms are not reduced by loss_reduction: they keep a mean per sequence"},
)
_PRIME = Framework(
    name="prime-rl", losses={"dppo": {"token-mean": "default"}}, settings={"dppo": ""}, advantages={"none": ""},
    nearest="dppo@token-mean/none, which is its one loss",
    conditions={"": "its default loss adds 1e-3·(log r)² to the masked policy term\n"
                    "another loss is given as an import path"},
)  # fmt: skip
_SLIME_AGG = {"seq-mean-token-mean": "default", "token-mean": "per-token loss"}
_SLIME = Framework(
    name="slime",
    losses={"grpo": _SLIME_AGG, "gspo": _SLIME_AGG},
    settings={"grpo": "--eps-clip 0.2 --eps-clip-high 0.2\n{aggregation}\n{advantage}",
              "gspo": "--advantage-estimator gspo\n{aggregation}\n{advantage}"},
    aggregations={"token-mean": "--calculate-per-token-loss"},
    advantages={"group": "", "none": "--disable-grpo-std-normalization"},
    nearest="the default (seq-mean-token-mean), or a reducer by --custom-pg-loss-reducer-function-path",
    conditions={"": "the mean of a row that was sampled in several parts is over all its parts\n"
                    "with --calculate-per-token-loss an empty row counts as one token\n"
                    "its eps beside the deviation is 1e-6, here 1e-4"},
)  # fmt: skip
_ALL = (_TRL, _VERL, _SWIFT, _OPENRLHF, _SKYRL, _PRIME, _SLIME)
FRAMEWORKS = tuple(framework.name for framework in _ALL)

# aggregations that are another's special case, by their canonical name
_ALIASES = {
    "length-power:0": "seq-mean-token-mean",
    "length-power:1": "seq-mean-token-sum-norm",
    "delta-l:0": "seq-mean-token-sum-norm",
}


def equivalents(mode: Mode) -> list[Equivalent]:
    """Settings of each framework for `mode`, in the order of `FRAMEWORKS`."""
    agg_mode = _ALIASES.get(mode.agg_mode, mode.agg_mode)
    return [framework.equivalent(mode, agg_mode) for framework in _ALL]


def short_names(mode: Mode) -> str:
    """Names of the equivalents in one line: "TRL dapo, verl token-mean, ms-swift dapo"; empty where nothing does."""
    found = [f"{entry.framework.split()[0]} {entry.name}" for entry in equivalents(mode) if entry.possible]
    alias = _ALIASES.get(mode.agg_mode)
    return ", ".join(([f"{mode.loss_type}@{alias}"] if alias else []) + found)


def loss_of_trl(loss_type: str, level: str = "token") -> tuple[str, str] | None:
    """Surrogate and aggregation of a `loss_type` of TRL and ms-swift at a level of the ratio; None if unknown."""
    all_losses = _TRL.losses.items()
    found = [(loss, agg) for loss, names in all_losses for agg, name in names.items() if name.split()[0] == loss_type]
    # the clip's loss types stand in the table twice, at token and then at sequence level
    return found[0 if level == "token" else -1] if found else None


def loss_of_verl(loss_mode: str, loss_agg_mode: str) -> tuple[str, str] | None:
    """Surrogate and aggregation of verl's settings, some of whose losses ignore `loss_agg_mode`; None if unknown."""
    surrogate = {mode: name for name, mode in _VERL_MODES.items()}.get(loss_mode, "")
    agg_mode = "seq-mean-token-mean" if surrogate in _VERL_FORCED else loss_agg_mode
    return (surrogate, agg_mode) if agg_mode in _VERL.losses.get(surrogate, ()) else None


def trl_loss_types() -> dict[str, str]:
    """The modes whose loss TRL's loss types compute at token level: the preset of that name where it has that loss."""
    found = {name: loss_of_trl(name) for names in _TRL.losses.values() for name in names.values() if " " not in name}
    return {name: name if PRESETS.get(name, ())[:2] == loss else "@".join(loss) for name, loss in found.items() if loss}
