"""Pictures of a sweep: how each figure follows from the data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lossbench.metrics.curves import Axis, Curve, LengthCounts, length_distributions
from lossbench.metrics.length import METRICS
from lossbench.metrics.weights import elasticity, weight_curve
from lossbench.report.data import Arm, ReportData
from lossbench.report.finding import difference_text, find, told
from lossbench.report.panels import MOST_PANELS, Line, Panel, Picture, alike, row_lines
from lossbench.report.style import family
from lossbench.stats import Interval

KINDS = {"incorrect": "-", "correct": "--"}
"""Line style of each kind of completion."""

_STYLES = "Solid: incorrect completions; dashed: correct ones."
_LABELS = {
    "reward": "mean reward", "length_mean": "mean length (tokens)", "length_incorrect": "incorrect length (tokens)",
    "truncated_frac": "completions cut at the cap", "zero_std_frac": "groups without spread in reward",
    "entropy": "entropy (nats per token)", "grad_norm": "gradient norm before clipping",
    "step": "optimizer step", "tokens": "tokens generated",
}  # fmt: skip
_FOREST = ("late_length_incorrect", "late_length_correct", "late_length_mean", "late_reward", "token_efficiency",
           "late_truncated_frac")  # fmt: skip
_FEWEST_FOR_BAND = 3
_WEIGHT_ROWS = 60
_FARTHEST_CAP = 2.5
"""A cap further above the lines than this factor is named, not drawn: it would flatten them."""


def _line(
    data: ReportData, arm: Arm, quantity: str, axis: Axis = "step", runs: bool = False, **look: Any
) -> Line | None:
    """The arm's mean along training; with `runs` its band and single runs too. None without a value."""
    curve = data.curve(arm.name, quantity, axis)
    if not np.isfinite(curve.mean).any():
        return None
    mean, low, high = _shared(curve)
    line = Line(curve.x, mean, arm.color, arm=arm.index, **look)
    if runs and len(curve.lines) > 1:
        line = replace(line, runs=tuple(np.column_stack((curve.x, run.y)) for run in curve.lines))
    # The interval of two runs is so wide that it would hide them.
    return replace(line, low=low, high=high) if runs and curve.n.max() >= _FEWEST_FOR_BAND else line


def _shared(curve: Curve) -> list[np.ndarray]:
    """Mean and band as far as all runs go: past the end of the first the mean would be that of other runs."""
    shared = np.arange(len(curve.x)) <= np.flatnonzero(curve.n == curve.n.max())[-1]
    return [np.where(shared, y, np.nan) for y in (curve.mean, curve.low, curve.high)]


def _lengths(data: ReportData, arm: Arm, runs: bool = False) -> list[Line]:
    """The arm's lengths by kind, or where no kinds are known, its mean length; named by mode and kind."""
    found = [_line(data, arm, f"length_{kind}", runs=runs, name=f"{arm.name} {kind}", dash=dash)
             for kind, dash in KINDS.items()]  # fmt: skip
    known = [line for line in found if line]
    return known or [line for line in [_line(data, arm, "length_mean", runs=runs, name=arm.name)] if line]


def leading(data: ReportData) -> list[Arm]:
    """The two arms that the headline compares, or the only one."""
    found = find(data)
    return [data.arm(name) for name in (found.arm, found.reference) if name] or [data.arms[0]]


def lengths(data: ReportData) -> Picture | None:
    """Lengths of incorrect and correct completions of the two modes of the headline, with the cap."""
    arms = leading(data)
    lines = [replace(line, label=line.name) for arm in arms for line in _lengths(data, arm, runs=True)]
    if not lines:
        return None
    cap, top = data.recipe.get("max_completion_length"), max(float(np.nanmax(line.y)) for line in lines)
    levels = [(float(cap), f"cap {cap:,}")] if cap else []
    far = [name for level, name in levels if level > _FARTHEST_CAP * top]
    note = _STYLES + (f" The {far[0]} lies above." if far else "")
    panel = Panel(tuple(lines), "", _LABELS["step"], "mean length (tokens)", levels=tuple(levels if not far else ()))
    texts = [find(data).sentence.rstrip(".")]
    if len(arms) > 1:
        names = ("late_length_incorrect", "late_length_correct")
        texts = [text for name in names if (text := difference_text(data, arms[0].name, arms[1].name, name))] or texts
    return Picture("; ".join(texts), alike([panel], from_zero=True), 1, 9.0, 3.6, note)


