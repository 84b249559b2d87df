"""Response of wrong answers: a mode's drift in two parts, the share of its push that is cancelled, response curves.

The projections of completions on the direction in which wrong answers grow rise with their lengths, among wrong and
among right answers alike. So weights that fall with length push the wrong answers longer (D_w), and, rewarding the
right ones, shorter (D_r): exactly the two halves of the drift. The cancelled share is -D_r / D_w.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from lossbench.loss.modes import Mode
from lossbench.probe.drift import Drift, DriftTable, known
from lossbench.probe.forecast import pairs_needed
from lossbench.probe.projections import Projections
from lossbench.stats import Interval, t_interval

_BINS = 8
_CANCELLED = "cancelled"
_SMALL = 0.15
"""An interval within this share of the largest drift from 0 is no change; one around a cancelled share of 1, all."""


@dataclass(frozen=True)
class Parts:
    """The drift of incorrect length that a mode's weights add, from wrong and from right completions, with intervals.

    `cancelled` is -D_r / D_w, with its Fieller interval over pairs: None where D_w may be 0, so that any share fits.
    `pairs_needed`: pairs that would settle the sign of the drift, None where it is settled or 0 by construction.
    """

    mode: str
    metric: str
    from_wrong: float | None = None
    from_wrong_low: float | None = None
    from_wrong_high: float | None = None
    from_right: float | None = None
    from_right_low: float | None = None
    from_right_high: float | None = None
    cancelled: float | None = None
    cancelled_low: float | None = None
    cancelled_high: float | None = None
    pairs_needed: int | None = None


@dataclass(frozen=True)
class CurvePoint:
    """Mean projection on the direction of incorrect length of the completions in one bin of lengths (tokens)."""

    metric: str
    branch: str
    length_low: int
    length_high: int
    length_mean: float
    completions: int
    projection: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Slopes:
    """Slopes of projection against length (per token) about each branch's mean, lengths weighted by 1/L, so that they
    reproduce each branch's drift under 1/L weights; `rho` = right / wrong with its Fieller interval over pairs;
    `cosine` of the directions of incorrect and correct length, with a jackknife interval."""

    metric: str
    wrong: float | None
    right: float | None
    rho: float | None
    rho_low: float | None
    rho_high: float | None
    cosine: float | None
    cosine_low: float | None
    cosine_high: float | None


def fieller(top_P: np.ndarray, bottom_P: np.ndarray, confidence: float = 0.95) -> Interval:
    """mean(top) / mean(bottom) with Fieller's interval over pairs; NaN bounds where the bottom's mean may be 0."""
    n = len(top_P)
    if n < 2 or not bottom_P.any():
        return Interval(np.nan, np.nan, np.nan, confidence)
    a, b = float(top_P.mean()), float(bottom_P.mean())
    (s_aa, s_ab), (_, s_bb) = np.cov(top_P, bottom_P) / n * scipy_stats.t.ppf((1 + confidence) / 2, n - 1) ** 2
    lead, half, last = b * b - s_bb, a * b - s_ab, a * a - s_aa
    if lead <= 0:
        return Interval(a / b, np.nan, np.nan, confidence)
    root = max(half * half - lead * last, 0.0) ** 0.5
    return Interval(a / b, (half - root) / lead, (half + root) / lead, confidence)


def drift_parts(table: DriftTable, mode: Mode, metric: str) -> Parts:
    """The two parts of a mode's drift of incorrect length at equal mean weight, and the share that is cancelled."""
    found = table.per_pair(mode, "incorrect", metric, "row-weight")
    if found.is_baseline or len(found.values_P) < 2:
        return Parts(mode.name, metric)
    wrong, right = (t_interval(part_P) for part_P in found.branches_2P)
    share = fieller(-found.branches_2P[1], found.branches_2P[0])
    settled = t_interval(found.values_P).outside(0.0, 0.0)
    return Parts(
        mode.name, metric, wrong.estimate, wrong.low, wrong.high, right.estimate, right.low, right.high,
        known(share.estimate), known(share.low), known(share.high),
        None if settled else pairs_needed(found.values_P),
    )  # fmt: skip


