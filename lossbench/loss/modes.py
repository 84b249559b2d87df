"""Modes: a surrogate, an aggregation and an advantage; their names, presets and the one parser."""

import unicodedata

from pydantic import BaseModel, ConfigDict

from lossbench.errors import unknown
from lossbench.loss.advantages import PARTS, TRL_SCALES, parse_advantage
from lossbench.loss.aggregations import AGGREGATIONS, BoundAggregation, format_number, parse_aggregation
from lossbench.loss.surrogates import SURROGATES, Surrogate

# preset -> (loss_type, agg_mode, advantage): the names of TRL and ms-swift, dr_grpo meaning the whole of Dr. GRPO
PRESETS: dict[str, tuple[str, str, str]] = {
    "grpo": ("grpo", "seq-mean-token-mean", "group"),
    "bnpo": ("grpo", "micro-token-mean", "group"),
    "dapo": ("grpo", "token-mean", "group"),
    "dr_grpo": ("grpo", "seq-mean-token-sum-norm", "none"),
    "cispo": ("cispo", "token-mean", "group"),
    "sapo": ("sapo", "seq-mean-token-mean", "group"),
    "gspo": ("gspo", "seq-mean-token-mean", "group"),
    "luspo": ("gspo", "seq-mean-token-sum", "group"),
    "vespo": ("vespo", "token-mean", "group"),
}
_PRESET_OF = {triple: name for name, triple in PRESETS.items()}
CLIP = "grpo"  # the surrogate under which aggregations and advantages are shown
DR_GRPO = "dr_grpo"
COMPARED = ("grpo", "dapo", DR_GRPO)  # presets whose push on a run's rows is shown beside that of its own mode
BASELINE = "seq-mean-token-sum"  # the aggregation of constant row weights, with which drifts of length are compared


class Mode(BaseModel):
    """One mode. `name` is the stored one: the preset's where the triple has one, else the full triple.

    `scale_rewards` is TRL's part of the advantage, which the name holds whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    loss_type: str
    agg_mode: str
    scale_rewards: str

    @property
    def advantage(self) -> str:
        """Canonical name of the advantage, such as "group" or "loo"."""
        return self.name.rpartition("/")[2] if "/" in self.name else self.scale_rewards

    @property
    def labels(self) -> dict[str, str]:
        """The mode's columns in a run's tables."""
        return {
            "mode": self.name, "loss_type": self.loss_type, "agg_mode": self.agg_mode,
            "scale_rewards": self.scale_rewards, "advantage_name": self.advantage,
        }  # fmt: skip

    @property
    def triple(self) -> str:
        """The full spelling, `loss_type@agg_mode/advantage`."""
        return f"{self.loss_type}@{self.agg_mode}/{self.advantage}"

    @property
    def aggregation(self) -> BoundAggregation:
        """The aggregation that gives the row weights."""
        return parse_aggregation(self.agg_mode)

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate that gives the token losses."""
        return SURROGATES[self.loss_type]


def make_mode(loss_type: str, agg_mode: str, advantage: str = "group") -> Mode:
    """The mode of a triple, under its stored name. Raises ValueError naming the unknown part and what is valid."""
    if loss_type in PRESETS and loss_type not in SURROGATES:
        write = "write '{}@{}/{}'".format(*PRESETS[loss_type])
        valid = ", ".join(SURROGATES)
        raise ValueError(f"loss_type '{loss_type}' is a preset, not a surrogate: {write}; valid: {valid}")
    loss_type, agg_mode = SURROGATES[loss_type].name, parse_aggregation(agg_mode).name
    chosen = parse_advantage(advantage)
    name = _PRESET_OF.get((loss_type, agg_mode, chosen.name), f"{loss_type}@{agg_mode}/{chosen.name}")
    return Mode(name=name, loss_type=loss_type, agg_mode=agg_mode, scale_rewards=chosen.scale_rewards)


def parse_mode(text: str) -> Mode:
    """Read one mode: "dapo", "grpo@token-mean", "sapo@prompt-mean/none". Raises ValueError with the valid forms.

    Invisible characters, as reports put behind @, are left out.
    """
    text = "".join(character for character in text if unicodedata.category(character) != "Cf").strip()
    loss_type, at, rest = text.partition("@")
    if not at:
        if text in PRESETS:
            return make_mode(*PRESETS[text])
        if text in SURROGATES:
            raise ValueError(f"mode '{text}' has no preset: write '{text}@seq-mean-token-mean'")
        if text.partition(":")[0] in AGGREGATIONS:
            raise ValueError(f"mode '{text}' is an agg_mode alone: write 'grpo@{text}'")
        raise ValueError(f"{unknown('mode', text, PRESETS)}, or loss_type@agg_mode[/advantage]")
    agg_mode, slash, advantage = rest.partition("/")
    if not loss_type or not agg_mode or (slash and not advantage):
        raise ValueError(f"mode '{text}' is incomplete; valid: a preset, loss_type@agg_mode[/advantage]")
    return make_mode(loss_type.strip(), agg_mode.strip(), advantage.strip() if slash else "group")


