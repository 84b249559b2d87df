"""Warnings to the reader of a sweep: a closed catalogue, each entry with its remedy.

Every check is a pure function of the runs' metrics, the planned runs and the recipe; `find_notices` runs them all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from pydantic import ValidationError

from lossbench.claims.registry import ALPHA, REWARD_MOVED
from lossbench.errors import UsageError
from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.modes import DR_GRPO, Mode, is_half_dr_grpo
from lossbench.loss.surrogates import SURROGATES
from lossbench.metrics.compare import arm_values, arms_of, pair_key, pair_label
from lossbench.metrics.length import Summary, records
from lossbench.registry import Registry
from lossbench.stats import seeds_needed
from lossbench.store.read import RUN_FILE, read_json
from lossbench.sweep.duplicates import equal_modes
from lossbench.sweep.recipe import Recipe
from lossbench.tasks.judging import UNJUDGED

if TYPE_CHECKING:
    from lossbench.store.read import Sweep

Level = Literal["error", "warning", "note"]

TRUNCATION_LIMIT = 0.10
"""Share of completions cut at the cap above which lengths say more about the cap than about the mode."""

DEAD_GROUP_LIMIT = 0.80
"""Share of groups without spread in reward above which hardly any group teaches."""

CAP_TO_MEAN = 4.0
"""Smallest cap, in multiples of the early mean length, at which the length bias can show almost in full."""

ONLY_CHARACTERS = "lengths are known in characters, not in tokens: none is shown, and no claim about length is judged"
"""What is said of logs that were ingested without a tokenizer."""

FAMILY = 5
"""Primary claims that usually share the level through Holm."""


@dataclass(frozen=True)
class Notice:
    """One warning about one sweep: what is the case, and what to do."""

    code: str
    level: Level
    message: str
    remedy: str


@dataclass(frozen=True)
class Evidence:
    """Input of the checks; `versions` maps run_id to {package: version}, empty where unknown."""

    metrics: pd.DataFrame
    runs: pd.DataFrame
    recipe: Mapping[str, Any]
    versions: Mapping[str, Mapping[str, str]]
    problems: tuple[str, ...]
    only_characters: bool = False


Check = Callable[[Evidence], Iterator[str]]


@dataclass(frozen=True)
class Entry:
    """One kind of warning: its code, how grave it is, what to do about it, and the messages it finds."""

    name: str
    level: Level
    remedy: str
    check: Check


CATALOGUE: Registry[Entry] = Registry("warning")
"""Every kind of warning by code."""


def _entry(code: str, level: Level, remedy: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CATALOGUE.add(Entry(code, level, remedy, check))
        return check

    return add


def find_notices(
    summary: Summary, recipe: Mapping[str, Any], versions: Mapping[str, Mapping[str, str]] | None = None
) -> list[Notice]:
    """All warnings that apply, in the order of the catalogue; `recipe` is the resolved recipe of the sweep."""
    read = summary.problems, summary.only_characters
    evidence = Evidence(summary.metrics, summary.runs, recipe, versions or {}, *read)
    return [
        Notice(entry.name, entry.level, message, entry.remedy)
        for entry in CATALOGUE.values()
        for message in entry.check(evidence)
    ]


def run_versions(sweep: "Sweep") -> dict[str, dict[str, str]]:
    """run_id → package → version, from the state that each run recorded of itself; runs not begun are left out."""
    found: dict[str, dict[str, str]] = {}
    for run_id in sweep.run_ids:
        try:
            recorded = read_json(sweep.run_dir(run_id) / RUN_FILE).get("versions") or {}
        except UsageError:
            # A run not begun, or one whose damaged state `Sweep.problems` names already.
            continue
        if recorded:
            found[run_id] = {package: str(version) for package, version in recorded.items()}
    return found


def _arm_means(metrics: pd.DataFrame, column: str) -> Iterator[tuple[str, float]]:
    """Arm and mean of a metric over its runs, arms without a value left out."""
    for arm in arms_of(metrics):
        mean = _mean(metrics.loc[metrics["arm"] == arm], column)
        if np.isfinite(mean):
            yield arm, mean


def _mean(runs: pd.DataFrame, column: str) -> float:
    """Mean of a metric over the runs that have it, NaN where none has."""
    values = np.array(runs[column], dtype=float)
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else float("nan")


@_entry("missing-runs", "error", "run the same command again: it resumes; --retry-failed repeats failed runs")
def _missing_runs(evidence: Evidence) -> Iterator[str]:
    counts = evidence.runs["status"].value_counts()
    missing = {str(status): int(number) for status, number in counts.items() if status != "completed"}
    if missing:
        words = ", ".join(f"{number} {status}" for status, number in missing.items())
        yield f"{sum(missing.values())} of {len(evidence.runs)} planned runs are not completed ({words})"


@_entry("damaged-files", "error", "delete the run's folder and run the same command again")
def _damaged_files(evidence: Evidence) -> Iterator[str]:
    yield from evidence.problems


@_entry("duplicated-cells", "error", "keep one run per mode and seed; the first of each is used")
def _duplicated_cells(evidence: Evidence) -> Iterator[str]:
    seen = Counter((run["arm"], pair_key(run)) for run in records(evidence.metrics))
    for (arm, key), times in seen.items():
        if times > 1:
            yield f"{arm}, {pair_label(key)}: {times} runs"


@_entry("same-experiment", "note", "sweep --skip-duplicates trains one of those that are the same")
def same_experiment(evidence: Evidence) -> Iterator[str]:
    """Modes that are one experiment, or one direction, under the sweep's settings."""
    if "loss_type" not in evidence.runs or not evidence.recipe.get("per_device_train_batch_size"):
        return
    plain = evidence.runs.drop_duplicates(subset=["arm"]).query("arm == mode")
    modes = [
        Mode(name=run["mode"], **{key: run[key] for key in ("loss_type", "agg_mode", "scale_rewards")})
        for run in records(plain)
    ]
    try:
        recipe = Recipe(**evidence.recipe)
    except ValidationError:  # a plan that another version of the program wrote: its settings mean something else here
        return
    for equality in equal_modes(recipe, modes):
        yield equality.sentence


