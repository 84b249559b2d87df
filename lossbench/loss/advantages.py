"""Group-relative advantages: how rewards are centred, scaled and whitened, one registry entry per choice.

Moments run over the generation: all rows that were sampled together, on all ranks. An advantage is written as its parts
with "+": the centre (left out where it is the group's mean), the scale (left out behind another centre where it is
`none`), the whitening. Adding a part means adding one entry to `PARTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lossbench.errors import unknown
from lossbench.loss.aggregations import sum_by
from lossbench.loss.lazy import Array, ArrayLike, np
from lossbench.registry import Registry

Axis = Literal["centre", "scale", "whitening"]


@dataclass(frozen=True)
class Generation:
    """Input of a part: (B,) arrays of one generation's rows. Missing rewards are 0 here, and not `scored_B`."""

    rewards_B: Array
    groups_B: Array
    lengths_B: Array
    scored_B: Array
    eps: float

    def per_group(self, values_B: Array) -> Array:
        """(B,): for each row, the sum of the values over the scored rows of its prompt group."""
        return sum_by(values_B * self.scored_B, self.groups_B)

    @property
    def count_B(self) -> Array:
        """(B,): scored rows of each row's group."""
        return self.per_group(np.ones(len(self.rewards_B)))

    @property
    def mean_B(self) -> Array:
        """(B,): mean reward of each row's group."""
        return self.per_group(self.rewards_B) / self.count_B


@dataclass(frozen=True)
class Part:
    """One choice on one axis.

    `compute` gives a centre's baseline (B,), a scale's divisor (B,), or the weight (B,) of each row in a whitening's
    moments. Where a baseline is not defined the advantage is 0. `needs_others` marks baselines of the other rows,
    `batch_wide` parts that shift rows by what other groups got.
    """

    name: str
    axis: Axis
    compute: Callable[[Generation], Array]
    formula: str
    source: str
    caveat: str = ""
    needs_others: bool = False
    batch_wide: bool = False


def _others(generation: Generation, weights_B: Array) -> Array:
    """The weighted mean reward of the group's other rows."""
    weighted_B = weights_B * generation.rewards_B
    return (generation.per_group(weighted_B) - weighted_B) / (generation.per_group(weights_B) - weights_B)


def _group_std(generation: Generation) -> Array:
    squares_B = generation.per_group((generation.rewards_B - generation.mean_B) ** 2)
    return _beside(np.sqrt(squares_B / np.maximum(generation.count_B - 1, 1)), generation.eps)


def _batch_std(generation: Generation) -> Array:
    scored = generation.rewards_B[generation.scored_B]
    std = scored.std(ddof=1) if len(scored) > 1 else 1.0
    return _beside(np.full(len(generation.rewards_B), std), generation.eps)


def _beside(std_B: Array, eps: float) -> Array:
    """std + eps, and 1 where both vanish: there every centred reward is 0 already."""
    return np.where(std_B + eps > 0, std_B + eps, 1.0)


def _group_mean(generation: Generation) -> Array:
    if (generation.rewards_B < 0).any():
        lowest = generation.rewards_B.min()
        raise ValueError(f"advantage 'mean-scaled' divides by a mean reward and found {lowest:g}; valid: 0 or more")
    return np.where(generation.mean_B > 0, generation.mean_B, np.inf)


