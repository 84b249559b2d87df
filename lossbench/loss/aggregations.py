"""Aggregations: how much weight the token losses of one completion get, as one weight per row.

A mode's loss is `sum_i w_i * sum_t m_it * l_it`. The weight of row i is a *row term*, which looks at the row (its
length, its prompt group, its micro-batch), times one *scalar* of the window. A window is one optimizer step: all its
micro-batches on all ranks. The scalar may be applied late, to gradients accumulated with the row term alone.

Notation of the formulas: N rows, P prompts, M micro-batches x ranks, L_i live tokens of row i, T = sum of L_i, T_g
live tokens of the row's prompt group in the window, T_m those of its micro-batch, H the constant horizon. Adding an
aggregation means adding one entry to `AGGREGATIONS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from lossbench.errors import unknown
from lossbench.loss.lazy import Array, np
from lossbench.registry import Registry


@dataclass(frozen=True)
class Rows:
    """Input of a row term: (N,) arrays of one window's rows, or of those that came from one generation.

    `lengths_N` live tokens (float64), `groups_N` and `micro_N` name each row's prompt group and micro-batch,
    `horizon` the constant H in tokens, `alpha` the mode's exponent, `advantages_N` is there where the entry needs it.
    """

    lengths_N: Array
    groups_N: Array
    micro_N: Array
    horizon: float
    alpha: float | None = None
    advantages_N: Array | None = None

    @property
    def exponent(self) -> float:
        """Alpha. Raises ValueError if it is not set."""
        if self.alpha is None:
            raise ValueError("alpha is None: this aggregation needs a finite number")
        return self.alpha

    def per_group(self, values_N: Array) -> Array:
        """(N,): for each row, the sum of the values over the rows of its prompt group."""
        return sum_by(values_N, self.groups_N)

    @property
    def signs_N(self) -> Array:
        """Signs of the advantages: -1, 0, 1. Raises ValueError if they are missing."""
        if self.advantages_N is None:
            raise ValueError("these weights look at the advantages, and none are given; valid: one for each row")
        return np.sign(self.advantages_N)

    def per_micro_batch(self, values_N: Array) -> Array:
        """(N,): for each row, the sum of the values over the rows of its micro-batch."""
        return sum_by(values_N, self.micro_N)


def sum_by(values_N: Array, ids_N: Array) -> Array:
    """(N,) float64: for each row, the sum of the values over all rows that share its id."""
    _, inverse_N = np.unique(ids_N, return_inverse=True)
    return np.bincount(inverse_N, weights=values_N)[inverse_N] if len(ids_N) else np.zeros(0)


@dataclass(frozen=True)
class Totals:
    """Sums over one window (all micro-batches, all ranks); additive, so parts of a window can be added up.

    `rows` counts empty rows too, `prompts` the prompt groups, `micro_batches` each rank's, `tokens` the live ones.
    `row_term_sum` adds the row terms (0 for empty rows), `weighted_tokens` each times the row's tokens.
    """

    horizon: float
    rows: int = 0
    prompts: int = 0
    micro_batches: int = 0
    tokens: float = 0
    row_term_sum: float = 0.0
    weighted_tokens: float = 0.0

    def __add__(self, other: "Totals") -> "Totals":
        """The totals of both parts, which have one horizon."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Totals(**{**sums, "horizon": self.horizon})


@dataclass(frozen=True)
class Aggregation:
    """One aggregation: its row term, the divisor of the window, and what is known about it.

    Whatever `row_term` gives an empty row is replaced by 0.
    `exponent` maps alpha to the length exponent e of the row's whole weight, w_i * L_i ~ L_i^e. `looks_at_groups` marks
    weights that count a prompt's rows inside the window, so that a group in two windows is counted in each.
    """

    name: str
    row_term: Callable[[Rows], Array]
    divisor: Callable[[Totals], float]
    formula: str
    exponent: Callable[[float], float]
    source: str
    caveat: str = ""
    exponent_note: str = ""
    takes_alpha: bool = False
    depends_on_split: bool = False
    needs_advantages: bool = False
    looks_at_groups: bool = False


def _ones(rows: Rows) -> Array:
    return np.ones_like(rows.lengths_N)