@_entry("mixed-versions", "warning", "repeat the runs of the odd version out with --fresh in a folder of their own")
def _mixed_versions(evidence: Evidence) -> Iterator[str]:
    by_package: dict[str, set[str]] = {}
    for versions in evidence.versions.values():
        for package, version in versions.items():
            by_package.setdefault(package, set()).add(str(version))
    for package, found in by_package.items():
        if len(found) > 1:
            yield f"runs were made with different versions of {package}: {', '.join(sorted(found))}"


@_entry("too-few-seeds", "warning", f"at least {seeds_needed(ALPHA)} seeds for one claim, "
        f"{seeds_needed(ALPHA / FAMILY)} for {FAMILY} claims together")  # fmt: skip
def _too_few_seeds(evidence: Evidence) -> Iterator[str]:
    counts = {arm: len(arm_values(evidence.metrics, arm, "late_length_mean")) for arm in arms_of(evidence.metrics)}
    for fewest, needed, reach in (
        (0, seeds_needed(ALPHA), f"no sign-flip test can reach {ALPHA:g}"),
        (seeds_needed(ALPHA), seeds_needed(ALPHA / FAMILY), f"too few for {FAMILY} claims together"),
    ):
        if arms := [arm for arm, n in counts.items() if fewest <= n < needed]:
            numbers = sorted({counts[arm] for arm in arms})
            yield f"{', '.join(arms)}: {' or '.join(map(str, numbers))} completed seeds, {reach}"


