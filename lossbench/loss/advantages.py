"""Group-relative advantages: how rewards are centred, scaled and whitened, one registry entry per choice.

Moments run over the generation: all rows that were sampled together, on all ranks. An advantage is written as its parts
with "+": the centre (left out where it is the group's mean), the scale (left out behind another centre where it is
`none`), the whitening. Adding a part means adding one entry to `PARTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

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
    def ones_B(self) -> Array:
        """(B,): 1 for every row."""
        return np.ones(len(self.rewards_B))

    @property
    def mean_B(self) -> Array:
        """(B,): mean reward of each row's group."""
        return self.per_group(self.rewards_B) / self.per_group(self.ones_B)


@dataclass(frozen=True)
class Part:
    """One choice on one axis.

    `compute` gives a centre's baseline (B,), a scale's divisor (B,), or the weight (B,) of each row in a whitening's
    moments. `needs_others` marks baselines of the group's other rows, `batch_wide` parts that look beyond the group.
    """

    name: str
    axis: Axis
    compute: Callable[[Generation], Array]
    formula: str
    source: str
    caveat: str = ""
    needs_others: bool = False
    batch_wide: bool = False


def _others(rows: Generation, weights_B: Array) -> Array:
    """The weighted mean reward of the group's other rows."""
    weighted_B = weights_B * rows.rewards_B
    return (rows.per_group(weighted_B) - weighted_B) / (rows.per_group(weights_B) - weights_B)


def _std(rows: Generation, ids_B: Array) -> Array:
    """Unbiased std of the rewards that share an id, + eps; 1 where both vanish: there every centred reward is 0."""
    count_B = sum_by(rows.scored_B, ids_B)
    apart_B = (rows.rewards_B - sum_by(rows.rewards_B, ids_B) / count_B) * rows.scored_B
    std_B = np.sqrt(sum_by(apart_B**2, ids_B) / np.maximum(count_B - 1, 1)) + rows.eps
    return np.where(std_B > 0, std_B, 1.0)


def _group_mean(rows: Generation) -> Array:
    if (rows.rewards_B < 0).any():
        lowest = rows.rewards_B.min()
        raise ValueError(f"advantage 'mean-scaled' divides by a mean reward and found {lowest:g}; valid: 0 or more")
    return np.where(rows.mean_B > 0, rows.mean_B, np.inf)


PARTS: Registry[Part] = Registry("advantage", (
    Part(
        "center-mean", "centre", lambda rows: rows.mean_B, formula="r_i − mean of the group",
        source="GRPO (arXiv:2402.03300); all frameworks",
    ),
    Part(
        "loo", "centre", lambda rows: _others(rows, rows.ones_B), formula="r_i − mean of the group's other rows",
        source="RLOO (arXiv:2402.14740); TRL RLOOTrainer, ms-swift, verl, OpenRLHF, SkyRL, NeMo-RL, AReaL",
        caveat="G/(G−1) times the group's mean as centre: a larger step in the same direction",
        needs_others=True,
    ),
    Part(
        "length-weighted", "centre",
        lambda rows: rows.per_group(rows.lengths_B * rows.rewards_B) / rows.per_group(rows.lengths_B),
        formula="r_i − Σ_g L·r / Σ_g L",
        source="OPO (arXiv:2505.23585); verl opo",
        caveat="the row's own length stands in its baseline, which brings a length bias under constant weights",
    ),
    Part(
        "length-weighted-loo", "centre", lambda rows: _others(rows, rows.lengths_B),
        formula="r_i − Σ_{j≠i} L·r / Σ_{j≠i} L",
        source="lossbench: the length-weighted baseline of the other rows",
        needs_others=True,
    ),
    Part(
        "center-batch", "centre", lambda rows: rows.ones_B * rows.rewards_B[rows.scored_B].mean(),
        formula="r_i − mean of the generation",
        source="OpenRLHF, ms-swift (REINFORCE++)",
        caveat="groups without spread in their rewards teach too: prompts compete with each other",
        batch_wide=True,
    ),
    Part(
        "none", "scale", lambda rows: rows.ones_B, formula="",
        source="Dr. GRPO (arXiv:2503.20783); TRL scale_rewards none",
    ),
    Part(
        "group", "scale", lambda rows: _std(rows, rows.groups_B), formula="(unbiased std of the group + 1e-4)",
        source="GRPO (arXiv:2402.03300); TRL scale_rewards group (eps 1e-4; verl has 1e-6, oat 1e-8)",
        caveat="prompts that are nearly solved or nearly hopeless weigh more",
    ),
    Part(
        "batch", "scale", lambda rows: _std(rows, np.zeros_like(rows.groups_B)),
        formula="(unbiased std of the generation + 1e-4)",
        source="TRL scale_rewards batch",
        batch_wide=True,
    ),
    Part(
        "mean-scaled", "scale", _group_mean, formula="mean of the group",
        source="MaxRL (arXiv:2602.02710); SkyRL, prime-rl",
        caveat="rewards are 0 or more; a group whose mean is 0 gets 0; hard prompts weigh more",
    ),
    Part(
        "whiten-rows", "whitening", lambda rows: (rows.lengths_B > 0) * 1.0,
        formula="(A − m) / √(s² + 1e-8), moments over the rows with tokens",
        source="REINFORCE++ (arXiv:2501.03262) as in ms-swift",
        caveat="groups without spread are moved too: their advantage is not 0",
        batch_wide=True,
    ),
    Part(
        "whiten-tokens", "whitening", lambda rows: rows.lengths_B,
        formula="(A − m) / √(s² + 1e-8), moments over the tokens",
        source="REINFORCE++ (arXiv:2501.03262) as in verl masked_whiten, OpenRLHF, slime, AReaL, ROLL",
        caveat="groups without spread are moved too: their advantage is not 0; long rows decide the mean",
        batch_wide=True,
    ),
))  # fmt: skip


