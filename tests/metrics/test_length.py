"""Metrics per run, trajectories, curves and distributions, on completions whose every length is known."""

import math

import duckdb
import numpy as np
import pytest
from support.known_runs import rollout_rows, write_plan, write_run, write_sweep

from lossbench.metrics.curves import curves, length_distributions
from lossbench.metrics.length import METRICS, is_early, is_late, run_metrics, summarise
from lossbench.metrics.step_sums import as_columns, completions_sql, pooled
from lossbench.metrics.trajectory import Trajectory, common_reward, plateau_step, slope_after, trajectory
from lossbench.store.read import load
from lossbench.store.write import as_arrow, write_json


def one_run(tmp_path, rows, steps_planned=10, status="completed", **tables):
    write_run(tmp_path, "r0", rows, status, **tables)
    write_plan(tmp_path, {"r0": {"arm": "grpo", "seed": 0, "steps_planned": steps_planned}})
    return summarise(load(tmp_path))


def sums_of(rows):
    with duckdb.connect() as database:
        source = database.register("completions_here", as_arrow("rollouts", rows))
        return as_columns(source.sql(completions_sql("completions_here")).to_arrow_table())


def test_means_are_pooled_over_completions(tmp_path):
    # Late (steps 9 and 10 of 10): incorrect 2, 2, 2, 2 and 10: 18/5 = 3.6; the mean of step means would be 6.
    rows = rollout_rows(9, [2, 2, 2, 2], [4]) + rollout_rows(10, [10], [6, 8])
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert row["late_length_incorrect"] == pytest.approx(3.6)
    assert row["late_length_correct"] == pytest.approx(6)
    assert row["late_length_mean"] == pytest.approx(36 / 8)
    assert row["late_reward"] == row["late_accuracy"] == pytest.approx(3 / 8)
    # Three rewards for 36 tokens.
    assert row["token_efficiency"] == pytest.approx(1000 * 3 / 36)
    assert row["tokens_total"] == 36


def test_gap_within_prompt_ignores_the_mix_of_prompts(tmp_path):
    # An easy short prompt, mostly right, and a hard long one, mostly wrong; inside each, wrong ones are 2 longer.
    rows = rollout_rows(10, [12], [10, 10, 10], group=0) + rollout_rows(10, [102, 102, 102], [100], group=1)
    rows += rollout_rows(10, [500, 500], [], group=2)
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert row["late_gap_within_prompt"] == pytest.approx(2)
    # Groups 0 and 1 are mixed, group 2 has equal rewards.
    assert row["late_zero_std_frac"] == pytest.approx(1 / 3)


def test_groups_of_different_generations_are_different_groups(tmp_path):
    rows = rollout_rows(9, [10], [], group=0) + rollout_rows(10, [], [4], group=0)
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert np.isnan(row["late_gap_within_prompt"]) and row["late_zero_std_frac"] == 1


def test_truncated_completions_have_no_terminated_length(tmp_path):
    row = one_run(tmp_path, rollout_rows(10, [8, 8], [8], cap=8)).metrics.iloc[0]
    assert row["late_truncated_frac"] == 1 and np.isnan(row["late_length_terminated"])
    assert row["late_reward"] == 0 and row["late_accuracy"] == pytest.approx(1 / 3)


def test_nothing_is_null_and_never_zero(tmp_path):
    row = one_run(tmp_path, rollout_rows(10, [], [5, 7])).metrics.iloc[0]
    for name in ("late_length_incorrect", "late_gap_within_prompt", "early_length_mean", "eval_reward", "late_entropy"):
        assert np.isnan(row[name]), name
    assert row["late_length_correct"] == 6


def test_nulls_leave_a_row_out_of_what_needs_them():
    rows = rollout_rows(1, [4, 6], [8])
    rows[0]["correct"] = None
    rows[1]["reward"] = float("nan")
    rows[2]["terminated"] = None
    values = pooled(sums_of(rows))
    assert values["length_mean"] == 6 and values["length_incorrect"] == 6 and values["accuracy"] == 0.5
    assert values["reward"] == 0.5 and values["truncated_frac"] == 0


