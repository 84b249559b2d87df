"""The claims that a sweep can test, as data; `judge` gives the verdicts.

A claim is stated before the runs: the recipe names it by id, and `fingerprint` lets a report say whether the wording,
metric, arms or margins were changed afterwards. Figures of "the paper" are those of Dr. GRPO (arXiv 2503.20783); where
they stand in a plot only, `source_figure` says so. This module imports nothing heavy.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lossbench.errors import UsageError, unknown

Kind = Literal[
    "greater", "non-inferior", "ratio-equivalent", "dominates", "exact", "dose-response", "rank", "sign"
]  # fmt: skip
"""How a claim is tested, on one value per seed:

- greater: the contrast is > 0. Contradicted if its 95 % interval lies below 0.
- non-inferior: the contrast is > -margin. Contradicted if its 95 % interval lies below -margin.
- ratio-equivalent: the 90 % interval of the ratio of the contrast's two arms lies inside 1/margin … margin (two
  one-sided tests at 0.05). Contradicted if its 95 % interval lies outside.
- dominates: the contrast is larger than every rival contrast in absolute value: contrast - rival > 0 and
  contrast + rival > 0 for each (an intersection-union test: the largest p counts). Contradicted if one of these has its
  interval below 0, at 95 % for all of them together.
- exact: equalities of the weights, computed; any deviation contradicts.
- dose-response: the probe's drift falls with α.
- rank, sign: one value per policy, beside the probe of the same policy. The contrast ranks with the share of the first
  mode's push that is not cancelled (the bootstrap interval of Spearman's correlation lies above 0; contradicted if
  below), or has the sign of its drift where that is settled (exact binomial test over at least `FEWEST_SIGNS` policies;
  contradicted if the 95 % interval of the share of equal signs lies below one half).
"""

Contrast = Mapping[str, float]
"""Arm name → coefficient; the contrast of one seed is the sum of coefficient × the metric of the arm's run."""

ALPHA = 0.05
"""Level of every claim; primary claims share it through Holm."""

FEWEST_SIGNS = 6
"""Policies with a settled drift that a claim about its sign needs."""

REWARD_MOVED = 0.02
"""Smallest change of mean reward, early to late, that counts as learning."""