def stopping(data: ReportData) -> Picture | None:
    """Stopping hazard of the headline's modes on a log axis, and below it the push of each mode's weights on it."""
    arms = leading(data)

    def panel(name: str, **look: Any) -> Panel:
        found = [_line(data, arm, f"{name}_{kind}", label=f"{arm.name} {kind}", dash=dash)
                 for arm in arms for kind, dash in KINDS.items()]  # fmt: skip
        return Panel(tuple(line for line in found if line), x_label=_LABELS["step"], **look)

    hazard = panel("hazard", title="Chance that a completion ends at a free token", y_label="per token", y_log=True)
    push = panel("added", title="Push of the mode's weights on stopping", y_label="← longer | shorter →",
                 levels=((0.0, ""),))  # fmt: skip
    panels = tuple(panel for panel in (hazard, push) if panel.lines)
    pushed = [(arm, data.values(arm.name, "late_added_incorrect")) for arm in arms]
    words = ", ".join(f"{arm.name} {values.mean():+.2f}".replace("-", "−") for arm, values in pushed if values.size)
    title = f"Push on incorrect completions late in training, below 0 longer: {words}" if words else "When they stop"
    return Picture(title, panels, 1, 9.0, 2.2, _STYLES) if panels else None


def forest(data: ReportData) -> Picture | None:
    """Paired differences to the reference, a row an arm, a panel a metric; every pair is drawn."""
    metrics = [metric for metric in _FOREST if data.has(metric)]
    if not data.compared or not metrics:
        return None
    names = tuple(f"{arm.name}\n− {reference}" for arm, reference in data.compared)
    margin = next((v.claim.margin for v in data.verdicts if v.claim.metric == "late_reward"), None)
    panels = []
    for metric in metrics:
        spec, lines = METRICS[metric], []
        scale, unit = (100, "percentage points") if spec.unit == "share" else (1, spec.unit)
        for place, (arm, reference) in enumerate(data.compared):
            result = data.pair(arm.name, reference, metric)
            if result.n:
                bar = Interval(scale * result.difference, scale * result.ci_low, scale * result.ci_high)
                lines += row_lines(place, bar, scale * np.array(result.differences), arm.color, arm.index)
        ends = "shorter ← → longer" if spec.unit == "tokens" else "lower ← → higher"
        bounds = (0.0, -margin) if metric == "late_reward" and margin else (0.0,)
        panels.append(Panel(_within_reach(lines), spec.label, f"{ends} ({unit})", uprights=bounds, rows=names))
    results = [data.pair(arm.name, reference, metrics[0]) for arm, reference in data.compared]
    down, up = (sum(told(result) and sign * result.difference > 0 for result in results) for sign in (-1, 1))
    words = ("shorter", "longer") if METRICS[metrics[0]].unit == "tokens" else ("lower", "higher")
    title = (
        f"{METRICS[metrics[0]].label.capitalize()} vs the reference: {down} {words[0]}, {up} {words[1]}, "
        f"{len(results) - down - up} can't tell"
    )
    return Picture(title, tuple(panels), min(3, len(panels)), 10.6, 0.3 + 0.38 * len(names))