@dataclass(frozen=True)
class _Branch:
    """The completions of one branch that have a projection: arrays (n,), with the place of each one's pair."""

    lengths_n: np.ndarray
    along_n: np.ndarray
    pair_n: np.ndarray
    pairs: int

    def influence(self, terms_n: np.ndarray, total: float) -> np.ndarray:
        """Each pair's share of a sum that is 0 in all, over `total`, times the number of pairs: (P,)."""
        return self.pairs * np.bincount(self.pair_n, terms_n, self.pairs) / total

    def slope(self) -> np.ndarray:
        """The slope weighted by 1/L, as values per pair (P,) whose mean it is; NaN without lengths that differ."""
        if not len(self.lengths_n) or np.ptp(self.lengths_n) == 0:
            return np.full(self.pairs, np.nan)
        inverse_n = 1 / self.lengths_n
        centred_n = inverse_n - inverse_n.mean()
        spread = float(centred_n @ self.lengths_n)
        slope = float(centred_n @ self.along_n) / spread
        start = float(inverse_n @ (self.along_n - slope * self.lengths_n) / inverse_n.sum())
        return slope + self.influence(centred_n * (self.along_n - start - slope * self.lengths_n), spread)

    def bins(self) -> Iterator[tuple[np.ndarray, Interval]]:
        """Members of each bin of lengths, of about equal size, and their mean projection."""
        edges = np.unique(np.quantile(self.lengths_n, np.linspace(0, 1, _BINS + 1)[1:-1]))
        for number in range(len(edges) + 1):
            inside_n = np.searchsorted(edges, self.lengths_n) == number
            if inside_n.any():
                mean = float(self.along_n[inside_n].mean())
                terms_n = np.where(inside_n, self.along_n - mean, 0.0)
                yield inside_n, t_interval(mean + self.influence(terms_n, float(inside_n.sum())))


def _branches(probe: Projections, metric: str) -> dict[str, _Branch]:
    key = metric, "incorrect"
    told = [[w for w in windows if key in probe.windows[w].projections] for windows in probe.windows_of_pair()]
    pairs = [windows for windows in told if windows]
    found = {}
    for name in ("wrong", "right"):
        parts = []
        for place, window in ((p, probe.windows[w]) for p, windows in enumerate(pairs) for w in windows):
            inside_N = (window.correct_N == (name == "right")) & (window.lengths_N > 0)
            parts.append((window.lengths_N[inside_N].astype(float), window.projections[key][inside_N],
                          np.full(int(inside_N.sum()), place)))  # fmt: skip
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0)] * 3
        found[name] = _Branch(columns[0], columns[1], columns[2].astype(int), len(pairs))
    return found


def response_curves(probe: Projections, metric: str) -> list[CurvePoint]:
    """Mean projection by length, of wrong and of right completions."""
    return [
        CurvePoint(
            metric, name, int(lengths_n.min()), int(lengths_n.max()), float(lengths_n.mean()), len(lengths_n),
            mean.estimate, known(mean.low), known(mean.high),
        )
        for name, branch in _branches(probe, metric).items() if len(branch.lengths_n)
        for inside_n, mean in branch.bins()
        for lengths_n in (branch.lengths_n[inside_n],)
    ]  # fmt: skip


def slopes(probe: Projections, metric: str) -> Slopes:
    """Slopes of both branches, their ratio, and the cosine of the directions of incorrect and correct length."""
    wrong_P, right_P = (branch.slope() for branch in _branches(probe, metric).values())
    usable = len(wrong_P) > 1 and not np.isnan(wrong_P).any() and not np.isnan(right_P).any()
    rho = fieller(right_P, wrong_P) if usable else Interval(np.nan, np.nan, np.nan)
    cosine = _cosine(probe, metric)
    return Slopes(
        metric, *(known(float(v.mean())) if len(v) else None for v in (wrong_P, right_P)),
        *(known(x) for found in (rho, cosine) for x in (found.estimate, found.low, found.high)),
    )  # fmt: skip