def _length_power(rows: Rows) -> Array:
    """(L/H)^(alpha-1) / H, which is L^(alpha-1) / H^alpha without huge intermediate numbers."""
    return (rows.lengths_N / rows.horizon) ** (rows.exponent - 1.0) / rows.horizon


def _balanced(rows: Rows) -> Array:
    """(k_s/G) / sum of L over s, for the rows s of the group with the row's own sign, k_s of its G."""
    signs_N, found_N = rows.signs_N, np.zeros_like(rows.lengths_N)
    for sign in (-1.0, 1.0):
        side_N = (signs_N == sign) * 1.0
        share_N = rows.per_group(side_N) / rows.per_group(np.ones_like(rows.lengths_N))
        found_N = np.where(side_N > 0, share_N / rows.per_group(side_N * rows.lengths_N), found_N)
    return found_N


def _live(rows: Rows) -> Array:
    """1 in groups whose advantages differ, 0 in the others."""
    ones_N, signs_N = np.ones_like(rows.lengths_N), rows.signs_N  # refused where there are no advantages
    advantages_N = signs_N * np.abs(np.asarray(rows.advantages_N))
    mean_N = rows.per_group(advantages_N) / rows.per_group(ones_N)
    apart_N = np.abs(advantages_N - mean_N) > 1e-9 * np.abs(advantages_N)
    return (rows.per_group(apart_N * 1.0) > 0) * 1.0


AGGREGATIONS: Registry[Aggregation] = Registry("agg_mode")
for _entry in (
    Aggregation(
        name="token-mean",
        row_term=_ones,
        divisor=lambda totals: totals.tokens,
        formula="1/T",
        exponent=lambda alpha: 1.0,
        source="DAPO (arXiv:2503.14476) as implemented: verl token-mean, TRL dapo",
        caveat="every live token of the window weighs the same; the divisor moves with the window's token count;"
        " articles print a local sum over the global count, which needs × processes under DDP's mean",
    ),
    Aggregation(
        name="seq-mean-token-mean",
        row_term=lambda rows: 1.0 / rows.lengths_N,
        divisor=lambda totals: totals.rows,
        formula="1/(N·L_i)",
        exponent=lambda alpha: 0.0,
        source="GRPO (arXiv:2402.03300): verl seq-mean-token-mean, TRL grpo",
        caveat="a token of a long completion weighs less, so long wrong answers are punished less per token",
    ),
    Aggregation(
        name="seq-mean-token-sum",
        row_term=_ones,
        divisor=lambda totals: totals.rows,
        formula="1/N",
        exponent=lambda alpha: 1.0,
        source="verl seq-mean-token-sum; TRL 1.16 luspo at token level",
        caveat="H times seq-mean-token-sum-norm: gradient clipping sees a norm H times as large",
    ),
    Aggregation(
        name="seq-mean-token-sum-norm",
        row_term=_ones,
        divisor=lambda totals: totals.rows * totals.horizon,
        formula="1/(N·H)",
        exponent=lambda alpha: 1.0,
        source="Dr. GRPO (arXiv:2503.20783): verl >= 0.7.1 seq-mean-token-sum-norm, TRL dr_grpo",
        caveat="H is a configured constant; verl without loss_scale_factor takes the padded width instead, and"
        " verl <= 0.7.0 does not divide by N",
    ),
    Aggregation(
        name="token-sum",
        row_term=_ones,
        divisor=lambda totals: 1.0,
        formula="1",
        exponent=lambda alpha: 1.0,
        source="verl >= 0.9 token-sum",
        caveat="grows with the number of rows in the window",
    ),
    Aggregation(
        name="prompt-mean",
        row_term=lambda rows: 1.0 / rows.per_group(rows.lengths_N),
        divisor=lambda totals: totals.prompts,
        formula="1/(P·T_g)",
        exponent=lambda alpha: 1.0,
        exponent_note="inside a group; groups weigh the same",
        source="ScaleRL (arXiv:2510.13786); the equation of the DAPO paper; SkyRL prompt_mean",
        caveat="T_g is the group's tokens inside the window: groups that straddle two windows are normalised in each",
        looks_at_groups=True,
    ),
    Aggregation(
        name="micro-token-mean",
        row_term=lambda rows: 1.0 / rows.per_micro_batch(rows.lengths_N),
        divisor=lambda totals: totals.micro_batches,
        formula="1/(M·T_m)",
        exponent=lambda alpha: 1.0,
        exponent_note="inside a micro-batch; micro-batches weigh the same",
        source="TRL bnpo; verl's token-mean before global counts (dp_actor)",
        caveat="the one aggregation meant to depend on how the window is cut into micro-batches: token-mean at M = 1,"
        " seq-mean-token-mean at one row per micro-batch",
        depends_on_split=True,
    ),
    Aggregation(
        name="length-power",
        row_term=_length_power,
        divisor=lambda totals: totals.rows,
        formula="L_i^(α−1)/(N·H^α)",
        exponent=lambda alpha: alpha,
        source="lossbench: the line between GRPO (α = 0) and Dr. GRPO (α = 1)",
        caveat="the step size shrinks with α unless lengths are near H: compare directions with match_scale",
        takes_alpha=True,
    ),
    Aggregation(
        name="delta-l",
        row_term=lambda rows: rows.lengths_N**-rows.exponent,
        divisor=lambda totals: totals.horizon * totals.row_term_sum,
        formula="L_i^(−α)/(H·Σ_j L_j^(−α))",
        exponent=lambda alpha: 1.0 - alpha,
        source="ΔL normalisation (arXiv:2509.07558), with the constant H where the authors' code has the padded width",
        caveat="empty rows are left out of the sum; α = 0 is Dr. GRPO where no row is empty",
        takes_alpha=True,
    ),
    Aggregation(
        name="balanced",
        row_term=_balanced,
        divisor=lambda totals: totals.prompts,
        formula="(k_s/G)/(P·Σ_{j∈s} L_j)",
        exponent=lambda alpha: 1.0,
        exponent_note="inside the rows of one sign of a group; where A = 0 the weight is 0",
        source="Balanced Aggregation (arXiv:2605.04077): s the group's rows with the sign of A_i, k_s of its G rows",
        caveat="the smaller side of a group is biased by its own lengths, whether or not reward and length go together",
        needs_advantages=True,
        looks_at_groups=True,
    ),
    Aggregation(
        name="live-token-mean",
        row_term=_live,
        divisor=lambda totals: totals.weighted_tokens,
        formula="1/T over groups with spread",
        exponent=lambda alpha: 1.0,
        source="AGPO (arXiv:2503.15952), dynamic sampling; a closed proposal for TRL",
        caveat="token-mean times one number per step; rows of groups without spread weigh 0",
        needs_advantages=True,
        looks_at_groups=True,
    ),
):
    AGGREGATIONS.add(_entry)