def test_windows_are_fifths_of_the_planned_steps():
    steps = np.arange(1, 11)
    assert steps[is_early(steps, 10)].tolist() == [1, 2] and steps[is_late(steps, 10)].tolist() == [9, 10]
    assert steps[:7][is_late(steps[:7], 7)].tolist() == [6, 7] and steps[:3][is_late(steps[:3], 3)].tolist() == [3]


def test_step_log_is_weighted_by_tokens(tmp_path):
    # Late entropy (1 × 30 + 2 × 10)/40 = 1.25; the step log counts steps that began no generation too.
    log = [
        {"step": 9, "entropy": 1.0, "tokens": 30, "grad_norm": 1.0, "wall_s": 0.5},
        {"step": 10, "entropy": 2.0, "tokens": 10, "grad_norm": 3.0, "wall_s": 0.25},
    ]
    row = one_run(tmp_path, rollout_rows(9, [4], [4]), steps=log).metrics.iloc[0]
    assert row["late_entropy"] == pytest.approx(1.25) and row["late_grad_norm"] == 2 and row["wall_s"] == 0.75
    assert row["late_length_mean"] == 4 and np.isnan(row["late_kl"])


def test_a_run_with_logged_means_only_says_so(tmp_path):
    log = [
        {"step": 9, "reward_mean": 0.5, "length_mean": 10.0, "length_incorrect": 12.0, "tokens": 80},
        {"step": 10, "reward_mean": 1.0, "length_mean": 20.0, "tokens": 160},
    ]
    row = one_run(tmp_path, [], steps=log).metrics.iloc[0]
    assert row["source"] == "steps" and row["late_length_mean"] == 15 and row["late_length_incorrect"] == 12
    assert row["tokens_total"] == 240


def test_evaluations_give_the_same_split(tmp_path):
    evals = [row | {"step": 10} for row in rollout_rows(10, [9, 11], [3])] + [
        row | {"step": step} for step in (0, 5) for row in rollout_rows(10, [50], [50])
    ]
    for row in evals:
        del row["generation"]
    row = one_run(tmp_path, rollout_rows(10, [4], [4]), evals=evals).metrics.iloc[0]
    assert row["eval_length_incorrect"] == 10 and row["eval_length_correct"] == 3
    assert row["eval_gap_within_prompt"] == 7 and row["eval_accuracy"] == pytest.approx(1 / 3)


def test_a_planned_run_without_files_is_a_row_of_nulls(tmp_path):
    (tmp_path / "runs").mkdir()
    write_plan(tmp_path, {"r0": {"arm": "grpo", "seed": 0}})
    metrics = run_metrics(load(tmp_path))
    assert metrics.loc[0, "source"] == "none" and not metrics.loc[0, "complete"]
    assert metrics[list(METRICS)].isna().all(axis=None)


def test_jensen_gap_and_spread(tmp_path):
    # Lengths 1 and 3: mean(1/L) = 2/3, 1/mean = 1/2; standard deviation 1 over mean 2.
    row = one_run(tmp_path, rollout_rows(1, [1], [3])).metrics.iloc[0]
    assert row["early_jensen_gap"] == pytest.approx(2 / 3 - 1 / 2) and row["early_length_cv"] == pytest.approx(0.5)


def rising(length_of, steps=100, top=0.8):
    """Sums of a run whose reward rises evenly to `top` at half time and then stays."""
    step = np.arange(1.0, steps + 1)
    reward = np.minimum(top, top * 2 * step / steps)
    ones = np.full(steps, 10.0)
    length = np.array([length_of(s) for s in step])
    return {
        "step": step, "length_mean_rows": ones, "reward_rows": ones, "reward_sum": 10 * reward,
        "length_mean_sum": 10 * length,
        "tokens": 10 * length,
    }  # fmt: skip


def test_plateau_and_slope_after_it():
    sums = rising(lambda step: 20.0 if step <= 50 else 20 + 0.3 * (step - 50))
    path = trajectory(sums)
    start = plateau_step(path, 0.8)
    # Smoothed over five steps the path starts at mean(.016 … .08) = .048; 95 % of the way to .8 is .7624, which the
    # mean of steps 46-50 (.768) is the first to reach.
    assert start == 50
    slope, least_squares = slope_after(sums, start)
    assert slope == pytest.approx(30) and least_squares == pytest.approx(30, rel=0.02)
    assert all(math.isnan(value) for value in slope_after(sums, 95))


