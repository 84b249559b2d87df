"""A micro-batch as the loss needs it: its loss mask, facts about its rows, and pieces without shared padding."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lossbench.loss.window import Layout
from lossbench.sampling.length_chunks import length_chunks

_COMPLETION_TENSORS = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "ref_per_token_logps",
    "importance_sampling_ratio",
)  # fmt: skip


def loss_mask(batch: Mapping[str, Tensor]) -> Tensor:
    """Tokens that count in the loss (B, T): the completion's, less those that a tool wrote."""
    mask_BT = batch["completion_mask"]
    return mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT


def row_facts(chunks: list[dict[str, Tensor]]) -> Tensor:
    """Loss tokens, group, row number and advantage of each row of C micro-batches, int64 (C, B, 4).

    The advantage is there as the bits of its float32, so that one gather takes all.
    """
    facts = []
    for chunk in chunks:
        bits_B = chunk["advantages"].float().view(torch.int32).long()
        facts.append(torch.stack([loss_mask(chunk).sum(-1), chunk["group_ids"], chunk["row_ids"], bits_B], dim=-1))
    return torch.stack(facts).long()


def layout_of(facts_RCBF: Tensor) -> Layout:
    """The layout of a generation out of every rank's `row_facts` (R, C, B, 4)."""
    lengths_RCB, groups_RCB, rows_RCB, bits_RCB = facts_RCBF.cpu().unbind(-1)
    return Layout(lengths_RCB, groups_RCB, rows_RCB, bits_RCB.int().view(torch.float32))


def pieces(inputs: Mapping[str, Any], cut: bool) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """(row numbers, tensors) of pieces of similar length, each without the padding that all its rows share.

    One piece, padding and all, where they are not to be cut.
    """
    lengths_B, prompts_B = inputs["completion_mask"].sum(-1), inputs["prompt_mask"].sum(-1)
    if not cut:
        rows_B = torch.arange(len(lengths_B), device=lengths_B.device)
        return [(rows_B, _cut(inputs, rows_B, 0, inputs["completion_ids"].shape[1]))]
    found = []
    for rows in length_chunks(lengths_B, prompt_tokens=int(prompts_B.max())):
        rows = rows.to(lengths_B.device)
        width = max(int(lengths_B[rows].max()), 1)
        padding = inputs["prompt_ids"].shape[1] - int(prompts_B[rows].max())
        found.append((rows, _cut(inputs, rows, padding, width)))
    return found


def _cut(inputs: Mapping[str, Any], rows: Tensor, left: int, width: int) -> dict[str, Tensor]:
    """Rows `rows`, prompts without their first `left` positions, completions up to `width`."""
    piece = {name: inputs[name][rows][:, left:] for name in ("prompt_ids", "prompt_mask")}
    piece |= {name: inputs[name][rows][:, :width] for name in _COMPLETION_TENSORS if name in inputs}
    return {**piece, "advantages": inputs["advantages"][rows]}