PARTS: Registry[Part] = Registry("advantage")
for _entry in (
    Part(
        name="center-mean",
        axis="centre",
        compute=lambda generation: generation.mean_B,
        formula="r_i − mean of the group",
        source="GRPO (arXiv:2402.03300); all frameworks",
    ),
    Part(
        name="loo",
        axis="centre",
        compute=lambda generation: _others(generation, np.ones(len(generation.rewards_B))),
        formula="r_i − mean of the group's other rows",
        source="RLOO (arXiv:2402.14740); TRL RLOOTrainer, ms-swift, verl, OpenRLHF, SkyRL, NeMo-RL, AReaL",
        caveat="G/(G−1) times the group's mean as centre: a larger step in the same direction",
        needs_others=True,
    ),
    Part(
        name="length-weighted",
        axis="centre",
        compute=lambda generation: (
            generation.per_group(generation.lengths_B * generation.rewards_B)
            / generation.per_group(generation.lengths_B)
        ),
        formula="r_i − Σ_g L·r / Σ_g L",
        source="OPO (arXiv:2505.23585); verl opo",
        caveat="the row's own length stands in its baseline, which brings a length bias under constant weights",
    ),
    Part(
        name="length-weighted-loo",
        axis="centre",
        compute=lambda generation: _others(generation, generation.lengths_B),
        formula="r_i − Σ_{j≠i} L·r / Σ_{j≠i} L",
        source="lossbench: the length-weighted baseline of the other rows",
        needs_others=True,
    ),
    Part(
        name="center-batch",
        axis="centre",
        compute=lambda generation: np.full(
            len(generation.rewards_B), generation.rewards_B.sum() / generation.scored_B.sum()
        ),
        formula="r_i − mean of the generation",
        source="OpenRLHF, ms-swift (REINFORCE++)",
        caveat="groups without spread in their rewards teach too: prompts compete with each other",
        batch_wide=True,
    ),
    Part(
        name="none",
        axis="scale",
        compute=lambda generation: np.ones(len(generation.rewards_B)),
        formula="",
        source="Dr. GRPO (arXiv:2503.20783); TRL scale_rewards none",
    ),
    Part(
        name="group",
        axis="scale",
        compute=_group_std,
        formula="(unbiased std of the group + 1e-4)",
        source="GRPO (arXiv:2402.03300); TRL scale_rewards group (eps 1e-4; verl has 1e-6, oat 1e-8)",
        caveat="prompts that are nearly solved or nearly hopeless weigh more",
    ),
    Part(
        name="batch",
        axis="scale",
        compute=_batch_std,
        formula="(unbiased std of the generation + 1e-4)",
        source="TRL scale_rewards batch",
    ),
    Part(
        name="mean-scaled",
        axis="scale",
        compute=_group_mean,
        formula="mean of the group",
        source="MaxRL (arXiv:2602.02710); SkyRL, prime-rl",
        caveat="rewards are 0 or more; a group whose mean is 0 gets 0; hard prompts weigh more",
    ),
    Part(
        name="whiten-rows",
        axis="whitening",
        compute=lambda generation: (generation.lengths_B > 0) * 1.0,
        formula="(A − m) / √(s² + 1e-8), moments over the rows with tokens",
        source="REINFORCE++ (arXiv:2501.03262) as in ms-swift",
        caveat="groups without spread are moved too: their advantage is not 0",
        batch_wide=True,
    ),
    Part(
        name="whiten-tokens",
        axis="whitening",
        compute=lambda generation: generation.lengths_B,
        formula="(A − m) / √(s² + 1e-8), moments over the tokens",
        source="REINFORCE++ (arXiv:2501.03262) as in verl masked_whiten, OpenRLHF, slime, AReaL, ROLL",
        caveat="groups without spread are moved too: their advantage is not 0; long rows decide the mean",
        batch_wide=True,
    ),
):
    PARTS.add(_entry)

_WHITENING_EPS = 1e-8
TRL_SCALES = ("group", "batch", "none")
"""Advantages that TRL computes by itself, by its own names for `scale_rewards`."""


@dataclass(frozen=True)
class Advantage:
    """A centre, a scale and perhaps a whitening."""

    centre: Part
    scale: Part
    whitening: Part | None = None

    @property
    def name(self) -> str:
        """The canonical spelling."""
        plain = self.centre.name == "center-mean"
        parts = [] if plain else [self.centre.name]
        parts += [self.scale.name] if plain or self.scale.name != "none" else []
        return "+".join(parts + ([self.whitening.name] if self.whitening else []))

    @property
    def formula(self) -> str:
        """A_i in words and symbols."""
        scale = self.scale.formula
        text = f"({self.centre.formula}) / {scale}" if scale else self.centre.formula
        return f"A = {text}, then {self.whitening.formula}" if self.whitening else text

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its two or three parts."""
        return (self.centre, self.scale, *([self.whitening] if self.whitening else []))

    @property
    def scale_rewards(self) -> str:
        """TRL's `scale_rewards`: the standard deviation that divides; "none" for scales that TRL does not have."""
        return self.scale.name if self.scale.name in TRL_SCALES else "none"