def test_one_odd_step_turns_the_least_squares_slope_alone():
    sums = rising(lambda step: 500.0 if step == 100 else 20 + 0.3 * step)
    slope, least_squares = slope_after(sums, 50)
    assert slope == pytest.approx(30) and least_squares > 60


def test_a_path_ends_at_the_mean_of_its_last_fifth():
    steps = np.arange(10.0)
    rewards = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0])
    assert common_reward([Trajectory(steps, steps, rewards, steps)]) == pytest.approx(0.95 * (0.8 + 1.0) / 2)


def test_a_reward_that_does_not_rise_has_no_plateau():
    sums = rising(lambda step: 20.0)
    sums["reward_sum"] = np.full(100, 3.0)
    path = trajectory(sums)
    assert plateau_step(path, 0.3) is None
    assert all(math.isnan(value) for value in slope_after(sums, None))
    assert math.isnan(common_reward([path]))


def test_values_at_a_reward_are_interpolated():
    arrays = (np.array(values, dtype=float) for values in ([1, 2, 3], [100, 200, 300], [0.1, 0.3, 0.2], [20, 30, 40]))
    path = Trajectory(*arrays)
    assert path.at_reward(0.2) == pytest.approx((150, 25))
    assert path.at_reward(0.05) == (100, 20)
    assert all(math.isnan(value) for value in path.at_reward(0.5))


def test_common_reward_is_the_lowest_plateau():
    low, high = (trajectory(rising(lambda step: 20.0, top=top)) for top in (0.4, 0.8))
    level = common_reward([low, high])
    # The lower path starts at mean(.008 … .04) = .024 and ends at .4.
    assert level == pytest.approx(0.024 + 0.95 * (0.4 - 0.024))
    assert math.isnan(common_reward([]))
    assert np.isfinite(low.at_reward(level)).all() and np.isfinite(high.at_reward(level)).all()


def test_curves_pool_within_runs_and_average_over_them(tmp_path):
    write_run(tmp_path, "a", rollout_rows(1, [10], []) + rollout_rows(2, [30, 30, 30], []))
    write_run(tmp_path, "b", rollout_rows(1, [20], []))
    write_plan(tmp_path, {name: {"arm": "grpo", "seed": k, "steps_planned": 2} for k, name in enumerate("ab")})
    summary = summarise(load(tmp_path))
    curve = curves(summary, "length_incorrect", points=2)["grpo"]
    assert curve.x.tolist() == [1, 2] and curve.n.tolist() == [2, 1]
    assert curve.mean.tolist() == [15, 30] and np.isnan(curve.low[1])
    # Two values 10 apart: standard error 5, t(0.975, 1) = 12.706.
    assert curve.high[0] - curve.mean[0] == pytest.approx(5 * 12.706, rel=1e-4)
    whole = curves(summary, "length_incorrect", points=1)["grpo"]
    # Run a: (10 + 90)/4 = 25; run b: 20.
    assert whole.mean.tolist() == [22.5]
    by_tokens = curves(summary, "length_incorrect", axis="tokens", points=2)["grpo"]
    assert by_tokens.x.tolist() == [50, 100] and by_tokens.mean.tolist() == [15, 30]
    with pytest.raises(ValueError, match="unknown quantity 'lenght_mean'"):
        curves(summary, "lenght_mean")


def test_length_distributions_count_completions(tmp_path):
    summary = one_run(tmp_path, rollout_rows(1, [5, 5, 7], [3]) + rollout_rows(10, [9], [3, 3]))
    found = {(item.late, item.correct): item for item in length_distributions(summary)}
    assert found[False, False].length_tokens.tolist() == [5, 7] and found[False, False].rows.tolist() == [2, 1]
    assert found[True, True].rows.tolist() == [2] and found[True, False].length_tokens.tolist() == [9]