@dataclass(frozen=True)
class Claim:
    """One sentence that runs can support or contradict, with all it takes to judge it.

    `contrast`, `rivals` and `metric` are empty where no runs are needed. `exact` names checks of `weights.EXACT_CHECKS`
    that must hold as well. `primary` claims form the Holm family. `beside` names metrics that are described next to the
    verdict. `margin` is in units of the metric, or a factor > 1 for ratio-equivalent claims.
    """

    id: str
    sentence: str
    source: str
    paper_figure: str
    kind: Kind
    metric: str | None = None
    contrast: Contrast = field(default_factory=dict)
    rivals: tuple[Contrast, ...] = ()
    margin: float | None = None
    exact: tuple[str, ...] = ()
    primary: bool = False
    beside: tuple[str, ...] = ()
    note: str = ""

    @property
    def rank(self) -> str:
        """Whether the claim is primary, exact by computation, or exploratory: tested at its own level alone."""
        return "primary" if self.primary else "exact" if self.kind == "exact" else "exploratory"

    @property
    def needs_probe(self) -> bool:
        """Whether its evidence is a probe of the policies that the runs start from."""
        return self.kind in ("dose-response", "rank", "sign")

    @property
    def source_figure(self) -> str:
        """The source's figure; numbers that stand in a plot only are marked as read off it."""
        in_a_plot = "Fig." in self.source and any(char.isdigit() for char in self.paper_figure)
        return f"{self.paper_figure}, read off the plot (± 5–10 %)" if in_a_plot else self.paper_figure

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose runs the claim needs, in the order in which it names them."""
        names = dict.fromkeys(self.contrast)
        for rival in self.rivals:
            names.update(dict.fromkeys(rival))
        return tuple(names)


GRPO, DR_GRPO, TOKEN_MEAN = "grpo", "dr_grpo", "dapo"
LENGTH_ONLY = "grpo@seq-mean-token-mean/none"
SUM_NORM = "grpo@seq-mean-token-sum-norm"
STD_ONLY = f"{SUM_NORM}/group"
NULL_POLICY = "selfcheck-null"
NULL_ARMS = GRPO_NULL, DR_GRPO_NULL = f"{GRPO}[{NULL_POLICY}]", f"{DR_GRPO}[{NULL_POLICY}]"

_LENGTH_TERM = {GRPO: 0.5, STD_ONLY: -0.5, LENGTH_ONLY: 0.5, DR_GRPO: -0.5}
_STD_TERM = {GRPO: 0.5, STD_ONLY: 0.5, LENGTH_ONLY: -0.5, DR_GRPO: -0.5}

_SURROGATES = {
    "seq-mean-token-mean": ("grpo", "cispo@seq-mean-token-mean/group", "sapo"),
    "token-mean": ("dapo", "cispo", "sapo@token-mean/group"),
}
_AGGREGATION_EFFECT = {
    **dict.fromkeys(_SURROGATES["seq-mean-token-mean"], 1 / 3),
    **dict.fromkeys(_SURROGATES["token-mean"], -1 / 3),
}
_SURROGATE_EFFECTS = tuple(
    {arms[i]: 1.0, arms[j]: -1.0} for arms in _SURROGATES.values() for i, j in ((0, 1), (0, 2), (1, 2))
)

_PAPER = "Dr. GRPO, arXiv 2503.20783"

_ALL = (
    Claim(
        "C1", "GRPO's completions end up longer than Dr. GRPO's.",
        f"{_PAPER}, Fig. 5", "2.06× at iteration 150 (≈ 1090 against ≈ 525 tokens)",
        "greater", "late_length_mean", {GRPO: 1, DR_GRPO: -1}, primary=True, beside=("length_slope_plateau",),
        note="At fixed accuracy the drift of the mean is proportional to 1 - 2 × accuracy, so it can vanish or turn "
        "where most answers are correct.",
    ),
    Claim(
        "C2", "GRPO's incorrect completions end up longer than Dr. GRPO's.",
        f"{_PAPER}, Fig. 5", "2.05× (≈ 1970 against ≈ 960 tokens)",
        "greater", "late_length_incorrect", {GRPO: 1, DR_GRPO: -1}, primary=True,
    ),
    Claim(
        "C3", "Correct completions of the two are about equally long (ratio within 1/1.2 … 1.2).",
        f"{_PAPER}, Fig. 5", "1.03× (≈ 447 against ≈ 432 tokens)",
        "ratio-equivalent", "late_length_correct", {GRPO: 1, DR_GRPO: -1}, margin=1.2,
        note="The paper's theory predicts shorter correct completions under GRPO; its figure does not show them.",
    ),
    Claim(
        "C4", "Dr. GRPO's late reward is not lower than GRPO's by 0.03 or more.",
        f"{_PAPER}, Fig. 5", "training reward .60 (GRPO) against .62-.64",
        "non-inferior", "late_reward", {DR_GRPO: 1, GRPO: -1}, margin=0.03, primary=True,
    ),
    Claim(
        "C5", "Dr. GRPO earns more reward per generated token.",
        f"{_PAPER}, Fig. 1", "about half the tokens at equal reward",
        "greater", "token_efficiency", {DR_GRPO: 1, GRPO: -1}, primary=True,
        beside=("tokens_to_reward", "length_at_reward"),
    ),
    Claim(
        "C6", "The length term, not the std term, drives the length of incorrect completions.",
        f"{_PAPER}, Fig. 8", "the length term has the larger influence on length (no figure given)",
        "dominates", "late_length_incorrect", _LENGTH_TERM, (_STD_TERM,), primary=True,
        note="Main effects of the 2 × 2 design.",
    ),
    Claim(
        "C7", "Token-mean over a large window ends like Dr. GRPO (incorrect length within a factor of 1.5), and with "
        "one row per denominator it is GRPO.",
        "TRL pull request 3138; Dr. GRPO Table 2 marks token-mean as biased", "none",
        "ratio-equivalent", "late_length_incorrect", {TOKEN_MEAN: 1, DR_GRPO: -1}, margin=1.5,
        exact=("token-mean-of-one-row", "micro-token-mean-of-one-row-each"),
    ),
    Claim(
        "C8", "The weight of a token falls as 1/length under seq-mean-token-mean, and does not depend on its row's "
        "length under token-mean and the sum modes.",
        f"{_PAPER}, Eq. 3", "elasticity -1 against 0",
        "exact", exact=("weight-elasticity",),
    ),
    Claim(
        "C9", "On frozen rollouts, the drift of incorrect length falls with α of length-power:α.",
        "lossbench, from the length-bias algebra", "none",
        "dose-response",
    ),
    Claim(
        "C10", "Where completions carry no information on being wrong, GRPO's incorrect length ends within a factor of "
        "1.3 of Dr. GRPO's.",
        "lossbench; explains reproductions that found nothing", "none",
        "ratio-equivalent", "late_length_incorrect", {GRPO_NULL: 1, DR_GRPO_NULL: -1}, margin=1.3,
        note="The null control: an effect here would mean that the others are not due to the length bias. 1.3 is the "
        "smallest of 1.2, 1.25 and 1.3 that 12 policies can show with a power of .8 or more (.9), at the spread of the "
        "log ratio in the pilot (.26).",
    ),
    Claim(
        "C11", "At equal aggregation, clip, cispo and sapo differ in incorrect length by less than seq-mean-token-mean "
        "and token-mean do.",
        "lossbench, from the on-policy identity of the surrogates' gradients", "none",
        "dominates", "late_length_incorrect", _AGGREGATION_EFFECT, _SURROGATE_EFFECTS,
    ),
    Claim(
        "C12", "Over policies, the growth of incorrect length under GRPO beyond Dr. GRPO's rises with 1 - ρ, the share "
        "of its push that the probe finds not cancelled.",
        "lossbench, from the law of push and cancelled share", "none",
        "rank", "late_length_incorrect", {GRPO: 1, DR_GRPO: -1}, primary=True,
        note="Stated after a pilot of twelve policies that share draws, before these runs.",
    ),
    Claim(
        "C13", "Late in training, the odds of stopping after a correct answer over those after an incorrect one are "
        "larger under GRPO than under Dr. GRPO.",
        "lossbench, from the law of push and cancelled share", "none",
        "greater", "late_stop_odds", {GRPO: 1, DR_GRPO: -1},
    ),
    Claim(
        "C13-constant", "Under constant weights the std in the advantage changes them by less than a factor of 1.2.",
        "lossbench, from the law of push and cancelled share", "none",
        "ratio-equivalent", "late_stop_odds", {STD_ONLY: 1, DR_GRPO: -1}, margin=1.2,
    ),
    Claim(
        "C14", "Where the probe of a policy settles the sign of GRPO's drift, incorrect length under GRPO, compared "
        "with Dr. GRPO's, changes to that side.",
        "lossbench, from the law of push and cancelled share", "none",
        "sign", "late_length_incorrect", {GRPO: 1, DR_GRPO: -1},
    ),
    Claim(
        "C15", "Without gradient clipping too, GRPO's incorrect completions end up longer than Dr. GRPO's, whose "
        "gradients are never clipped.",
        "lossbench", "none",
        "greater", "late_length_incorrect", {f"{GRPO}[no-clipping]": 1, DR_GRPO: -1},
    ),
    Claim(
        "C16", "The length-weighted baseline gives constant weights a length bias: incorrect completions end up longer "
        "than Dr. GRPO's.",
        "lossbench; the baseline is OPO's, arXiv 2505.23585", "none",
        "greater", "late_length_incorrect", {f"{SUM_NORM}/length-weighted": 1, DR_GRPO: -1}, primary=True,
        note="To first order as much as prompt-mean weights.",
    ),
    Claim(
        "C16-loo", "Its leave-one-out form does not: incorrect completions within a factor of 1.2 of Dr. GRPO's.",
        "lossbench, from the length-bias algebra", "none",
        "ratio-equivalent", "late_length_incorrect", {f"{SUM_NORM}/length-weighted-loo": 1, DR_GRPO: -1}, margin=1.2,
    ),
    Claim(
        "C18", "Balanced aggregation is not cancelled where completions carry no information on being wrong: from the "
        "null policy, incorrect completions end up shorter than Dr. GRPO's while right answers are the smaller set.",
        "lossbench, from the length-bias algebra", "none",
        "greater", "late_length_incorrect", {DR_GRPO_NULL: 1, f"grpo@balanced/none[{NULL_POLICY}]": -1}, primary=True,
    ),
)  # fmt: skip

CLAIMS: dict[str, Claim] = {claim.id: claim for claim in _ALL}
"""Every claim by id."""

if len(CLAIMS) != len(_ALL):
    raise ValueError("two claims share an id")


_STATED_BEFORE = {
    "C9": "On frozen rollouts, the drift of incorrect length falls with α of length-power:α and is zero at α = 1.",
}
"""The sentence of a claim that was narrowed, as sweeps planned before have it in their fingerprint."""


def select(ids: Iterable[str]) -> list[Claim]:
    """The claims of `ids`, in that order; `UsageError` for an unknown id or one named twice."""
    chosen: dict[str, Claim] = {}
    for name in ids:
        if name not in CLAIMS:
            raise UsageError(unknown("claim", name, CLAIMS))
        if name in chosen:
            raise UsageError(f"claim '{name}' is named twice")
        chosen[name] = CLAIMS[name]
    return list(chosen.values())


def fingerprint(ids: Iterable[str]) -> str:
    """Twelve hex digits over everything that decides the claims `ids`, to be kept with the sweep's plan."""
    return _digest(select(ids))


def _digest(claims: Iterable[Claim]) -> str:
    text = json.dumps([asdict(claim) for claim in claims], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stated(spec: Mapping[str, Any]) -> tuple[list[Claim], str]:
    """The claims that a sweep's plan states (`spec` is its sweep.json), and a note on when they were stated.

    The note is empty where they stand as they were stated before the runs, or in a narrower form, which then names the
    wider one. Raises `UsageError` for an unknown claim.
    """
    claims = select(spec.get("claims") or [])
    if not claims:
        return [], "no claims were stated before the runs"
    recorded = spec.get("claims_fingerprint")
    if spec.get("claims_changed"):
        return claims, "the list of claims was changed after the sweep was planned"
    if recorded is None or recorded == _digest(claims):
        return claims, ""
    before = [replace(claim, sentence=_STATED_BEFORE.get(claim.id, claim.sentence)) for claim in claims]
    if recorded == _digest(before):
        notes = {claim.id: f"Narrowed after the runs; stated was: {claim.sentence}" for claim in before}
        return [replace(c, note=notes[c.id]) if c.id in _STATED_BEFORE else c for c in claims], ""
    return claims, "the wording, metric, arms or margin of a claim was changed after the sweep was planned"
