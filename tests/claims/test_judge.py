"""Verdicts: on hand-made metrics where the answer is known, and on what cannot be tested."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.known_runs import write_sweep

from lossbench.claims.dose_claim import judge_dose
from lossbench.claims.judge import family_note, judge, judge_all
from lossbench.claims.registry import CLAIMS, fingerprint, select, stated
from lossbench.claims.verdict import DoseResponse
from lossbench.errors import UsageError
from lossbench.loss.modes import parse_mode
from lossbench.metrics.length import METRICS, RUN_COLUMNS, summarise
from lossbench.metrics.weights import (
    EXACT_CHECKS,
    elasticity,
    jensen_gap,
    sign_length_imbalance,
    weight_curve,
)
from lossbench.store.read import load

FACTORIAL = ("grpo", "dr_grpo", "grpo@seq-mean-token-mean/none", "grpo@seq-mean-token-sum-norm/group")


def metrics_of(values: dict[str, list[float]], metric: str, **others: list[float] | float) -> pd.DataFrame:
    """One run per arm and seed with the given values of `metric`; seeds from 4 on start from policy 1."""
    rows = []
    for arm, series in values.items():
        for seed, value in enumerate(series):
            rows.append({
                "run_id": f"{arm}-{seed}", "arm": arm, "mode": arm, "seed": seed, "policy": "p",
                "policy_seed": seed // 4, "status": "completed", "complete": True, "source": "rollouts", metric: value,
            })  # fmt: skip
    return pd.DataFrame(rows, columns=[*RUN_COLUMNS, *METRICS]).assign(**others)


def spread(mean: float, n: int = 8, size: float = 1.0, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, size, n)
    return (mean + noise - noise.mean()).tolist()


def test_every_claim_names_real_metrics_and_canonical_modes():
    for claim in CLAIMS.values():
        assert claim.metric is None or claim.metric in METRICS
        for arm in claim.arms:
            mode = arm.partition("[")[0]
            assert parse_mode(mode).name == mode, arm
        assert all(name in EXACT_CHECKS for name in claim.exact)
        assert sum(claim.contrast.values()) == pytest.approx(0)
    assert {claim.id for claim in CLAIMS.values() if claim.primary} == {
        "C1", "C2", "C4", "C5", "C6", "C12", "C16", "C18"
    }  # fmt: skip


def test_a_clear_difference_is_supported_after_holm():
    metrics = metrics_of({"grpo": spread(40), "dr_grpo": spread(20, seed=1)}, "late_length_incorrect")
    verdict = judge_all(select(["C1", "C2", "C4", "C5", "C6"]), metrics)[1]
    assert verdict.status == "supported" and verdict.n == 8
    # All eight differences are positive: p = 1/256, times the five claims announced.
    assert verdict.p == 1 / 256 and verdict.p_holm == pytest.approx(5 / 256)
    assert verdict.effect.estimate == pytest.approx(20) and verdict.ratio.estimate == pytest.approx(2, rel=0.01)
    assert [(part.policy_seed, part.n) for part in verdict.per_policy] == [(0, 4), (1, 4)]
    assert verdict.claim.primary and verdict.unit == "tokens" and verdict.row()["status"] == "supported"


def test_descriptive_metrics_stand_beside_the_verdict():
    metrics = metrics_of({"grpo": spread(40), "dr_grpo": spread(20)}, "late_length_mean", length_slope_plateau=3.0)
    metrics.loc[metrics["arm"] == "dr_grpo", "length_slope_plateau"] = np.nan
    notes = judge(CLAIMS["C1"], metrics).notes
    assert notes == ("length slope after plateau, tokens per 100 steps: grpo 3 (n = 8)",)


def test_a_difference_on_the_other_side_is_contradicted():
    metrics = metrics_of({"grpo": spread(20), "dr_grpo": spread(40, seed=1)}, "late_length_incorrect")
    assert judge(CLAIMS["C2"], metrics).status == "contradicted"


def test_an_interval_that_holds_zero_contradicts_nothing():
    metrics = metrics_of({"grpo": spread(19.9), "dr_grpo": spread(20, seed=1)}, "late_length_incorrect")
    verdict = judge(CLAIMS["C2"], metrics)
    assert verdict.effect.estimate < 0 < verdict.effect.high and verdict.status == "inconclusive"


def test_only_primary_claims_share_the_level():
    # C2 is primary, C7 is not: the family has one member, so nothing is adjusted.
    claims = [CLAIMS["C2"], CLAIMS["C7"]]
    values = {"grpo": spread(40), "dr_grpo": spread(20, seed=1), "dapo": spread(20, seed=2)}
    verdict, other = judge_all(claims, metrics_of(values, "late_length_incorrect"))
    assert verdict.p_holm == verdict.p == 1 / 256 and np.isnan(other.p_holm)


def test_noise_is_inconclusive_with_what_would_settle_it():
    metrics = metrics_of({"grpo": spread(20, size=5), "dr_grpo": spread(20, size=5, seed=1)}, "late_length_incorrect")
    verdict = judge(CLAIMS["C2"], metrics)
    assert verdict.status == "inconclusive" and "p = " in verdict.reason and verdict.remedy


def test_identical_logs_are_no_difference():
    same = spread(20)
    verdict = judge(CLAIMS["C2"], metrics_of({"grpo": same, "dr_grpo": same}, "late_length_incorrect"))
    assert verdict.status == "inconclusive" and "no difference" in verdict.reason


def test_few_seeds_cannot_decide_and_say_how_many_could():
    metrics = metrics_of({"grpo": spread(40, 4), "dr_grpo": spread(20, 4)}, "late_length_incorrect")
    verdict = judge(CLAIMS["C2"], metrics)
    assert verdict.status == "inconclusive" and "0.0625" in verdict.reason and verdict.remedy == "at least 5 seeds"
    # Five primary claims share .05: the first threshold is .01, which six seeds (1/64) cannot reach.
    metrics = metrics_of({"grpo": spread(40, 6), "dr_grpo": spread(20, 6)}, "late_length_incorrect")
    verdict = judge_all(select(["C1", "C2", "C4", "C5", "C6"]), metrics)[1]
    assert verdict.status == "inconclusive" and verdict.remedy == "at least 7 seeds"


@pytest.mark.parametrize(
    ("grpo", "dr_grpo", "status", "equivalent"),
    [
        (0.60, 0.60, "supported", True),
        (0.60, 0.64, "supported", False),
        (0.60, 0.575, "inconclusive", False),
        (0.60, 0.50, "contradicted", False),
    ],
)
def test_non_inferiority_of_reward(grpo, dr_grpo, status, equivalent):
    metrics = metrics_of(
        {"grpo": spread(grpo, size=0.01), "dr_grpo": spread(dr_grpo, size=0.01, seed=1)}, "late_reward"
    )
    verdict = judge(CLAIMS["C4"], metrics)
    assert verdict.status == status
    assert ("equivalence not shown" not in verdict.notes[0]) == equivalent


@pytest.mark.parametrize(
    ("first", "size", "status"), [(20.5, 0.5, "supported"), (9.0, 0.5, "contradicted"), (20.0, 8.0, "inconclusive")]
)
def test_ratio_equivalence(first, size, status):
    values = {"grpo": spread(first, size=size), "dr_grpo": spread(20, size=size, seed=1)}
    verdict = judge(CLAIMS["C3"], metrics_of(values, "late_length_correct"))
    assert verdict.status == status and verdict.unit == "ratio" and verdict.effect.confidence == pytest.approx(0.9)


def test_ratio_margins_are_on_the_log_scale():
    # Log ratios with mean .0675 and 90 % interval [-.073, .208], inside ± log 1.25 = .223; on the ratios themselves
    # the test against .8 and 1.25 would give p = .056.
    logs = [0.1, 0.18, 0.02, -0.15, -0.03, -0.18, 0.12, 0.48]
    metrics = metrics_of({"grpo": [10 * np.exp(x) for x in logs], "dr_grpo": [10.0] * 8}, "late_length_correct")
    verdict = judge(replace(CLAIMS["C3"], margin=1.25), metrics)
    assert verdict.status == "supported" and verdict.p == pytest.approx(0.0368, abs=1e-4)


def test_the_length_term_dominates_the_std_term():
    # Length effect: ((40 - 22) + (42 - 20))/2 = 20. Std effect: ((40 - 42) + (22 - 20))/2 = 0.
    values = dict(zip(FACTORIAL, (spread(40), spread(20, seed=1), spread(42, seed=2), spread(22, seed=3)), strict=True))
    verdict = judge(CLAIMS["C6"], metrics_of(values, "late_length_incorrect"))
    assert verdict.status == "supported" and verdict.effect.estimate == pytest.approx(20)
    assert np.isnan(verdict.ratio.estimate) and "rival effect" in verdict.notes[0]


def test_a_larger_rival_contradicts_dominance_whatever_its_sign():
    # Length effect 0; std effect ((20 - 40) + (20 - 40))/2 = -20.
    values = dict(zip(FACTORIAL, (spread(20), spread(40, seed=1), spread(40, seed=2), spread(20, seed=3)), strict=True))
    verdict = judge(CLAIMS["C6"], metrics_of(values, "late_length_incorrect"))
    assert verdict.status == "contradicted" and verdict.effect.estimate == pytest.approx(0, abs=1e-9)
    assert verdict.reason.startswith("a rival effect is larger")


def test_surrogates_differ_less_than_aggregations():
    arms = CLAIMS["C11"].arms
    assert len(arms) == 6
    means = dict(zip(arms, (61, 51, 63, 23, 17, 20), strict=True))
    values = {arm: spread(mean, 5, seed=k) for k, (arm, mean) in enumerate(means.items())}
    verdict = judge(CLAIMS["C11"], metrics_of(values, "late_length_incorrect"))
    # (61 + 51 + 63 - 23 - 17 - 20)/3 = 38.33; the largest surrogate effect is cispo against sapo, -12.
    assert verdict.status == "supported" and verdict.effect.estimate == pytest.approx(115 / 3)
    assert "-12" in verdict.notes[0]


@pytest.mark.parametrize(
    ("values", "reason", "remedy"),
    [
        ({"dr_grpo": spread(20)}, "no completed runs of grpo", "completed runs of grpo, dr_grpo"),
        ({"grpo": [40.0], "dr_grpo": [20.0]}, "only one seed", "at least 5 seeds"),
        ({"grpo": [float("nan")] * 8, "dr_grpo": spread(20)}, "has no value", "seeds"),
    ],
)
def test_what_cannot_be_tested_is_said(values, reason, remedy):
    verdict = judge(CLAIMS["C2"], metrics_of(values, "late_length_incorrect"))
    assert verdict.status == "not tested" and reason in verdict.reason and remedy in verdict.remedy
    assert np.isnan(verdict.p)


def test_no_common_seeds():
    metrics = metrics_of({"grpo": spread(40), "dr_grpo": spread(20)}, "late_length_incorrect")
    metrics.loc[metrics["arm"] == "grpo", "seed"] += 100
    verdict = judge(CLAIMS["C2"], metrics)
    assert verdict.status == "not tested" and "no completed seeds in common" in verdict.reason
    assert len(verdict.left_out) == 16


def test_unfinished_runs_and_missing_values_are_named():
    metrics = metrics_of({"grpo": spread(40), "dr_grpo": spread(20)}, "late_length_incorrect")
    metrics.loc[0, "complete"] = False
    metrics.loc[1, "late_length_incorrect"] = np.nan
    verdict = judge(CLAIMS["C2"], metrics)
    assert verdict.n == 6 and len(verdict.left_out) == 2
    assert any("seed 0" in text and "not completed" in text for text in verdict.left_out)
    assert any("seed 1" in text and "no value" in text for text in verdict.left_out)


def test_untested_claims_still_cost_the_family_its_share():
    metrics = metrics_of({"grpo": spread(40), "dr_grpo": spread(20)}, "late_length_incorrect")
    verdicts = judge_all(select(["C2", "C6"]), metrics)
    assert verdicts[0].p_holm == 2 / 256 and verdicts[1].status == "not tested"
    assert "C2, C6" in family_note(verdicts)


def test_exact_claims_need_no_runs():
    empty = metrics_of({}, "late_reward")
    assert judge(CLAIMS["C8"], empty).status == "supported"
    verdict = judge(CLAIMS["C7"], empty)
    assert verdict.status == "not tested" and "equal" in verdict.notes[0]


def test_a_broken_identity_contradicts(monkeypatch):
    from lossbench.metrics.weights import ExactCheck

    monkeypatch.setitem(EXACT_CHECKS, "weight-elasticity", lambda: ExactCheck(False, "token-mean: -1 instead of 0"))
    verdict = judge(CLAIMS["C8"], metrics_of({}, "late_reward"))
    assert verdict.status == "contradicted" and "token-mean" in verdict.reason


def dose(drift, p_falling=0.001, at_one=(-1.0, 1.0), pairs=40):
    bounds = [(value - 1, value + 1) for value in drift]
    alphas = (0.0, 0.5, 1.0, 1.5)
    bounds[2] = at_one
    low, high = zip(*bounds, strict=True)
    return DoseResponse(alphas, tuple(drift), low, high, pairs, p_falling, 1 - p_falling + 0.0005)


def test_the_claim_on_the_probe():
    claim = CLAIMS["C9"]
    assert judge_dose(claim, None).status == "not tested" and "lossbench probe" in judge_dose(claim, None).remedy
    assert judge_dose(claim, dose([110, 63, 0, -75])).status == "supported"
    assert judge_dose(claim, dose([110, 63, 0, -75], p_falling=0.2)).status == "inconclusive"
    assert judge_dose(claim, dose([63, 110, 0, -75])).status == "inconclusive"
    assert judge_dose(claim, dose([110, 63, 63, -75])).status == "inconclusive"  # a step that is flat does not fall
    shuffled = replace(dose([63, 110, -75, 0]), alphas=(0.5, 0.0, 1.5, 1.0))
    assert judge_dose(claim, shuffled).status == "supported"  # falls in the order of α, whatever order the file has
    # At α = 1 the weights are the baseline's, so the drift there is 0 by definition and decides nothing.
    assert judge_dose(claim, dose([110, 63, 5, -75], at_one=(4, 6))).status == "supported"
    assert "zero at" not in claim.sentence
    assert judge_dose(claim, dose([-75, 0, 0, 110], p_falling=0.999)).status == "contradicted"
    # Two pairs that both rise come by chance one time in four: p is .25, whatever 1 - p of the fall says.
    rising = replace(dose([-75, 0, 0, 110], p_falling=1.0, pairs=2), p_rising=0.25)
    assert judge_dose(claim, rising).status == "inconclusive"
    for untestable, why in (
        (dose([float("nan"), 63, 0, -75]), "no incorrect completions"),
        (dose([0.0, 0.0, 0.0, 0.0], p_falling=1.0), "every drift is zero"),
        (dose([110, 63, 0, -75], pairs=1), "fewer than two pairs"),
    ):
        verdict = judge_dose(claim, untestable)
        assert verdict.status == "not tested" and why in verdict.reason and verdict.remedy


def test_claims_are_fixed_before_the_runs():
    assert fingerprint(["C1", "C2"]) == fingerprint(["C1", "C2"]) != fingerprint(["C1"])
    assert stated({"claims": ["C1"], "claims_fingerprint": fingerprint(["C1"])}) == ([CLAIMS["C1"]], "")
    assert "changed" in stated({"claims": ["C1"], "claims_changed": True})[1]
    assert "changed" in stated({"claims": ["C1"], "claims_fingerprint": "0"})[1]
    assert stated({})[1].startswith("no claims")
    with pytest.raises(UsageError, match="unknown claim 'C99'"):
        select(["C99"])
    with pytest.raises(UsageError, match="twice"):
        select(["C1", "C1"])


def test_verdicts_on_files(tmp_path):
    folder = write_sweep(tmp_path / "s", dict(zip(FACTORIAL, (40, 20, 40, 20), strict=True)), seeds=8)
    verdicts = {v.claim.id: v for v in judge_all(list(CLAIMS.values()), summarise(load(folder)).metrics)}
    assert {verdicts[name].status for name in ("C1", "C2", "C4", "C5", "C6", "C3", "C8")} == {"supported"}
    assert {verdicts[name].status for name in ("C7", "C9", "C10", "C11")} == {"not tested"}


def test_weights_against_length():
    curve = weight_curve("seq-mean-token-mean", [10, 2, 5], horizon=20)
    # 1/(3 L), sorted by length; their token-weighted mean is 3 × (1/3) / 17.
    assert curve.length_tokens.tolist() == [2, 5, 10]
    assert curve.weight == pytest.approx([1 / 6, 1 / 15, 1 / 30])
    assert curve.relative == pytest.approx(curve.weight * 17)
    assert weight_curve("token-mean", [10, 2, 5], horizon=20).relative == pytest.approx([1, 1, 1])


def test_mechanism_figures_by_hand():
    assert elasticity([1, 2, 4], [1, 1 / 2, 1 / 4]) == pytest.approx(-1) and np.isnan(elasticity([3, 3], [1, 1]))
    # mean(1, 1/3) - 1/2
    assert jensen_gap([1, 3]) == pytest.approx(2 / 3 - 1 / 2) and jensen_gap([5, 5, 0]) == pytest.approx(0)
    assert np.isnan(jensen_gap([]))
    # Equal weights, lengths 1 and 3, advantages 1 and -1: (1 - 3)/(1 + 3).
    assert sign_length_imbalance([1, 1], [1, 3], [1, -1]) == -0.5
    assert sign_length_imbalance([1, 1 / 3], [1, 3], [1, -1]) == pytest.approx(0)


def test_holm_runs_over_primary_claims_alone():
    # C1 (primary) and C3 (exploratory) are both tested: C1's p stays its own.
    values = {"grpo": spread(40), "dr_grpo": spread(20, seed=1)}
    metrics = metrics_of(values, "late_length_mean")
    metrics["late_length_correct"] = metrics["late_length_mean"]
    primary, other = judge_all(select(["C1", "C3"]), metrics)
    assert primary.p_holm == primary.p == 1 / 256 and np.isnan(other.p_holm)
    assert (primary.claim.rank, other.claim.rank, CLAIMS["C8"].rank) == ("primary", "exploratory", "exact")


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.235), (np.log(0.7), np.log(0.95)), (-0.235, 0.1)])
def test_a_ratio_is_judged_on_the_log_scale_against_both_margins(low, high):
    # Margin 1.25: log 1.25 = .223. Each 90 % interval crosses a margin and none lies outside: inconclusive.
    from scipy import stats

    claim = replace(CLAIMS["C3"], margin=1.25)
    unit = np.array(spread(0.0, 8, seed=3))
    half = stats.t.ppf(0.95, 7) * unit.std(ddof=1) / np.sqrt(8)
    logs = (low + high) / 2 + unit * (high - low) / 2 / half
    verdict = judge(claim, metrics_of({"grpo": (20 * np.exp(logs)).tolist(), "dr_grpo": [20.0] * 8}, claim.metric))
    assert (verdict.effect.low, verdict.effect.high) == pytest.approx((np.exp(low), np.exp(high)))
    assert verdict.status == "inconclusive"


def test_a_flat_stretch_of_the_dose_is_no_fall():
    claim = CLAIMS["C9"]
    assert judge_dose(claim, dose([2, 1, 1, 0])).status == "inconclusive"
    assert judge_dose(claim, dose([2, 1, 0.9, 0])).status == "supported"


def test_dominance_is_contradicted_by_chance_in_one_sweep_of_twenty_at_most():
    # Six arms without any effect, 8 seeds: 12 margins, of which one below 0 at its own 95 % is found in every fifth.
    arms, rng, hits, sweeps = CLAIMS["C11"].arms, np.random.default_rng(0), 0, 200
    for _ in range(sweeps):
        values = {arm: (20 + rng.normal(size=8)).tolist() for arm in arms}
        hits += judge(CLAIMS["C11"], metrics_of(values, "late_length_incorrect")).status == "contradicted"
    assert hits <= 0.05 * sweeps


def null_arms(gains, lengths=(20.0, 20.0)):
    """The two arms of the null control on eight seeds, of two policies whose late reward gains so much."""
    arms = CLAIMS["C10"].arms
    values = {arm: spread(length, size=0.3, seed=k) for k, (arm, length) in enumerate(zip(arms, lengths, strict=True))}
    metrics = metrics_of(values, "late_length_incorrect", early_reward=0.3)
    metrics["late_reward"] = 0.3 + metrics["policy_seed"].map(dict(enumerate(gains)))
    return metrics


@pytest.mark.parametrize(
    ("gains", "status", "n"),
    [((0.2, 0.3), "supported", 8), ((0.2, 0.01), "supported", 4), ((-0.1, 0.0), "not tested", 0)],
)
def test_a_null_policy_that_never_learned_shows_nothing(gains, status, n):
    verdict = judge(CLAIMS["C10"], null_arms(gains))
    assert (verdict.status, verdict.n) == (status, n)
    untaught = [policy for policy, gain in enumerate(gains) if gain < 0.02]
    assert len([text for text in verdict.left_out if "never learned from this policy" in text]) == 4 * len(untaught)
    assert ("never learned" in verdict.reason) == (status == "not tested")


def test_claims_about_reward_tell_the_reward_of_the_null_arms():
    rewards = {"grpo": spread(0.6, size=0.01), "dr_grpo": spread(0.62, size=0.01, seed=1)}
    null = {f"{arm}[selfcheck-null]": spread(mean, size=0.01, seed=k) for k, (arm, mean) in
            enumerate({"grpo": 0.5, "dr_grpo": 0.52}.items())}  # fmt: skip
    alone, beside = (
        judge(CLAIMS["C4"], metrics_of(values, "late_reward")).notes for values in (rewards, rewards | null)
    )
    (told,) = set(beside) - set(alone)
    assert told.startswith("late reward on the null policy, where the length bias is absent: +0.02 [")


def test_a_claim_that_was_narrowed_names_what_was_stated():
    from lossbench.claims.registry import _STATED_BEFORE, _digest

    before = [replace(CLAIMS["C1"]), replace(CLAIMS["C9"], sentence=_STATED_BEFORE["C9"])]
    claims, change = stated({"claims": ["C1", "C9"], "claims_fingerprint": _digest(before)})
    assert change == "" and claims[0] == CLAIMS["C1"] and claims[1].note.endswith("and is zero at α = 1.")
    assert claims[1].sentence == CLAIMS["C9"].sentence


def test_figures_that_stand_in_a_plot_are_marked():
    read_off = {name for name, claim in CLAIMS.items() if "read off the plot" in claim.source_figure}
    assert read_off == {"C1", "C2", "C3", "C4"}