def _within_reach(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines with bars cut where an interval of two seeds would squash the rest."""
    points = np.concatenate([np.zeros(1), *(line.x for line in lines if not line.width)])
    reach = float(np.ptp(points)) or 1.0
    low, high = points.min() - 1.5 * reach, points.max() + 1.5 * reach
    return tuple(replace(line, x=np.clip(line.x, low, high)) if line.width else line for line in lines)


def _groups(arms: Sequence[Arm]) -> dict[str, list[tuple[Arm, str]]]:
    """Arms by panel with a label each: the finest parting by condition, loss type and aggregation that fits."""
    for level in (3, 2, 1, 0):
        found: dict[str, list[tuple[Arm, str]]] = {}
        for arm in arms:
            parts = [arm.loss_type or arm.mode, arm.agg_mode or ""][: max(level - 1, 0)]
            title = "@".join(part for part in parts if part) + (f" [{arm.condition}]" if arm.condition else "")
            label = arm.mode if "@" not in arm.mode else "/".join(
                [part for part in (arm.mode.partition("@")[2].rpartition("/")[0] * (level == 2),) if part]
                + [f"/{arm.mode.rpartition('/')[2]}" if level > 2 else arm.mode.rpartition("/")[2]]
            )  # fmt: skip
            group = found.setdefault(title if level else "", [])
            group.append((arm, label if level > 1 else arm.mode if level else arm.name))
        if len(found) <= MOST_PANELS:
            return {group[0][0].name if len(group) == 1 else title: group for title, group in found.items()}
    return {}


def length_by_correctness(data: ReportData) -> Picture | None:
    """Lengths of every mode, a panel per condition, loss type and aggregation."""
    panels = []
    for title, group in _groups(data.arms).items():
        lines = []
        for arm, label in group:
            first, *others = _lengths(data, arm, runs=len(group) == 1) or [None]
            lines += [replace(first, label=label if len(group) > 1 else ""), *others] if first else []
        if lines:
            panels.append(Panel(tuple(lines), title, _LABELS["step"], "mean length (tokens)"))
    if len(data.arms) <= 2 or not panels:  # the figure under the headline has it all
        return None
    title = _by_family(data) or "Length of incorrect and correct completions of each mode"
    return Picture(title, alike(panels, from_zero=True), 3, 10.6, 1.9, _STYLES)


def _by_family(data: ReportData) -> str:
    """Late incorrect lengths by family of weights, on the baseline's policy, in a sentence."""
    policy, ends = data.arm(data.baseline).policy, {}
    for arm in data.arms:
        values = data.values(arm.name, "late_length_incorrect")
        if arm.policy == policy and values.size:
            ends.setdefault(family(arm.agg_mode), []).append(float(values.mean()))
    if not {"warm", "cool"} <= set(ends):
        return ""
    warm, cool = (
        " to ".join(dict.fromkeys(f"{end:.3g}" for end in (min(ends[kin]), max(ends[kin])))) for kin in ("warm", "cool")
    )
    return f"Incorrect completions end at {warm} tokens where weights fall with length, at {cool} where they do not"


def reward_length(data: ReportData) -> Picture | None:
    """Reward and length of every mode by step and by tokens generated."""
    shown: tuple[tuple[str, Axis], ...] = (
        ("reward", "step"), ("reward", "tokens"), ("length_mean", "step"), ("length_incorrect", "tokens"),
    )  # fmt: skip
    panels = [panel for name, axis in shown if (panel := _all_modes(data, name, axis)).lines]
    means = {arm.name: float(v.mean()) for arm in data.arms if (v := data.values(arm.name, "late_reward")).size}
    ends = [f"{means[name]:.3f} ({name})" for name in sorted(means, key=lambda name: means[name])]
    title = f"Late reward is between {ends[0]} and {ends[-1]}" if len(ends) > 1 else "Reward and length in training"
    return Picture(title, tuple(panels), 2, 10.6, 2.4) if panels else None


def _all_modes(data: ReportData, name: str, axis: Axis = "step", **look: Any) -> Panel:
    lines = [_line(data, arm, name, axis, label=arm.name, dash=":" if arm.condition else "-") for arm in data.arms]
    return Panel(tuple(line for line in lines if line), "", _LABELS[axis], _LABELS[name], **look)


def guards(data: ReportData) -> Picture | None:
    """Truncation and the other quantities that tell whether lengths mean anything."""
    clip = data.recipe.get("max_grad_norm")
    looks = {
        "truncated_frac": {"percent": True}, "zero_std_frac": {"percent": True}, "entropy": {},
        "grad_norm": {"y_log": True, "levels": ((float(clip), f"clipped at {clip:g}"),) if clip else ()},
    }  # fmt: skip
    panels = [panel for name, look in looks.items() if (panel := _all_modes(data, name, **look)).lines]
    cut = {arm.name: float(v.mean()) for arm in data.arms if (v := data.values(arm.name, "late_truncated_frac")).size}
    most = max(cut, key=lambda name: cut[name]) if cut else ""
    title = f"At most {100 * cut[most]:.1f} % of late completions are cut at the cap ({most})" if cut else "Guards"
    return Picture(title, tuple(panels), 2, 10.6, 2.2) if panels else None


def length_distribution(data: ReportData) -> Picture | None:
    """Share of completions that are at least so long, early and late, of each mode."""
    counts = {(item.arm, item.late, item.correct): item for item in length_distributions(data.summary)}
    panels = []
    for arm in data.arms[:MOST_PANELS]:
        lines = [
            _survival(counts[arm.name, late, correct], arm, dash, late)
            for late in (True, False) for correct, dash in ((False, "-"), (True, "--"))
        ]  # fmt: skip
        if known := tuple(line for line in lines if line.x.size > 1):
            panels.append(Panel(known, arm.name, "length (tokens)", "share at least so long", percent=True))
    note = f"{_STYLES} Thin grey: the first fifth of the run."
    title = "Lengths late in training, and early"
    return Picture(title, alike(panels, from_zero=True), 3, 10.6, 1.9, note) if panels else None


def _survival(counts: LengthCounts, arm: Arm, dash: str, late: bool) -> Line:
    at_least = np.cumsum(counts.rows[::-1])[::-1] / max(counts.rows.sum(), 1)
    x, y = np.append(0, counts.length_tokens), np.append(1, at_least)
    label = ("correct" if counts.correct else "incorrect") if late else ""
    look = (arm.color, label, dash, 1.9) if late else ("none", label, dash, 0.9)
    return Line(x, y, *look, arm=arm.index)


def weights(data: ReportData) -> Picture | None:
    """The weight of one token against the length of its completion, exactly, from each arm's aggregation."""
    horizon = horizon_of(data)
    lengths = np.unique(np.geomspace(1, max(horizon, 2), _WEIGHT_ROWS).round().astype(int))
    same: dict[tuple[float, ...], list[Arm]] = {}
    for arm in data.arms:
        values = _relative_weights(arm, lengths, horizon)
        if values is not None:
            same.setdefault(tuple(np.round(values, 9)), []).append(arm)
    if not same:
        return None
    lines, falling = [], []
    for values, arms in same.items():
        slope = elasticity(lengths, np.array(values))
        names = list(dict.fromkeys(arm.mode for arm in arms))
        falling += names if slope < -0.01 else []
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        label = f"{names[0]}{more}, slope {slope:+.2g}".replace("+0", "0").replace("-", "−")
        lines.append(Line(lengths.astype(float), np.array(values), arms[0].color, label, arm=arms[0].index))
    panel = Panel(tuple(lines), "", "length of the completion (tokens)", "weight of a token (1 = the mean)", True, True)
    title = f"A token's weight falls with its completion's length under {', '.join(falling) or 'no mode'}"
    return Picture(title, (panel,), 1, 9.0, 2.9)


def _relative_weights(arm: Arm, lengths: np.ndarray, horizon: float) -> np.ndarray | None:
    """Aggregation of the arm; None if lossbench does not know it: logs of other trainers may name any."""
    try:
        return weight_curve(arm.agg_mode or "", [int(length) for length in lengths], horizon).relative
    except ValueError:
        return None


def horizon_of(data: ReportData) -> float:
    """The constant H of the sum-norm modes, or else the longest completion, in tokens."""
    stated = data.recipe.get("loss_scale_factor") or data.recipe.get("max_completion_length")
    longest = [run.lengths["length_tokens"].max(initial=0.0) for run in data.summary.by_run.values()]
    return float(stated or max(longest, default=0.0)) or 128.0
