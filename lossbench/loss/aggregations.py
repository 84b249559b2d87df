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
from contextlib import suppress
from dataclasses import dataclass, fields

from lossbench.errors import unknown
from lossbench.loss.lazy import Array, np
from lossbench.registry import Registry


def sum_by(values_N: Array, ids_N: Array) -> Array:
    """(N,) float64: for each row, the sum of the values over all rows that share its id."""
    _, inverse_N = np.unique(ids_N, return_inverse=True)
    return np.bincount(inverse_N, weights=values_N)[inverse_N] if len(ids_N) else np.zeros(0)


@dataclass(frozen=True)
class Rows:
    """Input of a row term: (N,) arrays of one window's rows, or of those that came from one generation.

    `lengths_N` live tokens (float64), `groups_N` and `micro_N` name each row's prompt group and micro-batch, `horizon`
    the constant H in tokens, `alpha` the mode's exponent; missing advantages and exponents are NaN.
    """

    lengths_N: Array
    groups_N: Array
    micro_N: Array
    advantages_N: Array
    horizon: float
    alpha: float


@dataclass(frozen=True)
class Totals:
    """Sums over one window (all micro-batches, all ranks), or over a part of it: they add up.

    `rows` counts empty rows too, `prompts` the prompt groups, `micro_batches` each rank's, `tokens` the live ones;
    `weighted_tokens` adds row terms times the row's tokens.
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

    Whatever `row_term` gives an empty row is replaced by 0. `exponent` maps alpha to the length exponent e of the row's
    whole weight, w_i * L_i ~ L_i^e: 1 where the weight does not look at the row's own length. `looks_at_groups` marks
    weights that count a prompt's rows inside the window, so that a group in two windows is counted in each.
    """

    name: str
    row_term: Callable[[Rows], Array]
    divisor: Callable[[Totals], float]
    formula: str
    source: str
    caveat: str = ""
    exponent: Callable[[float], float] = lambda alpha: 1.0
    exponent_note: str = ""
    takes_alpha: bool = False
    depends_on_split: bool = False
    needs_advantages: bool = False
    looks_at_groups: bool = False


def _ones(rows: Rows) -> Array:
    return np.ones_like(rows.lengths_N)


def _length_power(rows: Rows) -> Array:
    """L^(alpha-1) / H^alpha without huge intermediate numbers."""
    return (rows.lengths_N / rows.horizon) ** (rows.alpha - 1.0) / rows.horizon


def _balanced(rows: Rows) -> Array:
    """(k_s/G) / sum of L over s, for the rows s of the group with the row's own sign, k_s of its G."""
    signs_N = np.sign(rows.advantages_N)
    sides_N = 3 * np.unique(rows.groups_N, return_inverse=True)[1] + signs_N
    shares_N = sum_by(_ones(rows), sides_N) / sum_by(_ones(rows), rows.groups_N)
    return np.where(signs_N == 0, 0.0, shares_N / sum_by(rows.lengths_N, sides_N))


def _live(rows: Rows) -> Array:
    """1 in groups whose advantages differ, 0 in the others."""
    mean_N = sum_by(rows.advantages_N, rows.groups_N) / sum_by(_ones(rows), rows.groups_N)
    apart_N = np.abs(rows.advantages_N - mean_N) > 1e-9 * np.abs(rows.advantages_N)
    return (sum_by(apart_N, rows.groups_N) > 0) * 1.0