@dataclass(frozen=True)
class BoundAggregation:
    """An aggregation with its exponent filled in; `name` is the canonical spelling, such as "length-power:0.5"."""

    entry: Aggregation
    alpha: float | None = None

    @property
    def name(self) -> str:
        """The spelling that `parse_aggregation` reads back."""
        return self.entry.name if self.alpha is None else f"{self.entry.name}:{format_number(self.alpha)}"

    @property
    def exponent(self) -> float:
        """Length exponent e of the row's whole weight: w_i * L_i ~ L_i^e."""
        return self.entry.exponent(0.0 if self.alpha is None else self.alpha)


def format_number(value: float) -> str:
    """Shortest spelling that reads back as the same float: 0.5, 1, 0.75."""
    return repr(float(value)).removesuffix(".0")


def parse_aggregation(text: str) -> BoundAggregation:
    """Read "token-mean" or "length-power:0.5". Raises ValueError naming the valid forms."""
    name, colon, number = text.strip().partition(":")
    if name not in AGGREGATIONS:
        valid = [f"{entry.name}:α" if entry.takes_alpha else entry.name for entry in AGGREGATIONS.values()]
        raise ValueError(unknown("agg_mode", name, valid))
    entry = AGGREGATIONS[name]
    if not entry.takes_alpha:
        if colon:
            raise ValueError(f"agg_mode '{text}': {name} takes no number; valid: {name}")
        return BoundAggregation(entry)
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if not math.isfinite(alpha):
        raise ValueError(f"agg_mode '{text}': alpha must be a finite number; valid: {name}:0.5")
    return BoundAggregation(entry, alpha + 0.0)
