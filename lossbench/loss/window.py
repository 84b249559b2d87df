"""The row weights of one optimizer step: the one computation that training, probe, reports and tests share.

A generation of rollouts is cut into micro-batches; a window (one optimizer step) takes some of them, on every rank. The
part of a generation that falls into one window is a *segment*. A row term needs its segment alone; the window's scalar
needs all segments, so it is known when the window is full. Every rank computes this from the same gathered lengths, in
float64, so ranks agree to the last bit.
"""

import math
from dataclasses import dataclass, field

from lossbench.loss.aggregations import BoundAggregation, Rows, Totals, parse_aggregation
from lossbench.loss.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class Layout:
    """One generation as it was dealt out: R ranks, C micro-batches each, B rows each; int64 (R, C, B) on the CPU.

    `rows_RCB` numbers the generation's rows before they were shuffled; `lengths_RCB` counts loss tokens.
    """

    lengths_RCB: Tensor
    groups_RCB: Tensor
    rows_RCB: Tensor

    @property
    def micro_batches(self) -> int:
        """Micro-batches per rank, C."""
        return self.lengths_RCB.shape[1]


@dataclass
class Window:
    """The optimizer step that is being accumulated. Raises ValueError for a horizon that is not above 0."""

    aggregation: BoundAggregation
    horizon: float
    match_scale: bool = False
    terms_of_row: dict[int, float] = field(default_factory=dict)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        """Start with empty totals."""
        if not (self.horizon > 0 and math.isfinite(self.horizon)):
            raise ValueError(f"horizon is {self.horizon}; valid: a finite number above 0")
        self.totals = Totals(self.horizon)

    def add(self, lengths_N: Tensor, group_ids_N: Tensor, micro_ids_N: Tensor) -> Tensor:
        """Take rows into the window; returns their row terms (N,), float64, exactly 0 where a row is empty.

        A group counts once per call: where a window uses a generation twice, each pass is rows of its own. Raises
        ValueError where lengths and exponent give terms that float64 cannot hold.
        """
        lengths_N, alpha = lengths_N.double(), self.aggregation.alpha
        rows = Rows(lengths_N, group_ids_N, micro_ids_N, self.horizon, alpha)
        live_N = lengths_N > 0
        terms_N = torch.where(live_N, self.aggregation.entry.row_term(rows), 0.0)
        if not torch.isfinite(terms_N).all() or (alpha is not None and not (terms_N[live_N] > 0).all()):
            raise ValueError(
                f"agg_mode '{self.aggregation.name}': the weights of {int(lengths_N.min())} to "
                f"{int(lengths_N.max())} tokens leave the range of floats; valid: a number nearer to 0"
            )
        self.totals += Totals(
            self.horizon,
            rows=len(lengths_N),
            prompts=len(torch.unique(group_ids_N)),
            micro_batches=len(torch.unique(micro_ids_N)),
            tokens=float(lengths_N.sum()),
            row_term_sum=float(terms_N.sum()),
        )
        return terms_N

    def add_segment(self, layout: Layout, first: int, last: int) -> Tensor:
        """Take micro-batches `first` to `last - 1` of every rank into the window; returns their row terms (R, c, B)."""
        lengths_RCB = layout.lengths_RCB[:, first:last]
        ranks, count, size = lengths_RCB.shape
        micro_N = torch.arange(ranks * count).repeat_interleave(size)
        terms_N = self.add(lengths_RCB.flatten(), layout.groups_RCB[:, first:last].flatten(), micro_N)
        self.terms_of_row.update(zip(layout.rows_RCB[:, first:last].flatten().tolist(), terms_N.tolist(), strict=True))
        return terms_N.view(ranks, count, size)

    @property
    def scalar(self) -> float:
        """What row terms, or the gradients accumulated with them, are multiplied by; right once the window is full.

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
    aggregation: str | BoundAggregation,
    lengths_N: Tensor,
    group_ids_N: Tensor,
    *,
    horizon: float,
    micro_ids_N: Tensor | None = None,
    match_scale: bool = False,
) -> Tensor:
    """Weights w_i (N,) of all rows of one window, float64.

    `lengths_N` counts live tokens; `group_ids_N` names each row's prompt and `micro_ids_N` its micro-batch (default:
    one for all). `match_scale` makes the weights add up to 1/horizon. Raises ValueError for shapes that disagree,
    negative lengths, a horizon not above 0 and weights beyond float64.
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
    window = Window(bound, horizon, match_scale)
    return window.add(lengths_N, group_ids_N, micro_ids_N) * window.scalar