@_entry("unpaired-seeds", "warning", "run the missing seeds; only seeds that both modes have are compared")
def _unpaired_seeds(evidence: Evidence) -> Iterator[str]:
    keys = {arm: set(arm_values(evidence.metrics, arm, "late_length_mean")) for arm in arms_of(evidence.metrics)}
    every = set().union(*keys.values()) if keys else set()
    for arm, present in keys.items():
        missing = sorted(pair_label(key) for key in every - present)
        if present and missing:
            yield f"{arm} lacks {', '.join(missing)}"


@_entry("truncation", "warning", "raise max_completion_length")
def _truncation(evidence: Evidence) -> Iterator[str]:
    incorrect = dict(_arm_means(evidence.metrics, "late_truncated_frac_incorrect"))
    for arm, share in _arm_means(evidence.metrics, "late_truncated_frac"):
        wrong = incorrect.get(arm, 0.0)
        if share >= 1:
            yield f"{arm}: every late completion is cut at the cap, so its lengths hold no information"
        elif max(share, wrong) > TRUNCATION_LIMIT:
            of_them = f", {wrong:.0%} of the incorrect ones" if arm in incorrect else ""
            yield (
                f"{arm}: {share:.0%} of late completions are cut at the cap{of_them}: uncut, they would be longer than "
                "the lengths shown"
            )


@_entry("cap-near-mean", "warning", "raise max_completion_length to 8 times the mean length")
def _cap_near_mean(evidence: Evidence) -> Iterator[str]:
    cap = evidence.recipe.get("max_completion_length")
    if not cap:
        return
    means = [mean for _, mean in _arm_means(evidence.metrics, "early_length_mean")]
    if means and cap < CAP_TO_MEAN * np.mean(means):
        ratio = cap / np.mean(means)
        yield f"the cap of {cap} tokens is {ratio:.1f} times the early mean length, which hides the length bias"


def _not_judged(evidence: Evidence, count: str) -> Iterator[str]:
    """Per arm, the completions of all its runs in one of the counts of `UNJUDGED`."""
    total: Counter[str] = Counter()
    for run in records(evidence.runs):
        number = run.get(count)
        if number is not None and number > 0:  # NaN where the run did not record it
            total[run["arm"]] += int(number)
    yield from (f"{arm}: {UNJUDGED[count].format(number)}" for arm, number in total.items())


for _code, _count, _remedy in (
    ("verifier-errors", "verifier_errors",
     "read the verifier's own message in log.txt of the runs, fix it or the answers, and run the same command with "
     "--fresh"),
    ("unjudged", "unjudged", "have the task's verify return True or False"),
    ("unrewarded", "unrewarded", "have the task's reward return a number, unless those rows are not to train"),
):  # fmt: skip
    _entry(_code, "warning", _remedy)(partial(_not_judged, count=_count))


@_entry("dead-groups", "warning", "choose prompts of middling difficulty or larger groups")
def _dead_groups(evidence: Evidence) -> Iterator[str]:
    for arm, share in _arm_means(evidence.metrics, "late_zero_std_frac"):
        if share > DEAD_GROUP_LIMIT:
            yield f"{arm}: {share:.0%} of late groups have equal rewards and give no gradient"


@_entry("reward-flat", "warning",
        "train longer, raise the learning rate, or start from a policy that sometimes succeeds")  # fmt: skip
def _reward_flat(evidence: Evidence) -> Iterator[str]:
    for arm in arms_of(evidence.metrics):
        runs = evidence.metrics.loc[evidence.metrics["arm"] == arm]
        policies = runs["policy_seed"].unique()
        for policy in policies:
            mine = runs.loc[runs["policy_seed"].isna() if pd.isna(policy) else runs["policy_seed"] == policy]
            early, late = _mean(mine, "early_reward"), _mean(mine, "late_reward")
            if abs(late - early) < REWARD_MOVED:
                start = f" from warm start {policy:.0f}" if len(policies) > 1 else ""
                yield f"{arm}{start}: reward never moved ({early:.3f} early, {late:.3f} late)"