def baseline_of(advantage: str, loss_type: str = CLIP) -> Mode:
    """The mode of constant row weights under a surrogate, and an advantage of the same scale about the group's mean.

    Other centres and whitening act on length by themselves, so a mode that has them is compared with one that has not.
    """
    return make_mode(loss_type, BASELINE, parse_advantage(advantage).plain)


def dose_mode(alpha: float, advantage: str = "none") -> Mode:
    """The mode whose row weights go as L^(alpha - 1): from GRPO's (0) over constant ones (1) to L (2)."""
    return make_mode(CLIP, f"length-power:{format_number(alpha)}", advantage)


def is_half_dr_grpo(agg_mode: str, scale_rewards: str) -> bool:
    """Whether a mode has Dr. GRPO's constant divisor, but keeps the std in the advantage, as TRL's loss_type alone."""
    return agg_mode == PRESETS[DR_GRPO][1] and scale_rewards != PRESETS[DR_GRPO][2]


def catalogue() -> list[Mode]:
    """The presets, and one mode for every surrogate, aggregation and advantage that no preset has."""
    found = [parse_mode(name) for name in PRESETS]
    agg_mode = found[0].agg_mode
    found += [make_mode(name, agg_mode) for name in SURROGATES if name not in {mode.loss_type for mode in found}]
    weighted = {mode.aggregation.entry.name for mode in found if mode.loss_type == CLIP}
    others = [entry for entry in AGGREGATIONS.values() if entry.name not in weighted]
    found += [make_mode(CLIP, f"{entry.name}:0.5" if entry.takes_alpha else entry.name) for entry in others]
    had = {part.name for mode in found for part in parse_advantage(mode.advantage).parts}
    return found + [make_mode(CLIP, agg_mode, name) for name in PARTS if name not in had]


def parse_modes(text: str) -> list[Mode]:
    """Read a comma list of modes. Raises ValueError for an empty list, an empty item, and a mode named twice."""
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ValueError(f"modes '{text}' holds an empty item; valid: a comma list such as 'grpo,dr_grpo'")
    return _without_duplicates([parse_mode(item) for item in items], items)


def _without_duplicates(modes: list[Mode], spellings: list[str]) -> list[Mode]:
    for i, mode in enumerate(modes):
        if (first := modes.index(mode)) < i:
            both = f"'{spellings[first]}' and '{spellings[i]}'"
            raise ValueError(f"modes {both} are the same mode {mode.triple}; name it once")
    return modes


def grid_modes(
    loss_types: list[str] | None, agg_modes: list[str] | None = None, scale_rewards: list[str] | None = None,
    advantages: list[str] | None = None,
) -> list[Mode]:  # fmt: skip
    """The product of the axes, in the order given, loss type slowest.

    Without `agg_modes` the loss types are presets, whose own advantage is replaced where one is given. With `agg_modes`
    they are surrogates (default: grpo) and the advantage defaults to "group". `scale_rewards` are advantages by TRL's
    names. Raises ValueError for what gives no grid, unknown names and duplicates.
    """
    axes = {"loss_types": loss_types, "agg_modes": agg_modes, "scale_rewards": scale_rewards, "advantages": advantages}
    if empty := [name for name, axis in axes.items() if axis == []]:
        raise ValueError(f"{empty[0]} is empty; valid: at least one name")
    if scale_rewards and advantages:
        raise ValueError("scale_rewards and advantages name one axis: give one or the other")
    if not_trl := [name for name in scale_rewards or () if name not in TRL_SCALES]:
        raise ValueError(unknown("scale_rewards", not_trl[0], TRL_SCALES))
    if agg_modes is not None:
        bases = [make_mode(loss_type, agg_mode) for loss_type in loss_types or [CLIP] for agg_mode in agg_modes]
    elif loss_types is not None:
        bases = [parse_mode(name) for name in loss_types]
    else:
        raise ValueError(f"neither loss_types nor agg_modes is given; valid loss_types: {', '.join(PRESETS)}")
    names = advantages or scale_rewards
    modes = [make_mode(base.loss_type, base.agg_mode, name) for base in bases for name in names or [base.advantage]]
    return _without_duplicates(modes, [mode.triple for mode in modes])


def folder_name(mode_name: str) -> str:
    """A mode's name as a folder name: "grpo@length-power:0.5/none" -> "grpo.length-power-0.5-none"."""
    return mode_name.replace("@", ".").replace("/", "-").replace(":", "-")
