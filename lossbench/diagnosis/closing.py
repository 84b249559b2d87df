"""Two sentences on a run: what happened to length, and what to change."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lossbench.diagnosis.trend import Change, change

_FLAT = 0.05
"""A change by less than this share of the first length is no change worth a word."""


def what_happened(series: Sequence[Mapping[str, Any]]) -> tuple[str, Change | None, Change | None]:
    """The sentence on wrong and right lengths, and their changes, from step rows in order."""
    wrong, right = (
        change(np.array([np.nan if row.get(name) is None else row[name] for row in series], dtype=float))
        for name in ("length_incorrect", "length_correct")
    )
    parts = [text for text in (_told("wrong answers", wrong), _told("right answers", right)) if text]
    sentence = "; ".join(parts) if parts else "no completion has both a length and a verdict"
    return f"{sentence[0].upper()}{sentence[1:]}.", wrong, right


def _told(who: str, found: Change | None) -> str:
    if found is None:
        return ""
    ends = f"{found.first:.3g} → {found.last:.3g} tokens"
    if found.low is None or found.high is None:
        return f"{who} {ends} (too few steps for an interval)"
    interval = f"[{found.low:+.2g}, {found.high:+.2g}]"
    if not found.told:
        return f"{who}: can't tell ({ends}, change {interval})"
    verb = "grew" if found.difference > 0 else "shrank"
    slight = " slightly" if abs(found.difference) < _FLAT * found.first else ""
    return f"{who} {verb}{slight}, {ends} (change {interval})"
