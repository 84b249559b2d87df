"""The report's note on method: how the numbers come about and what they do not say."""

from collections.abc import Mapping
from typing import Any

_METHOD: tuple[str, ...] = (
    "The unit is a run. Every metric is one number per run, pooled over completions: the ratio of two sums, never a "
    "mean of per-step means. Late is the last fifth of the planned steps, early the first fifth.",
    "Runs of equal seed are paired: they start from the same policy, see the same prompts in the same order and draw "
    "from the same sampling streams. Only seeds that both modes completed are compared; the others are named.",
    "Intervals are 95 % t intervals of the paired differences. A ratio of two modes is the geometric mean of the "
    "pairs' ratios, so it can differ from the ratio of the means beside it. p-values come from the exact sign-flip "
    "test of these differences; with n pairs the smallest p is 2/2ⁿ two-sided (1/2ⁿ one-sided), so five pairs are the"
    " least for a one-sided claim at 0.05 and six for a two-sided one.",
    "Claims are stated in the recipe before the runs. Primary claims share the level 0.05 by Holm's method; the "
    "others are exploratory, each at its own 0.05. Supported means p ≤ 0.05 after that; contradicted means that the "
    "interval lies on the other side; anything else is inconclusive. That two modes are not distinguishable does not "
    "show that they are equal. That a ratio is within a margin is judged by two one-sided t tests, and shown with the"
    " 90 % interval that these look at.",
    "Bands in curves are pointwise: they cover the mean at one place at 95 %, not the whole curve. Curves are pooled "
    "over blocks of steps; tests use the raw windows.",
    "Length counts the tokens of a completion with its end-of-sequence token. Correct is whether the verifier "
    "accepted the answer, even if it was cut off. Incorrect length therefore includes completions cut at the cap; see"
    " truncation.",
    "Modes are also compared at equal tokens and at equal reward, because a mode that makes completions longer has "
    "seen more tokens at the same step. The common reward is a level that every run reaches on its way up: in figures"
    " and beside claims every run of the sweep, in the table, which names the level, every run of the two modes "
    "compared.",
    "The logged loss is a different quantity in each mode and is never compared.",
    "An interval speaks about runs like these: this task, these starting policies, these settings. Pairs that start "
    "from one policy share its quirks, so effects are shown per policy too where there are several.",
)

_LOGGED = (
    "The unit is a run. Every metric is one number per run: pooled over completions where the log has them, else the "
    "mean of the means that it has of each step. Late is the last fifth of the steps, early the first fifth.",
    "Runs of equal seed are paired by the number that the log or the command gave them. Whether they share policy, "
    "prompts and sampling is for their authors to say. Only seeds that both modes have are compared; the others are "
    "named.",
)


def method(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The points of the note for a sweep, or for logs of other trainers, which promise less."""
    return _METHOD if spec.get("kind", "sweep") == "sweep" else (*_LOGGED, *_METHOD[len(_LOGGED) :])
