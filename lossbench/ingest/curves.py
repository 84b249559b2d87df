"""Step metrics of a log under the schema's names: which column is which, rows of one step made one, shares checked."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from lossbench.errors import UsageError, one_line
from lossbench.ingest.base import STEP_FIELDS, IngestedRun, Request
from lossbench.ingest.fields import number, whole

METRICS: dict[str, tuple[str, ...]] = {
    "reward_mean": (
        "reward", "critic_rewards_mean", "critic_score_mean", "mean_reward", "avg_reward", "rewards_mean", "raw_reward",
        "env_all_reward_total", "Reward",
    ),
    "length_mean": (
        "completions_mean_length", "completion_length", "response_length_mean", "response_length", "response_len_mean",
        "response_len", "mean_length", "completion_len_mean", "completion_len", "avg_gen_tokens", "len_mean",
        "mean_completion_length", "mean_response_length", "avg_length", "length",
    ),
    "length_terminated": ("completions_mean_terminated_length",),
    "truncated_frac": (
        "completions_clipped_ratio", "response_length_clip_ratio", "truncated_ratio", "truncation_rate",
    ),
    "zero_std_frac": ("frac_reward_zero_std",),
    "loss": ("actor_pg_loss", "pg_loss", "Training_Loss"),
    "grad_norm": ("actor_grad_norm",),
    "entropy": ("entropy_mean", "actor_entropy", "actor_entropy_loss"),
    "clip_frac": ("clip_ratio_region_mean", "cispo_clip_ratio", "clip_ratio", "actor_pg_clipfrac"),
    "kl": ("actor_kl_loss",),
    "lr": ("learning_rate", "actor_lr"),
    "wall_s": ("step_time", "timing_s_step"),
}  # fmt: skip
"""Columns of `steps` -> `plain` names of TRL (0.14 to 1.16), ms-swift (3, 4), verl, slime and people's own loops."""

_SHARES = ("truncated_frac", "zero_std_frac", "clip_frac")
_COUNTS = ("generation", "tokens")  # whole numbers in the schema
_ROW_COUNTS = ("rows", "count", "n", "n_rows", "num_rows", "num_samples", "batch_size", "n_samples")
_OF_ANY_TRAINING = {"step", "loss", "lr", "grad_norm", "entropy", "wall_s", "tokens"}
_ALIKE = {"reward_mean": re.compile(r"reward|score", re.I), "length_mean": re.compile(r"len|tokens?(?![a-z])", re.I)}


@cache
def plain(name: str) -> str:
    """A column's name without its section and separators.

    >>> plain("train/completions / mean_length"), plain("rollout/response_len/mean")
    ('completions_mean_length', 'response_len_mean')
    """
    return re.sub(r"[\s./-]+", "_", re.sub(r"^(train|rollout)[/_]", "", name.strip()))


def metric_columns(header: Collection[str], request: Request, place: str, strict: bool = False) -> dict[str, list[str]]:
    """Columns of `steps` -> columns of the log, best first: the mapped one, else those of a usual name.

    `strict`: raises UsageError where a mapped column is missing.
    """
    columns: dict[str, list[str]] = {}
    for ours in (field for field in STEP_FIELDS if field != "step"):
        usual = [name for key in (ours, *METRICS.get(ours, ())) for name in header if plain(name) == key]
        # A column of completions' lengths need not be a metric: the trainer's own mean is.
        asked = "length" if ours == "length_mean" and ours not in request.columns else ours
        found = usual if asked not in request.columns or asked == "length" else []
        if asked in request.columns and (strict or request.columns[asked] in header):
            found = [*request.every_column(asked, (), header, place), *found]
        if found:
            columns[ours] = found
    return columns


def add_logs(
    run: IngestedRun, rows: Sequence[tuple[int, Mapping[str, Any]]], request: Request, mean: bool = False
) -> None:
    """Add rows of metrics, as pairs of step and row, to a run's logs. Raises UsageError on a share outside 0 to 1.

    Of several rows with one step the last counts; with `mean`, their mean, weighted by a column of row counts.
    """
    header = dict.fromkeys(key for _, row in rows for key in row)
    columns = metric_columns(header, request, str(run.source))
    counts = next((name for name in header if mean and plain(name) in _ROW_COUNTS), None)
    run.seen.update(header)
    found: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for step, row in rows:
        for ours, names in columns.items():
            typed = whole if ours in _COUNTS else number
            name = next((name for name in names if typed(row.get(name)) is not None), None)
            if name is None or (value := typed(row[name])) is None:
                continue
            if ours in _SHARES and not -1e-6 <= value <= 1 + 1e-6:
                raise UsageError(
                    f"'{run.source}': {name} is {value:g} at step {step}, which is no share: --map {ours}=COLUMN names "
                    "another column"
                )
            run.read[ours] = name
            cells = found.setdefault(step, {}).setdefault(ours, [])
            if not mean:
                cells.clear()
            cells.append((value, (number(row.get(counts)) or 1.0) if counts else 1.0))
    if any(len(cells) > 1 for metrics in found.values() for cells in metrics.values()):
        run.notes.append("several rows have one step: their mean" + (f", weighted by {counts}" if counts else ""))
    run.logs += [_log(step, metrics) for step, metrics in sorted(found.items())]


def _log(step: int, metrics: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """A row of `steps`. Lengths of terminated completions go where none terminated: TRL and ms-swift write 0 there."""
    row: dict[str, Any] = {"step": step}
    for ours, cells in metrics.items():
        value = cells[0][0] if len(cells) == 1 else sum(v * w for v, w in cells) / sum(w for _, w in cells)
        row[ours] = whole(value) if ours in _COUNTS else value
    if row.get("truncated_frac") == 1.0 or row.get("length_terminated") == 0.0:
        row.pop("length_terminated", None)
    return row


def refuse_other_training(run: IngestedRun) -> None:
    """Raise UsageError where a run's log has metrics of any training only, none of rewards, lengths or groups."""
    known = {name for row in run.logs for name in row}
    if known and known <= _OF_ANY_TRAINING:
        has = one_line(", ".join(run.seen), 300)
        raise UsageError(
            f"'{run.source}': run '{run.name}' has no reward and no completion length: is this a GRPO run? It has {has}"
            " (--map reward_mean=COLUMN, --map length_mean=COLUMN)"
        )


def look_alikes(read: Mapping[str, str], unused: Iterable[str]) -> list[str]:
    """`--map` options that may be meant, where a run has no reward or no length."""
    has = {"reward_mean": {"reward", "reward_mean"}, "length_mean": {"length", "length_mean", "completion"}}
    return [
        f"--map {ours}={name}"
        for ours, alike in _ALIKE.items()
        if not has[ours] & read.keys()
        for name in unused
        if alike.search(name)
    ]
