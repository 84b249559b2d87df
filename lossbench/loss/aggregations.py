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
from dataclasses import dataclass

from lossbench.errors import unknown
from lossbench.loss.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class Rows:
    """What a row term may look at: (B,) tensors in tokens, the constant horizon in tokens, and the mode's exponent."""

    lengths_B: Tensor
    group_tokens_B: Tensor
    micro_tokens_B: Tensor
    horizon: float
    alpha: float | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over one window (all micro-batches, all ranks): each is additive, so partial sums can be all-reduced.

    `rows` counts empty rows too. `prompts` is the number of prompt groups, i.e. the sum over rows of
    1 / (rows of its group). `micro_batches` counts each rank's. `row_term_sum` adds the row terms (0 for empty rows).
    """

    rows: float
    prompts: float
    micro_batches: float
    tokens: float
    row_term_sum: float
    horizon: float


@dataclass(frozen=True)
class Aggregation:
    """One aggregation: its row term, its window scalar and what is known about it.

    `row_term` sees lengths clamped to at least 1; the rows that are really empty are set to 0 afterwards. Written with
    operators and methods that tensors and NumPy arrays share, it also serves where torch is not loaded.
    `exponent` maps alpha to the length exponent e of the row's whole weight, w_i * L_i ~ L_i^e.
    """

    name: str
    row_term: Callable[[Rows], Tensor]
    scalar: Callable[[Totals], float]
    formula: str
    exponent: Callable[[float], float]
    source: str
    caveat: str = ""
    exponent_note: str = ""
    takes_alpha: bool = False
    depends_on_split: bool = False


def _inverse(divisor: float) -> float:
    """1 / divisor, and 0 for an empty window, whose loss is 0."""
    return 1.0 / divisor if divisor > 0 else 0.0


def _ones(rows: Rows) -> Tensor:
    return rows.lengths_B**0


def _length_power(rows: Rows) -> Tensor:
    """(L/H)^(alpha-1) / H, which is L^(alpha-1) / H^alpha without huge intermediate numbers."""
    return (rows.lengths_B / rows.horizon) ** (_alpha(rows) - 1.0) / rows.horizon


def _alpha(rows: Rows) -> float:
    if rows.alpha is None:
        raise ValueError("alpha is None: this aggregation needs a finite number")
    return rows.alpha


AGGREGATIONS: dict[str, Aggregation] = {}


def register(entry: Aggregation) -> None:
    """Add an aggregation to the registry. Raises ValueError where the name is taken."""
    if entry.name in AGGREGATIONS:
        raise ValueError(f"aggregation name {entry.name!r} is taken; valid: a name not in {', '.join(AGGREGATIONS)}")
    AGGREGATIONS[entry.name] = entry


for _entry in (
    Aggregation(
        name="token-mean",
        row_term=_ones,
        scalar=lambda totals: _inverse(totals.tokens),
        formula="1/T",
        exponent=lambda alpha: 1.0,
        source="DAPO (arXiv:2503.14476) as implemented: verl token-mean, TRL dapo",
        caveat="every live token of the window weighs the same; the divisor moves with the window's token count;"
        " articles print a local sum over the global count, which needs × processes under DDP's mean",
    ),
    Aggregation(
        name="seq-mean-token-mean",
        row_term=lambda rows: 1.0 / rows.lengths_B,
        scalar=lambda totals: _inverse(totals.rows),
        formula="1/(N·L_i)",
        exponent=lambda alpha: 0.0,
        source="GRPO (arXiv:2402.03300): verl seq-mean-token-mean, TRL grpo",
        caveat="a token of a long completion weighs less, so long wrong answers are punished less per token",
    ),
    Aggregation(
        name="seq-mean-token-sum",
        row_term=_ones,
        scalar=lambda totals: _inverse(totals.rows),
        formula="1/N",
        exponent=lambda alpha: 1.0,
        source="verl seq-mean-token-sum; TRL 1.16 luspo at token level",
        caveat="H times seq-mean-token-sum-norm: gradient clipping sees a norm H times as large",
    ),
    Aggregation(
        name="seq-mean-token-sum-norm",
        row_term=_ones,
        scalar=lambda totals: _inverse(totals.rows * totals.horizon),
        formula="1/(N·H)",
        exponent=lambda alpha: 1.0,
        source="Dr. GRPO (arXiv:2503.20783): verl >= 0.7.1 seq-mean-token-sum-norm, TRL dr_grpo",
        caveat="H is a configured constant; verl without loss_scale_factor takes the padded width instead, and"
        " verl <= 0.7.0 does not divide by N",
    ),
    Aggregation(
        name="token-sum",
        row_term=_ones,
        scalar=lambda totals: 1.0,
        formula="1",
        exponent=lambda alpha: 1.0,
        source="verl >= 0.9 token-sum",
        caveat="grows with the number of rows in the window",
    ),
    Aggregation(
        name="prompt-mean",
        row_term=lambda rows: 1.0 / rows.group_tokens_B.clip(min=1),
        scalar=lambda totals: _inverse(totals.prompts),
        formula="1/(P·T_g)",
        exponent=lambda alpha: 1.0,
        exponent_note="inside a group; groups weigh the same",
        source="ScaleRL (arXiv:2510.13786); the equation of the DAPO paper; SkyRL prompt_mean",
        caveat="T_g is the group's tokens inside the window: groups that straddle two windows are normalised in each",
    ),
    Aggregation(
        name="micro-token-mean",
        row_term=lambda rows: 1.0 / rows.micro_tokens_B.clip(min=1),
        scalar=lambda totals: _inverse(totals.micro_batches),
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
        scalar=lambda totals: _inverse(totals.rows),
        formula="L_i^(α−1)/(N·H^α)",
        exponent=lambda alpha: alpha,
        source="lossbench: the line between GRPO (α = 0) and Dr. GRPO (α = 1)",
        caveat="the step size shrinks with α unless lengths are near H: compare directions with match_scale",
        takes_alpha=True,
    ),
    Aggregation(
        name="delta-l",
        row_term=lambda rows: rows.lengths_B ** -_alpha(rows),
        scalar=lambda totals: _inverse(totals.horizon * totals.row_term_sum),
        formula="L_i^(−α)/(H·Σ_j L_j^(−α))",
        exponent=lambda alpha: 1.0 - alpha,
        source="ΔL normalisation (arXiv:2509.07558), with the constant H where the authors' code has the padded width",
        caveat="empty rows are left out of the sum; α = 0 is Dr. GRPO where no row is empty",
        takes_alpha=True,
    ),
):
    register(_entry)


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

    def row_term(self, rows: Rows) -> Tensor:
        """Row terms (B,), in the lengths' float dtype (float64 for integers); exactly 0 where the row is empty.

        Raises ValueError for a horizon that is not above 0.
        """
        _check_horizon(rows.horizon)
        lengths_B = rows.lengths_B if rows.lengths_B.is_floating_point() else rows.lengths_B.double()
        safe = Rows(
            lengths_B.clamp(min=1),
            rows.group_tokens_B.to(lengths_B.dtype),
            rows.micro_tokens_B.to(lengths_B.dtype),
            rows.horizon,
            self.alpha,
        )
        return torch.where(lengths_B > 0, self.entry.row_term(safe), 0.0)

    def scalar(self, totals: Totals) -> float:
        """The window's scalar; 0 for a window without live tokens. Raises ValueError for a horizon not above 0."""
        _check_horizon(totals.horizon)
        return self.entry.scalar(totals) if totals.tokens > 0 else 0.0