AGGREGATIONS: Registry[Aggregation] = Registry("agg_mode", (
    Aggregation(
        "token-mean", row_term=_ones, divisor=lambda totals: totals.tokens, formula="1/T",
        source="DAPO (arXiv:2503.14476) as implemented: verl token-mean, TRL dapo",
        caveat="every live token of the window weighs the same; the divisor moves with the window's token count;"
        " articles print a local sum over the global count, which needs × processes under DDP's mean",
    ),
    Aggregation(
        "seq-mean-token-mean", row_term=lambda rows: 1.0 / rows.lengths_N, divisor=lambda totals: totals.rows,
        formula="1/(N·L_i)", exponent=lambda alpha: 0.0,
        source="GRPO (arXiv:2402.03300): verl seq-mean-token-mean, TRL grpo",
        caveat="a token of a long completion weighs less, so long wrong answers are punished less per token",
    ),
    Aggregation(
        "seq-mean-token-sum", row_term=_ones, divisor=lambda totals: totals.rows, formula="1/N",
        source="verl seq-mean-token-sum; TRL 1.16 luspo at token level",
        caveat="H times seq-mean-token-sum-norm: gradient clipping sees a norm H times as large",
    ),
    Aggregation(
        "seq-mean-token-sum-norm", row_term=_ones, divisor=lambda totals: totals.rows * totals.horizon,
        formula="1/(N·H)",
        source="Dr. GRPO (arXiv:2503.20783): verl >= 0.7.1 seq-mean-token-sum-norm, TRL dr_grpo",
        caveat="H is a configured constant; verl without loss_scale_factor takes the padded width instead, and"
        " verl <= 0.7.0 does not divide by N",
    ),
    Aggregation(
        "token-sum", row_term=_ones, divisor=lambda totals: 1.0, formula="1",
        source="verl >= 0.9 token-sum",
        caveat="grows with the number of rows in the window",
    ),
    Aggregation(
        "prompt-mean", row_term=lambda rows: 1.0 / sum_by(rows.lengths_N, rows.groups_N),
        divisor=lambda totals: totals.prompts, formula="1/(P·T_g)",
        source="ScaleRL (arXiv:2510.13786); the equation of the DAPO paper; SkyRL prompt_mean",
        caveat="T_g is the group's tokens inside the window: groups that straddle two windows are normalised in each",
        exponent_note="inside a group; groups weigh the same", looks_at_groups=True,
    ),
    Aggregation(
        "micro-token-mean", row_term=lambda rows: 1.0 / sum_by(rows.lengths_N, rows.micro_N),
        divisor=lambda totals: totals.micro_batches, formula="1/(M·T_m)",
        source="TRL bnpo; verl's token-mean before global counts (dp_actor)",
        caveat="the one aggregation meant to depend on how the window is cut into micro-batches: token-mean at M = 1,"
        " seq-mean-token-mean at one row per micro-batch",
        exponent_note="inside a micro-batch; micro-batches weigh the same", depends_on_split=True,
    ),
    Aggregation(
        "length-power", row_term=_length_power, divisor=lambda totals: totals.rows,
        formula="L_i^(α−1)/(N·H^α)", exponent=lambda alpha: alpha, takes_alpha=True,
        source="lossbench: the line between GRPO (α = 0) and Dr. GRPO (α = 1)",
        caveat="the step size shrinks with α unless lengths are near H: compare directions with match_scale",
    ),
    Aggregation(
        "delta-l", row_term=lambda rows: rows.lengths_N**-rows.alpha,
        divisor=lambda totals: totals.horizon * totals.row_term_sum,
        formula="L_i^(−α)/(H·Σ_j L_j^(−α))", exponent=lambda alpha: 1.0 - alpha, takes_alpha=True,
        source="ΔL normalisation (arXiv:2509.07558), with the constant H where the authors' code has the padded width",
        caveat="empty rows are left out of the sum; α = 0 is Dr. GRPO where no row is empty",
    ),
    Aggregation(
        "balanced", row_term=_balanced, divisor=lambda totals: totals.prompts, formula="(k_s/G)/(P·Σ_{j∈s} L_j)",
        source="Balanced Aggregation (arXiv:2605.04077): s the group's rows with the sign of A_i, k_s of its G rows",
        caveat="the smaller side of a group is biased by its own lengths, whether or not reward and length go together",
        exponent_note="inside the rows of one sign of a group; where A = 0 the weight is 0",
        needs_advantages=True, looks_at_groups=True,
    ),
    Aggregation(
        "live-token-mean", row_term=_live, divisor=lambda totals: totals.weighted_tokens,
        formula="1/T over groups with spread",
        source="AGPO (arXiv:2503.15952), dynamic sampling; a closed proposal for TRL",
        caveat="token-mean times one number per step; rows of groups without spread weigh 0",
        needs_advantages=True, looks_at_groups=True,
    ),
))  # fmt: skip


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
    entry = AGGREGATIONS.get(name)
    if entry is None:
        valid = [f"{entry.name}:α" if entry.takes_alpha else entry.name for entry in AGGREGATIONS.values()]
        raise ValueError(unknown("agg_mode", name, valid))
    if colon and not entry.takes_alpha:
        raise ValueError(f"agg_mode '{text}': {name} takes no number; valid: {name}")
    alpha = math.nan
    with suppress(ValueError):
        alpha = float(number)
    if entry.takes_alpha and not math.isfinite(alpha):
        raise ValueError(f"agg_mode '{text}': alpha must be a finite number; valid: {name}:0.5")
    return BoundAggregation(entry, alpha + 0.0 if entry.takes_alpha else None)