TRL_SCALES = ("group", "batch", "none")
"""Advantages that TRL computes by itself, by its own names for `scale_rewards`."""


@dataclass(frozen=True)
class Advantage:
    """A centre, a scale and perhaps a whitening."""

    centre: Part
    scale: Part
    whitening: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its two or three parts."""
        return tuple(part for part in (self.centre, self.scale, self.whitening) if part)

    @property
    def name(self) -> str:
        """The canonical spelling."""
        centre, *rest = (part.name for part in self.parts)
        if centre == "center-mean":
            return "+".join(rest)
        return "+".join([centre, *(name for name in rest if name != "none")])

    @property
    def plain(self) -> str:
        """Name of the advantage with the same scale about the group's mean, not whitened."""
        return Advantage(PARTS["center-mean"], self.scale).name

    @property
    def formula(self) -> str:
        """A_i in words and symbols."""
        scale = self.scale.formula
        text = f"({self.centre.formula}) / {scale}" if scale else self.centre.formula
        return f"A = {text}, then {self.whitening.formula}" if self.whitening else text

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
            both = f"'{found[part.axis].name}' and '{name}'"
            axes = "; ".join(f"{a}: {', '.join(p.name for p in PARTS.values() if p.axis == a)}" for a in get_args(Axis))
            raise ValueError(f"advantage '{text}' names two of one kind, {both}; valid: one of each, {axes}")
        found[part.axis] = part
    return Advantage(**{"centre": PARTS["center-mean"], "scale": PARTS["none"], **found})


def advantages(
    rewards_B: ArrayLike, group_ids_B: ArrayLike, advantage: str | Advantage = "group",
    lengths_B: ArrayLike | None = None, eps: float = 1e-4,
) -> Array:  # fmt: skip
    """The advantages (B,) of one generation's rows, float64.

    `group_ids_B` (B,) names each row's prompt, in any order; `lengths_B` (B,) counts its live tokens (default: one
    each). A NaN reward is missing: left out of all moments, advantage 0; so is the advantage where a baseline is not
    defined. Rewards that differ by rounding alone are equal. `eps` is TRL's. Raises ValueError for an unknown
    advantage, a negative eps, rewards that a part does not take and shapes that disagree.
    """
    chosen = parse_advantage(advantage) if isinstance(advantage, str) else advantage
    rewards_B, groups_B = np.asarray(rewards_B, float), np.asarray(group_ids_B)
    lengths_B = np.ones_like(rewards_B) if lengths_B is None else np.asarray(lengths_B, float)
    if rewards_B.ndim != 1 or not groups_B.shape == rewards_B.shape == lengths_B.shape:
        shapes = f"rewards_B has shape {rewards_B.shape}, group_ids_B {groups_B.shape}, lengths_B {lengths_B.shape}"
        raise ValueError(f"{shapes}; valid: all (B,)")
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; valid: 0 or more")
    scored_B = ~np.isnan(rewards_B)
    if not scored_B.any():
        return np.zeros(len(rewards_B))
    rows = Generation(np.where(scored_B, rewards_B, 0.0), groups_B, lengths_B * scored_B, scored_B, eps)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred_B = rows.rewards_B - chosen.centre.compute(rows)
        rounding = 1e-12 * np.abs(rows.rewards_B).max()
        known_B = scored_B & np.isfinite(centred_B) & (np.abs(centred_B) > rounding)
        found_B = np.where(known_B, centred_B, 0.0) / chosen.scale.compute(rows)
    if chosen.whitening is not None:
        weights_B = chosen.whitening.compute(rows) * scored_B
        if weights_B.sum() <= 1:
            return np.zeros(len(rewards_B))
        found_B = found_B - np.average(found_B, weights=weights_B)
        found_B = found_B / np.sqrt((weights_B * found_B**2).sum() / (weights_B.sum() - 1) + 1e-8)
    return np.where(scored_B, found_B, 0.0)