@_entry("clipped-gradients", "note", "--set max_grad_norm=0 clips nothing and shows whether it matters")
def _clipped_gradients(evidence: Evidence) -> Iterator[str]:
    limit = evidence.recipe.get("max_grad_norm")
    norms = dict(_arm_means(evidence.metrics, "late_grad_norm"))
    clipped = [arm for arm, norm in norms.items() if limit and norm > limit]
    if clipped and len(clipped) < len(norms):
        said = ", ".join(f"{arm} {norm:.2g}" for arm, norm in norms.items())
        yield f"gradients are clipped to a norm of {limit:g}, which acts on some modes more than on others: {said} late"


@_entry("no-incorrect", "note", "look at correct lengths, or make the task harder")
def _no_incorrect(evidence: Evidence) -> Iterator[str]:
    for arm, share in _arm_means(evidence.metrics, "late_accuracy"):
        if share in (0, 1):
            word = "incorrect" if share == 1 else "correct"
            yield f"{arm}: no late completion is {word}, so the {word} length is undefined"


@_entry("means-of-means", "note", "record completions to get pooled lengths")
def _means_of_means(evidence: Evidence) -> Iterator[str]:
    number = list(evidence.metrics["source"]).count("steps")
    if number:
        yield f"{number} run(s) have no completions with lengths: their metrics are means over steps"


@_entry("no-token-lengths", "warning", "ingest the log again with --tokenizer, or with --map length=COLUMN")
def _no_token_lengths(evidence: Evidence) -> Iterator[str]:
    number = int(np.count_nonzero(evidence.metrics["late_length_mean"].isna()))
    logged = int(np.count_nonzero(evidence.metrics["source"] != "none"))
    if evidence.only_characters:
        yield ONLY_CHARACTERS
    elif number and number == logged:
        yield f"{number} run(s) have no lengths in tokens, so no claim about length can be tested"


@_entry("half-dr-grpo", "note", "mode dr_grpo, or in TRL loss_type='dr_grpo' together with scale_rewards='none'")
def _half_dr_grpo(evidence: Evidence) -> Iterator[str]:
    if DR_GRPO in set(evidence.metrics["mode"]):
        return
    for run in records(evidence.runs.drop_duplicates(subset=["arm"])):
        if is_half_dr_grpo(run["agg_mode"], run["scale_rewards"]):
            yield f"{run['arm']} has Dr. GRPO's constant divisor but keeps the std in the advantage: half of Dr. GRPO"


@_entry("one-row-micro-batch", "note", "a larger per_device_train_batch_size")
def _one_row_micro_batch(evidence: Evidence) -> Iterator[str]:
    if evidence.recipe.get("per_device_train_batch_size") != 1:
        return
    for name in sorted(set(evidence.runs["agg_mode"]) & set(AGGREGATIONS)):
        if AGGREGATIONS[name].depends_on_split:
            yield f"{name} looks at each micro-batch by itself, and here a micro-batch is one row"


@_entry("inert-surrogates", "note", "steps_per_generation above gradient_accumulation_steps, or num_iterations above 1")
def _inert_surrogates(evidence: Evidence) -> Iterator[str]:
    recipe = evidence.recipe
    if not recipe.get("per_device_train_batch_size"):  # another trainer's log does not say how it was made
        return
    accumulation = recipe.get("gradient_accumulation_steps") or 1
    on_policy = (recipe.get("steps_per_generation") or accumulation) <= accumulation
    if len(set(evidence.runs["loss_type"])) > 1 and on_policy and (recipe.get("num_iterations") or 1) == 1:
        yield "each generation is used for one step, so ratios are 1 and all clip-type surrogates have one gradient"


@_entry("odd-constant", "warning", "lossbench modes NAME lists the constants with their defaults and meaning")
def _odd_constant(evidence: Evidence) -> Iterator[str]:
    for surrogate in (SURROGATES[name] for name in set(evidence.runs["loss_type"]) if name in SURROGATES):
        given = {name: evidence.recipe[name] for name in surrogate.constants.model_fields if name in evidence.recipe}
        if caution := surrogate.caution(surrogate.constants(**given)):
            yield caution
