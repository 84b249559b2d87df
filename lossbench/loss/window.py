"""Which rows share an optimizer step, and what each weighs in it.

A generation of rollouts is cut into micro-batches; a window (one optimizer step) takes some of them, on every rank. The
part of a generation that falls into one window is a *segment*. A row term needs its segment alone; the window's scalar
needs all segments, so it is known when the window is full. Every rank computes this from the same gathered lengths, in
float64, so ranks agree to the last bit.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lossbench.loss.aggregations import BoundAggregation, Rows, Totals, matched_scalar, tokens_of


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
    """The optimizer step that is being accumulated."""

    aggregation: BoundAggregation
    horizon: float
    match_scale: bool = False
    rows: int = 0
    prompts: int = 0
    micro_batches: int = 0
    tokens: int = 0
    row_term_sum: float = 0.0
    terms_of_row: dict[int, float] = field(default_factory=dict)

    def add_segment(self, layout: Layout, first: int, last: int) -> Tensor:
        """Take micro-batches `first` to `last - 1` of every rank into the window; returns their row terms (R, c, B).

        A group counts once per segment: where a window uses a generation twice, each pass is rows of its own.
        """
        lengths_RCB = layout.lengths_RCB[:, first:last].double()
        ranks, count, size = lengths_RCB.shape
        lengths_N = lengths_RCB.flatten()
        groups_N = layout.groups_RCB[:, first:last].flatten()
        micro_N = torch.arange(ranks * count).repeat_interleave(size)
        terms_N = self.aggregation.row_term(
            Rows(
                lengths_N,
                tokens_of(lengths_N, groups_N),
                tokens_of(lengths_N, micro_N),
                self.horizon,
                self.aggregation.alpha,
            )
        )
        self.rows += len(lengths_N)
        self.prompts += len(torch.unique(groups_N))
        self.micro_batches += ranks * count
        self.tokens += int(lengths_N.sum())
        self.row_term_sum += float(terms_N.sum())
        self.terms_of_row.update(zip(layout.rows_RCB[:, first:last].flatten().tolist(), terms_N.tolist(), strict=True))
        return terms_N.view(ranks, count, size)

    @property
    def totals(self) -> Totals:
        """The window's additive sums so far."""
        return Totals(self.rows, self.prompts, self.micro_batches, self.tokens, self.row_term_sum, self.horizon)

    @property
    def scalar(self) -> float:
        """What the gradients accumulated with row terms are multiplied by; right once the window is full."""
        return matched_scalar(self.totals) if self.match_scale else self.aggregation.scalar(self.totals)

    @property
    def weight_sum(self) -> float:
        """Sum of the row weights: the effective normaliser."""
        return self.scalar * self.row_term_sum
