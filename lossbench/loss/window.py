"""The row weights of one optimizer step: the one computation that training, probe, reports and tests share.

A generation of rollouts is cut into micro-batches; a window (one optimizer step) takes some of them, on every rank. The
part of a generation that falls into one window is a *segment*. A row term needs its segment alone; the window's scalar
needs all segments, so it is known when the window is full. Every rank computes this from the same gathered lengths, in
float64, so ranks agree to the last bit. Wherever arrays are taken, so are tensors on the CPU.
"""

import math
from dataclasses import dataclass, field

from lossbench.loss.aggregations import BoundAggregation, Rows, Totals, parse_aggregation
from lossbench.loss.lazy import Array, ArrayLike, np


@dataclass(frozen=True)
class Layout:
    """One generation as it was dealt out: R ranks, C micro-batches each, B rows each; whole numbers (R, C, B).

    `rows_RCB` numbers the generation's rows before they were shuffled; `lengths_RCB` counts loss tokens.
    """

    lengths_RCB: ArrayLike
    groups_RCB: ArrayLike
    rows_RCB: ArrayLike
    advantages_RCB: ArrayLike

    @property
    def micro_batches(self) -> int:
        """Micro-batches per rank, C."""
        return np.shape(self.lengths_RCB)[1]


@dataclass
class Window:
    """The optimizer step that is being accumulated. Raises ValueError for a horizon that is not above 0."""

    aggregation: BoundAggregation
    horizon: float
    match_scale: bool = False
    terms_of_row: dict[int, float] = field(default_factory=dict)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        if not (self.horizon > 0 and math.isfinite(self.horizon)):
            raise ValueError(f"horizon is {self.horizon}; valid: a finite number above 0")
        self.totals = Totals(self.horizon)

    def add(
        self, lengths_N: ArrayLike, groups_N: ArrayLike, micro_N: ArrayLike, advantages_N: ArrayLike | None = None
    ) -> Array:
        """Take rows into the window; returns their row terms (N,), float64, exactly 0 where a row is empty.

        A group counts once per call: where a window uses a generation twice, each pass is rows of its own. Raises
        ValueError where lengths and exponent give terms that float64 cannot hold, or needed advantages are missing.
        """
        entry, alpha = self.aggregation.entry, self.aggregation.alpha
        if entry.needs_advantages and advantages_N is None:
            raise ValueError(f"{entry.name} looks at the advantages, and none are given; valid: one for each row")
        lengths_N, groups_N, micro_N = np.asarray(lengths_N, float), np.asarray(groups_N), np.asarray(micro_N)
        advantages_N = np.full(len(lengths_N), math.nan) if advantages_N is None else np.asarray(advantages_N, float)
        rows = Rows(lengths_N, groups_N, micro_N, advantages_N, self.horizon, math.nan if alpha is None else alpha)
        live_N = lengths_N > 0
        with np.errstate(all="ignore"):
            terms_N = np.where(live_N, entry.row_term(rows), 0.0)
        if not np.isfinite(terms_N).all() or (alpha is not None and not (terms_N[live_N] > 0).all()):
            raise ValueError(
                f"agg_mode '{self.aggregation.name}': the weights of {lengths_N.min():g} to {lengths_N.max():g} tokens "
                "leave the range of floats; valid: a number nearer to 0"
            )
        self.totals += Totals(
            self.horizon, rows=len(lengths_N), prompts=len(np.unique(groups_N)), micro_batches=len(np.unique(micro_N)),
            tokens=float(lengths_N.sum()), row_term_sum=float(terms_N.sum()),
            weighted_tokens=float((terms_N * lengths_N).sum()),
        )  # fmt: skip
        return terms_N

    def add_segment(self, layout: Layout, first: int, last: int) -> Array:
        """Take micro-batches `first` to `last - 1` of every rank into the window; returns their row terms (R, c, B)."""
        lengths_RCB, groups_RCB, rows_RCB, advantages_RCB = (
            np.asarray(values_RCB)[:, first:last]
            for values_RCB in (layout.lengths_RCB, layout.groups_RCB, layout.rows_RCB, layout.advantages_RCB)
        )
        ranks, count, size = lengths_RCB.shape
        micro_N = np.arange(ranks * count).repeat(size)
        terms_N = self.add(lengths_RCB.ravel(), groups_RCB.ravel(), micro_N, advantages_RCB.ravel())
        self.terms_of_row.update(zip(rows_RCB.ravel().tolist(), terms_N.tolist(), strict=True))
        return terms_N.reshape(ranks, count, size)

    @property
    def scalar(self) -> float:
        """Factor of the row terms, or of gradients accumulated with them; right once the window is full.

        0 for a window without live tokens. With `match_scale` the row weights add up to 1/horizon, as Dr. GRPO's do.
        """
        totals = self.totals
        divisor = totals.row_term_sum * totals.horizon if self.match_scale else self.aggregation.entry.divisor(totals)
        return 1.0 / divisor if totals.tokens > 0 and divisor > 0 else 0.0

    @property
    def weight_sum(self) -> float:
        """Sum of the row weights: the effective normaliser."""
        return self.scalar * self.totals.row_term_sum


def window_weights(
    aggregation: str | BoundAggregation, lengths_N: ArrayLike, group_ids_N: ArrayLike, *, horizon: float,
    micro_ids_N: ArrayLike | None = None, advantages_N: ArrayLike | None = None, match_scale: bool = False,
) -> Array:  # fmt: skip
    """Weights w_i (N,) of all rows of one window, float64.

    `lengths_N` counts live tokens; `group_ids_N` names each row's prompt and `micro_ids_N` its micro-batch (default:
    one for all); `advantages_N` is needed by weights that look at them. `match_scale` makes the weights add up to
    1/horizon. Raises ValueError for shapes that disagree, negative lengths, and as `Window` does.
    """
    bound = parse_aggregation(aggregation) if isinstance(aggregation, str) else aggregation
    lengths_N, group_ids_N = np.asarray(lengths_N), np.asarray(group_ids_N)
    micro_ids_N = np.zeros_like(group_ids_N) if micro_ids_N is None else np.asarray(micro_ids_N)
    for argument, ids_N in (("group_ids_N", group_ids_N), ("micro_ids_N", micro_ids_N)):
        if lengths_N.ndim != 1 or ids_N.shape != lengths_N.shape:
            raise ValueError(f"{argument} has shape {ids_N.shape}, lengths_N {lengths_N.shape}; valid: (N,)")
    if (lengths_N < 0).any():
        raise ValueError(f"lengths_N holds {lengths_N.min()}; valid: token counts of 0 or more")
    window = Window(bound, horizon, match_scale)
    return window.add(lengths_N, group_ids_N, micro_ids_N, advantages_N) * window.scalar