def test_summary_of_a_whole_sweep(tmp_path):
    sweep = load(write_sweep(tmp_path / "s", {"grpo": 40, "dr_grpo": 20}, seeds=3))
    summary = summarise(sweep)
    means = summary.metrics.groupby("arm")["late_length_incorrect"].mean()
    assert means["grpo"] == pytest.approx(40, abs=3) and means["dr_grpo"] == pytest.approx(21, abs=3)
    assert np.isfinite(summary.common_reward) and summary.metrics["tokens_to_reward"].notna().all()


def test_a_run_that_stopped_half_way_has_no_late_window(tmp_path):
    rows = [row for step in range(1, 6) for row in rollout_rows(step, [5], [4])]
    row = one_run(tmp_path, rows, steps_planned=10).metrics.iloc[0]
    assert np.isnan(row["late_length_mean"]) and row["early_length_mean"] == 4.5


def test_the_last_of_repeated_log_rows_counts(tmp_path):
    log = [{"step": 10, "entropy": 1.0, "tokens": 8}, {"step": 9, "entropy": 0.25, "tokens": 8},
           {"step": 10, "entropy": 3.0, "tokens": 8}]  # fmt: skip
    row = one_run(tmp_path, rollout_rows(10, [4], [4]), steps=log).metrics.iloc[0]
    # Steps 9 and 10 with equal tokens: (.25 + 3)/2.
    assert row["late_entropy"] == pytest.approx(1.625)


def test_where_a_reward_is_negative_none_is_earned_per_token(tmp_path):
    rows = rollout_rows(10, [5], [4])
    rows[0]["reward"] = -0.5
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert np.isnan(row["token_efficiency"]) and row["late_reward"] == 0.25


def test_tokens_of_completions_without_a_reward_are_not_held_against_the_others(tmp_path):
    rows = rollout_rows(10, [5], [4])
    rows.append(rows[0] | {"sample": 2, "length_tokens": 100, "reward": None})
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert row["token_efficiency"] == pytest.approx(1000 * 1 / 9) and row["tokens_total"] == 109


def test_a_log_of_means_has_no_spread_of_lengths(tmp_path):
    row = one_run(tmp_path, [], steps=[{"step": 1, "length_mean": 10.0, "tokens": 80}]).metrics.iloc[0]
    assert row["early_length_mean"] == 10 and np.isnan(row["early_length_cv"])


def test_curves_end_where_the_runs_end(tmp_path):
    rows = [row for step in range(1, 51) for row in rollout_rows(step, [5], [4])]
    curve = curves(one_run(tmp_path, rows, steps_planned=50), "reward", points=40)["grpo"]
    # Blocks of two steps.
    assert curve.x[-1] == 50 and len(curve.x) == 25
    curve = curves(one_run(tmp_path / "odd", rows[:-2], steps_planned=50), "reward", points=40)["grpo"]
    assert curve.x[-2:].tolist() == [48, 49]


@pytest.mark.parametrize("planned", [40, 100, 1000])
def test_a_trajectory_begins_alike_however_long_the_run_was_to_be(tmp_path, planned):
    rows = [row for step in range(1, 31) for row in rollout_rows(step, [5 + step], [4])]
    summary = one_run(tmp_path, rows, steps_planned=planned)
    # Steps 1 to 5: lengths 6 … 10 and 4: (8 + 4)/2 = 6.
    assert summary.by_run["r0"].path.step[0] == 5 and summary.by_run["r0"].path.length_tokens[0] == 6


def test_damaged_files_are_named_in_one_order(tmp_path):
    runs = {f"r{k}": {"arm": "grpo", "seed": k} for k in range(6)}
    for run_id in runs:
        write_run(tmp_path, run_id, rollout_rows(10, [5], [4]))
        if run_id != "r3":
            (tmp_path / "runs" / run_id / "rollouts.parquet").write_bytes(b"PAR1 but not quite")
    write_plan(tmp_path, runs)
    summary = summarise(load(tmp_path))
    assert [problem.split("/")[-2] for problem in summary.problems] == ["r0", "r1", "r2", "r4", "r5"]
    assert summary.metrics["source"].tolist() == ["none"] * 3 + ["rollouts"] + ["none"] * 2