def format_number(value: float) -> str:
    """Shortest spelling that reads back as the same float: 0.5, 1, 0.75."""
    return repr(float(value)).removesuffix(".0")


def parse_aggregation(text: str) -> BoundAggregation:
    """Read "token-mean" or "length-power:0.5". Raises ValueError naming the valid forms."""
    name, colon, number = text.strip().partition(":")
    if name not in AGGREGATIONS:
        raise ValueError(unknown("agg_mode", name, [_spelling(entry) for entry in AGGREGATIONS.values()]))
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


def _spelling(entry: Aggregation) -> str:
    return f"{entry.name}:α" if entry.takes_alpha else entry.name


def matched_scalar(totals: Totals) -> float:
    """The scalar that makes any aggregation's row weights add up to 1/horizon, as Dr. GRPO's do without empty rows."""
    _check_horizon(totals.horizon)
    return _inverse(totals.row_term_sum * totals.horizon)


def tokens_of(lengths_N: Tensor, ids_N: Tensor) -> Tensor:
    """(N,) floats: for each row, the live tokens of all rows that share its id (a prompt group, a micro-batch)."""
    lengths_N = lengths_N if lengths_N.is_floating_point() else lengths_N.double()
    _, inverse_N = torch.unique(ids_N, return_inverse=True)
    sums = lengths_N.new_zeros(int(inverse_N.max()) + 1 if len(inverse_N) else 0).index_add(0, inverse_N, lengths_N)
    return sums[inverse_N]


def window_weights(
    aggregation: str | BoundAggregation,
    lengths_N: Tensor,
    group_ids_N: Tensor,
    *,
    horizon: float,
    micro_ids_N: Tensor | None = None,
    match_scale: bool = False,
) -> Tensor:
    """Weights w_i (N,) of all rows of one window, float64 for integer lengths, else in the lengths' dtype.

    `lengths_N` counts live tokens; `group_ids_N` names each row's prompt and `micro_ids_N` its micro-batch (default:
    one for all). `match_scale` makes the weights add up to 1/horizon. Raises ValueError for shapes that disagree,
    negative lengths and a horizon not above 0.
    """
    bound = parse_aggregation(aggregation) if isinstance(aggregation, str) else aggregation
    micro_ids_N = torch.zeros_like(group_ids_N) if micro_ids_N is None else micro_ids_N
    for argument, ids_N in (("group_ids_N", group_ids_N), ("micro_ids_N", micro_ids_N)):
        if lengths_N.ndim != 1 or ids_N.shape != lengths_N.shape:
            raise ValueError(
                f"{argument} has shape {tuple(ids_N.shape)}, lengths_N {tuple(lengths_N.shape)}; valid: (N,)"
            )
    if bool((lengths_N < 0).any()):
        raise ValueError(f"lengths_N holds {lengths_N.min().item()}; valid: token counts of 0 or more")
    terms_N = bound.row_term(
        Rows(lengths_N, tokens_of(lengths_N, group_ids_N), tokens_of(lengths_N, micro_ids_N), horizon, bound.alpha)
    )
    totals = Totals(
        rows=len(lengths_N),
        prompts=len(torch.unique(group_ids_N)),
        micro_batches=len(torch.unique(micro_ids_N)),
        tokens=float(lengths_N.sum()),
        row_term_sum=float(terms_N.double().sum()),
        horizon=horizon,
    )
    return terms_N * (matched_scalar(totals) if match_scale else bound.scalar(totals))


def _check_horizon(horizon: float) -> None:
    if not (horizon > 0 and math.isfinite(horizon)):
        raise ValueError(f"horizon is {horizon}; valid: a finite number above 0")