def _cosine(probe: Projections, metric: str) -> Interval:
    """<h_w, h_r> / (|h_w| |h_r|): each product is one batch's direction along the other's, so without bias."""
    rows = []
    for windows in probe.windows_of_pair():
        products = [_products(probe, w, metric) for w in windows]
        told = [row for row in products if row is not None]
        if told:
            rows.append(np.mean(told, 0))
    sums_3 = np.sum(rows, 0) if rows else np.zeros(3)
    count = len(rows)
    if count < 3 or not (sums_3[1] > 0 and sums_3[2] > 0):
        return Interval(np.nan, np.nan, np.nan)

    def cosine(ww: np.ndarray) -> float:
        return float(ww[0] / np.sqrt(ww[1] * ww[2])) if ww[1] * ww[2] > 0 else np.nan

    whole, without_P = cosine(sums_3), np.array([cosine(sums_3 - row) for row in rows])
    spread = t_interval(count * whole - (count - 1) * without_P)
    half = (spread.high - spread.low) / 2
    return Interval(whole, whole - half, whole + half)


def _products(probe: Projections, number: int, metric: str) -> tuple[float, float, float] | None:
    """(<h_w, h_r>, <h_w, h_w>, <h_r, h_r>) of one batch's directions with the other's; None where one is missing."""
    window = probe.windows[number]
    along = [window.projections.get((metric, name)) for name in ("incorrect", "correct")]
    inside = [~window.correct_N, window.correct_N]
    if any(a is None for a in along) or any(i.sum() < 2 for i in inside):
        return None
    length_N = window.lengths_N.astype(float)
    own = [np.where(i, length_N - length_N[i].mean(), 0.0) / (i.sum() - 1) for i in inside]
    (ww, wr), (rw, rr) = ([float(c @ a) for a in along if a is not None] for c in own)
    return (wr + rw) / 2, ww, rr


def sentence(drifts: Sequence[Drift], parts: Sequence[Parts]) -> str:
    """Effect of the modes on wrong answers in one sentence: drifts at equal mean weight, first metric."""
    of = {(row.mode, row.metric): row for row in parts}
    rows = [row for row in drifts if (row.direction, row.match) == ("incorrect", "row-weight")]
    rows = [row for row in rows if row.metric == rows[0].metric]
    largest = max((abs(row.drift or 0.0) for row in rows), default=0.0)
    told: dict[str, list[str]] = {}
    verbs = {"longer": "get longer", "shorter": "get shorter", _CANCELLED: "stay as they are"}
    before = ""
    for row in rows:
        part = of[row.mode, row.metric]
        way, note = _way(row, part, largest), None
        if way in verbs:
            words = _share(part)
            shared = words[: words.find("ρ")]
            note, before = words.removeprefix(before) if shared == before else words, shared
        elif way == "undecided" and part.pairs_needed:
            note = f"about {part.pairs_needed} pairs would settle it"
        elif way == "cannot be probed":
            note = row.note
        told.setdefault(way, []).append(f"{row.mode} ({note})" if note else row.mode)
    moved = [f"under {', '.join(told[way])} wrong answers would {verb}" for way, verb in verbs.items() if way in told]
    rest = [f"{', '.join(modes)}: {way}" for way, modes in told.items() if way not in verbs]
    text = "; ".join([*moved, *rest])
    return f"{text[:1].upper() if moved else text[:1]}{text[1:]}." if text else ""


def _way(row: Drift, part: Parts, largest: float) -> str:
    """Direction in which a mode moves wrong answers, as far as its intervals tell."""
    if row.drift is None or (row.drift == 0 and "by construction" not in row.note):
        return "cannot be probed"
    if row.drift == 0:
        return "no change"
    if row.low is None or row.high is None:
        return "undecided"
    if max(abs(row.low), abs(row.high)) <= _SMALL * largest:
        return "no change"
    if not row.low <= 0 <= row.high:
        return "longer" if row.drift > 0 else "shorter"
    low, high = part.cancelled_low, part.cancelled_high
    whole = low is not None and high is not None and low >= 1 - _SMALL and high <= 1 + _SMALL
    return _CANCELLED if whole else "undecided"


def _share(part: Parts) -> str:
    if part.cancelled is None or part.cancelled_low is None or part.cancelled_high is None:
        return ""
    words = ((0.1, "next to nothing"), (0.29, "a quarter"), (0.42, "a third"), (0.58, "half"), (0.71, "two thirds"),
             (0.85, "three quarters"), (1.15, "all"))  # fmt: skip
    word = next((word for limit, word in words if part.cancelled <= limit), "more than all")
    interval = f"[{part.cancelled_low:.2f}, {part.cancelled_high:.2f}]"
    return f"{word} of the push is cancelled, ρ = {part.cancelled:.2f} {interval}"