def test_hazards_and_pushes_of_a_run_by_hand(tmp_path):
    # One group, step 10 of 10, cap 8: wrong answers of 8 (cut) and 2 tokens, right ones of 4 and 5.
    rows = rollout_rows(10, [8, 2], [4, 5], cap=8)
    summary = one_run(tmp_path, rows)
    row = summary.metrics.iloc[0]
    # Wrong: one ending in 8 + 2 tokens; right: two endings in 4 + 5.
    assert row["late_hazard_incorrect"] == pytest.approx(1 / 10) and row["late_hazard_correct"] == pytest.approx(2 / 9)
    # 1/L, |A| equal: wrong -(-.8/8 + .8/2)/(1/8 + 1/2) = -.3/.625 = -.48; V over 1/8 + 1/2 + 1/4 + 1/5 = 1.075.
    assert row["late_push_incorrect"] == pytest.approx(-0.48)
    assert row["late_added_incorrect"] == pytest.approx(-0.3 / 1.075)
    # Right (1/36 - 1/45)/(1/4 + 1/5) = .012346.
    assert row["late_push_correct"] == pytest.approx((1 / 180) / 0.45)
    others = summary.by_run["r0"].late_pushes
    assert others["grpo"]["push_incorrect"] == row["late_push_incorrect"]
    # Constant weights: -.8 + .8 = 0. Weights by micro-batch are not known.
    assert others["dr_grpo"]["push_incorrect"] == pytest.approx(0, abs=1e-12)
    assert np.isnan(others["bnpo"]["push_incorrect"]) and np.isnan(row["early_hazard_correct"])


def test_a_window_counts_each_step_once(tmp_path):
    # Step 9 as above; step 10 has equal rewards: no push, and its hazards count.
    rows = rollout_rows(9, [8, 2], [4, 5], cap=8) + rollout_rows(10, [5, 5], [], cap=8)
    row = one_run(tmp_path, rows).metrics.iloc[0]
    assert row["late_push_incorrect"] == pytest.approx(-0.48)
    assert row["late_added_incorrect"] == pytest.approx(-0.3 / 1.075)
    # 1 + 2 endings in 10 + 10 tokens.
    assert row["late_hazard_incorrect"] == pytest.approx(3 / 20)


def test_forced_tokens_and_masked_rows_are_those_that_the_run_recorded(tmp_path):
    rows = rollout_rows(10, [8, 2], [4, 5], cap=8)
    rows[0]["token_weight"] = 0.0  # cut, and masked out of the loss
    write_run(tmp_path, "r0", rows)
    write_plan(tmp_path, {"r0": {"arm": "grpo", "seed": 0}})
    write_json(tmp_path / "runs" / "r0" / "run.json", {"status": "completed", "forced_tokens": 2})
    row = summarise(load(tmp_path)).metrics.iloc[0]
    # Two forced tokens each: one ending in 6 + 0 free tokens, two in 2 + 3.
    assert row["late_hazard_incorrect"] == pytest.approx(1 / 6) and row["late_hazard_correct"] == pytest.approx(2 / 5)
    # The row that is left: e - p L = 1 - 0 with A < 0.
    assert row["late_push_incorrect"] == pytest.approx(-1)


def test_separation_is_growth_per_push(tmp_path):
    rows = []
    for step in range(1, 11):
        rows += rollout_rows(step, [8, 2 + (step > 5)], [4, 5 - (step > 5)], cap=8)
    row = one_run(tmp_path, rows).metrics.iloc[0]
    first, last = (np.log(h / (1 - h)) for h in (np.array([2 / 9, 1 / 10]), np.array([2 / 8, 1 / 11])))
    grown = (last[0] - last[1]) - (first[0] - first[1])
    assert row["separation"] > 0
    # Two kinds of step, five of each.
    pushed = [-0.3 / 1.075, (1 / 180) / 1.075]
    late_wrong = -(-(8 / 11) / 8 + (1 - 3 / 11) / 3) / (1 / 8 + 1 / 3 + 1 / 4 + 1 / 4)
    assert row["separation"] == pytest.approx(grown / (5 * (pushed[1] - pushed[0]) + 5 * (0 - late_wrong)))