def parse_advantage(text: str) -> Advantage:
    """Read "none", "loo", "length-weighted+group", "none+whiten-tokens". Raises ValueError with the valid forms."""
    found: dict[Axis, Part] = {}
    for name in (item.strip() for item in text.split("+")):
        part = PARTS[name]
        if part.axis in found:
            raise ValueError(
                f"advantage '{text}' names two of one kind, '{found[part.axis].name}' and '{name}'; {_forms()}"
            )
        found[part.axis] = part
    return Advantage(
        found.get("centre", PARTS["center-mean"]), found.get("scale", PARTS["none"]), found.get("whitening")
    )


def _forms() -> str:
    by_axis = {axis: ", ".join(p.name for p in PARTS.values() if p.axis == axis) for axis in ("centre", "scale")}
    return (
        f"valid: [centre+]scale[+whiten-rows or whiten-tokens] of centres {by_axis['centre']} and scales "
        + (by_axis["scale"])
    )


def check_scale(name: str) -> str:
    """TRL's scale as given. Raises ValueError for any other advantage, which has its own place in a mode's name."""
    if name not in TRL_SCALES:
        raise ValueError(unknown("scale_rewards", name, TRL_SCALES))
    return name


def advantages(
    rewards_B: ArrayLike,
    group_ids_B: ArrayLike,
    advantage: str | Advantage = "group",
    lengths_B: ArrayLike | None = None,
    eps: float = 1e-4,
) -> Array:
    """The advantages (B,) of one generation's rows, float64.

    `group_ids_B` (B,) names each row's prompt, in any order; `lengths_B` (B,) counts its live tokens (default: one
    each). A NaN reward is missing: left out of all moments, advantage 0. Rewards that differ by rounding alone are
    equal. Source: TRL 1.16 for the scales (eps 1e-4); the parts name theirs. Raises ValueError for an unknown
    advantage, a negative eps, rewards that a part does not take and shapes that disagree.
    """
    chosen = parse_advantage(advantage) if isinstance(advantage, str) else advantage
    rewards_B, group_ids_B = np.asarray(rewards_B, float), np.asarray(group_ids_B)
    lengths_B = np.ones(len(rewards_B)) if lengths_B is None else np.asarray(lengths_B, float)
    if rewards_B.ndim != 1 or group_ids_B.shape != rewards_B.shape or lengths_B.shape != rewards_B.shape:
        shapes = f"rewards_B has shape {rewards_B.shape}, group_ids_B {group_ids_B.shape}, lengths_B {lengths_B.shape}"
        raise ValueError(f"{shapes}; valid: all (B,)")
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; valid: 0 or more")
    scored_B = ~np.isnan(rewards_B)
    if not scored_B.any():
        return np.zeros(len(rewards_B))
    generation = Generation(np.where(scored_B, rewards_B, 0.0), group_ids_B, lengths_B * scored_B, scored_B, eps)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred_B = generation.rewards_B - chosen.centre.compute(generation)
        rounding = 1e-12 * np.abs(generation.rewards_B).max()
        known_B = scored_B & np.isfinite(centred_B) & (np.abs(centred_B) > rounding)
        found_B = np.where(known_B, centred_B, 0.0) / chosen.scale.compute(generation)
    found_B = np.where(scored_B, found_B, 0.0)
    if chosen.whitening is None:
        return found_B
    weights_B = chosen.whitening.compute(generation) * scored_B
    total = weights_B.sum()
    if total <= 1:
        return np.zeros(len(rewards_B))
    shifted_B = found_B - (weights_B * found_B).sum() / total
    variance = (weights_B * shifted_B**2).sum() / (total - 1)
    return np.where(scored_B, shifted_B / np.sqrt(variance + _WHITENING_EPS), 0.0)
