"""Predicted drift beside what training did, on sweeps whose numbers are worked out by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from support.made_sweeps import SHARED, Plan, make_sweep, run_labels, sweep_spec

from lossbench.claims.probe_evidence import probe_section
from lossbench.loss.modes import parse_mode
from lossbench.metrics.length import run_metrics
from lossbench.metrics.step_sums import completions_sql
from lossbench.probe.drift import DriftTable
from lossbench.probe.forecast import forecast
from lossbench.probe.projections import Projections, Window, projections_of, read_projections
from lossbench.probe.realised import (
    TrainedDrift,
    late_lengths,
    order_checks,
    rank_agreement,
    run_totals,
    trained_drifts,
)
from lossbench.report.data import gather
from lossbench.store.read import Sweep, load
from lossbench.store.write import table_file, write_json, write_table

SEQ_MEAN, TOKEN_SUM = "grpo@seq-mean-token-mean/none", "grpo@token-sum/none"
# Two groups of two: rewards 1 0 | 0 1, so advantages are .5 -.5 | -.5 .5.
LENGTHS, CORRECT = (2, 4, 8, 2), (True, False, False, True)
INCORRECT, RANDOM = np.array([3.0, 1.0, -2.0, 4.0]), np.array([1.0, -1.0, 2.0, 0.5])
# seq-mean-token-sum, w = 1/4: along the first it pulls (1.5 - .5 + 1 + 2)/4 = 1, along the random one .0625;
# seq-mean-token-mean, w = 1/(4L): (.75 - .125 + .125 + 1)/4 = .4375, and (.25 + .125 - .125 + .125)/4 = .09375.
# At the baseline's gradient norm it pulls .4375 * .0625 / .09375; at its mean row weight, 4/4 against 1.375/4,
# .4375 / .34375, which is .272727 more than the baseline.
RAW_BY_NORM, EXTRA_BY_WEIGHT = 0.4375 * 2 / 3, 0.4375 / 0.34375 - 1


def probe_rows(step: int, factors: Sequence[float], metrics: Sequence[str] = ("adam",)) -> dict[str, list[Any]]:
    """Both halves of a pair per factor, which multiplies the projections on incorrect length."""
    rows: list[dict[str, Any]] = []
    for pair, factor in enumerate(factors):
        for half, metric in ((half, metric) for half in (0, 1) for metric in metrics):
            for direction, values in (("incorrect", factor * INCORRECT), ("random-0", RANDOM)):
                rows += [
                    {"policy": "tiny", "step": step, "pair": pair, "half": half, "prompt_id": i // 2, "group": i // 2,
                     "sample": i % 2, "length_tokens": LENGTHS[i], "terminated": True, "reward": float(CORRECT[i]),
                     "correct": CORRECT[i], "direction": direction, "metric": metric, "projection": values[i]}
                    for i in range(4)
                ]  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def keep_probe(
    path: Path, policy: str, policy_seed: int | None, factors: Sequence[float], steps: Sequence[int] = (0,)
) -> None:
    """A file as `lossbench probe` keeps it."""
    with table_file(path, "probe", {"policy_seed": policy_seed}) as append:
        for step in steps:
            rows = probe_rows(step, factors, ["plain", "adam"])
            append({**rows, "policy": [policy] * len(rows["policy"])})


def joined(*tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}


def probed_run(
    folder: Path, run_id: str, lengths: Mapping[int, float | None], probes: dict[str, list[Any]] | None
) -> None:
    """A run with nothing but its probes and the mean incorrect length of each step."""
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True)
    columns: dict[str, list[Any]] = {"step": list(lengths), "length_incorrect": list(lengths.values())}
    write_table(run_dir / "steps.parquet", "steps", columns)
    if probes is not None:
        write_table(run_dir / "probe.parquet", "probe", probes)
    write_json(run_dir / "run.json", {"status": "completed", "steps_done": len(lengths)})


def planned(folder: Path, arms: Sequence[tuple[str, int]]) -> list[str]:
    """Plan a sweep of these arms and seeds, in steps of eight completions at a learning rate of .1; the runs' ids."""
    runs = dict(run_labels(arm, seed) for arm, seed in arms)
    spec = sweep_spec(Plan(steps=20), {run_id: {**labels, "steps_planned": 20} for run_id, labels in runs.items()})
    shared = {**SHARED, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 0.1}
    write_json(folder / "sweep.json", {**spec, "shared": shared})
    return list(runs)


def test_predicted_and_realised_change_of_each_stretch(tmp_path):
    (run_id, other, silent) = planned(tmp_path, [(SEQ_MEAN, 0), ("dr_grpo", 0), (SEQ_MEAN, 1)])
    bent = {step: 20 + 0.3 * step if step <= 10 else 18 + 0.5 * step for step in range(1, 21)}
    probed_run(tmp_path, run_id, bent, joined(probe_rows(0, [1.0]), probe_rows(10, [2.0])))
    probed_run(tmp_path, other, {**bent, 3: None}, probe_rows(0, [1.0, 3.0]))
    (tmp_path / "runs" / silent).mkdir()
    found = trained_drifts(load(tmp_path))
    assert [(point.run_id, point.arm, point.step, point.step_end) for point in found] == [
        (run_id, SEQ_MEAN, 0, 10), (run_id, SEQ_MEAN, 10, 20), (other, "dr_grpo", 0, 20),
    ]  # fmt: skip
    # learning rate .1, 10 steps, twice the probe's rows: .1 * 10 * sqrt(8 / 4) of the drift at the baseline's norm
    first, second, third = found
    assert first.predicted_tokens == pytest.approx(2**0.5 * RAW_BY_NORM)
    assert second.predicted_tokens == pytest.approx(2 * first.predicted_tokens)
    assert (first.realised_tokens, second.realised_tokens) == (pytest.approx(3.0), pytest.approx(5.0))
    # Dr. GRPO's gradient is the baseline's but for its size: a pull of 1 and 3, over 20 steps
    assert third.predicted_tokens == pytest.approx(0.1 * 20 * 2**0.5 * 2)
    predicted, realised = run_totals(found)[run_id]
    assert (predicted, realised) == (pytest.approx(3 * 2**0.5 * RAW_BY_NORM), pytest.approx(8.0))


def test_stretches_that_say_nothing_are_left_out(tmp_path):
    flat = dict.fromkeys(range(1, 21), 20.0)
    short, plain, wordless = planned(tmp_path, [(SEQ_MEAN, 0), (SEQ_MEAN, 1), (SEQ_MEAN, 2)])
    probed_run(tmp_path, short, flat, joined(probe_rows(0, [1.0]), probe_rows(18, [1.0])))
    probed_run(tmp_path, plain, flat, probe_rows(0, [1.0], ["plain"]))
    probed_run(tmp_path, wordless, dict.fromkeys(range(1, 21)), probe_rows(0, [1.0]))
    # two steps after step 18 have no trend, the plain metric says nothing of Adam's steps, and no length no change
    (point,) = trained_drifts(load(tmp_path))
    assert (point.run_id, point.step, point.step_end) == (short, 0, 18)
    assert point.realised_tokens == pytest.approx(0, abs=1e-9)


def test_micro_token_mean_is_predicted_with_the_sweeps_own_micro_batches(tmp_path):
    (run_id,) = planned(tmp_path, [("grpo@micro-token-mean/none", 0)])
    probed_run(tmp_path, run_id, dict.fromkeys(range(1, 21), 20.0), probe_rows(0, [1.0]))
    spec = load(tmp_path).spec
    write_json(tmp_path / "sweep.json", {**spec, "shared": {**spec["shared"], "per_device_train_batch_size": 1}})
    # one row per micro-batch: seq-mean-token-mean, but for now two rows a step of .1, 20 steps
    (point,) = trained_drifts(load(tmp_path))
    assert point.predicted_tokens == pytest.approx(0.1 * 20 * (2 / 4) ** 0.5 * RAW_BY_NORM)


def test_rank_agreement_is_spearmans_with_ties_and_an_interval():
    predicted, realised = [1.0, 2.0, 2.0, 4.0, 7.0, 9.0], [3.0, 1.0, 4.0, 4.0, 9.0, 8.0]
    found = rank_agreement(predicted, realised)
    # ranks 1 2.5 2.5 4 5 6 and 2 1 3.5 3.5 6 5, from their means 3.5: the products are
    # 3.75 + 2.5 + 0 + 0 + 3.75 + 3.75 = 13.75, the squares 6.25 + 1 + 1 + .25 + 2.25 + 6.25 = 17 on both sides
    assert found.units == 6 and found.correlation.estimate == pytest.approx(13.75 / 17)
    assert found.correlation.estimate == pytest.approx(scipy_stats.spearmanr(predicted, realised).statistic)
    # atanh .80882 = 1.12362, error sqrt((1 + .65419 / 2) / 3) = .66511, times 1.95996: 1.30358
    assert found.correlation.low == pytest.approx(np.tanh(1.12362 - 1.30358), abs=1e-4)
    assert found.correlation.high == pytest.approx(np.tanh(1.12362 + 1.30358), abs=1e-4)


def test_rank_agreement_without_an_interval():
    of_three = rank_agreement([1, 2, 3], [1, 3, 2])
    assert of_three.correlation.estimate == pytest.approx(0.5) and np.isnan(of_three.correlation.low)
    perfect = rank_agreement([1, 2, 3, 4], [2, 4, 6, 8])
    assert perfect.correlation.estimate == pytest.approx(1) and np.isnan(perfect.correlation.high)
    assert np.isnan(rank_agreement([1.0], [2.0]).correlation.estimate)


def table(factors: Sequence[float] = (0.9, 1.0, 1.1, 1.2)) -> DriftTable:
    windows = [
        Window(pair, half, np.array(LENGTHS), np.array([0, 0, 1, 1]), np.array(CORRECT, dtype=float), np.array(CORRECT),
               np.ones(4, bool), {("plain", "incorrect"): factor * INCORRECT, ("plain", "random-0"): RANDOM})
        for pair, factor in enumerate(factors)
        for half in (0, 1)
    ]  # fmt: skip
    return DriftTable(Projections("tiny", 0, windows, {"horizon": 16}))


UP, LEVEL = {seed: 30.0 + seed for seed in range(6)}, {seed: 20.0 + seed for seed in range(6)}
DOWN = {seed: 10.0 + seed for seed in range(6)}
AROUND = {seed: 20.0 + seed + (1 if seed % 2 else -1) for seed in range(6)}


@pytest.mark.parametrize(
    ("mode", "lengths", "verdict"),
    [
        (SEQ_MEAN, UP, "agree"),
        (SEQ_MEAN, DOWN, "disagree"),
        (SEQ_MEAN, AROUND, "only the drift differs"),
        (TOKEN_SUM, UP, "only the lengths differ"),
        (TOKEN_SUM, AROUND, "neither differs"),
    ],
)
def test_the_verdict_on_two_orders(mode, lengths, verdict):
    (check,) = order_checks(table(), {mode: lengths, "dr_grpo": LEVEL})
    assert (check.mode_a, check.mode_b, check.verdict) == (mode, "dr_grpo", verdict)
    # factors .9 to 1.2 have the mean 1.05; token-sum's weights are the baseline's times 4, so it drifts by nothing
    assert check.drift.estimate == pytest.approx(1.05 * EXTRA_BY_WEIGHT if mode == SEQ_MEAN else 0)
    assert check.realised_tokens == pytest.approx(np.mean([lengths[seed] - LEVEL[seed] for seed in range(6)]))
    # six differences of one sign: 2 of 2^6 patterns; three of each sign: all of them
    assert check.p == (1.0 if lengths is AROUND else 2 / 64)


def test_orders_are_checked_on_shared_seeds_of_equal_scale_rewards():
    assert order_checks(table(), {SEQ_MEAN: UP, "grpo": LEVEL}) == []
    assert order_checks(table(), {SEQ_MEAN: {0: 30.0}, "dr_grpo": {1: 20.0}}) == []
    (check,) = order_checks(table(), {SEQ_MEAN: UP, "dr_grpo": {0: 20.0, 1: 20.0, 9: 90.0}})
    assert check.realised_tokens == pytest.approx(10.5) and check.p == 0.5


@pytest.fixture(scope="module")
def sweep_dir(tmp_path_factory) -> Path:
    """Random runs of three arms, two of them probed along the way, and a frozen probe beside one that is damaged."""
    folder = tmp_path_factory.mktemp("probed")
    arms = (SEQ_MEAN, "dr_grpo", f"{SEQ_MEAN}[selfcheck-null]")
    make_sweep(folder, Plan(arms=arms, seeds=6, grow={SEQ_MEAN: 28.0}, text=False))
    (folder / "probe").mkdir()
    keep_probe(folder / "probe" / "selfcheck-s0.parquet", "selfcheck", 0, [0.9, 1.0, 1.1, 1.2])
    (folder / "probe" / "torn.parquet").write_bytes(b"PAR1")
    return folder


def test_the_section_of_a_probed_sweep(sweep_dir):
    sweep = load(sweep_dir)
    metrics = run_metrics(sweep)
    section = probe_section(sweep, metrics)
    assert section is not None and section.frozen is not None
    found = section.frozen
    assert (found.policies, found.pairs, found.completions) == (["selfcheck, warm start 0"], 4, 4 * 2 * 4)
    # of each mode once, although two arms share one
    assert list(dict.fromkeys(row.mode for row in found.drifts)) == [SEQ_MEAN, "dr_grpo"]
    drift = next(row for row in found.drifts if (row.metric, row.match) == ("plain", "row-weight"))
    assert drift.drift == pytest.approx(1.05 * EXTRA_BY_WEIGHT)
    assert found.claim.pairs == 4 and found.drifts_by_policy == []
    (check,) = found.orders
    assert (check.mode_a, check.mode_b, check.verdict) == (SEQ_MEAN, "dr_grpo", "agree")
    own = metrics[(metrics["arm"] == SEQ_MEAN) & (metrics["seed"] == 2)]["late_length_incorrect"].item()
    assert late_lengths(metrics)[SEQ_MEAN][2] == own  # and not that of the null policy's arm
    assert section.trained == [] and section.agreement is None
    (problem,) = section.problems
    assert "torn.parquet" in problem


def test_only_probes_of_what_the_runs_start_from_are_shown_and_several_are_pooled(tmp_path):
    planned(tmp_path, [(SEQ_MEAN, 0), ("dr_grpo", 0)])
    spec = load(tmp_path).spec
    runs = {run_id: {**run, "policy_seed": seed} for seed, (run_id, run) in enumerate(spec["runs"].items())}
    write_json(tmp_path / "sweep.json", {**spec, "runs": runs})
    (tmp_path / "probe").mkdir()
    keep_probe(tmp_path / "probe" / "selfcheck-s0.parquet", "selfcheck", 0, [1.0, 3.0])
    keep_probe(tmp_path / "probe" / "selfcheck-s1.parquet", "selfcheck", 1, [4.0, 4.0])
    # by name these would come first; the policy, the warm start or the step is another
    keep_probe(tmp_path / "probe" / "a-null-s0.parquet", "selfcheck-null", 0, [9.0, 9.0])
    keep_probe(tmp_path / "probe" / "b-s2.parquet", "selfcheck", 2, [9.0, 9.0])
    keep_probe(tmp_path / "probe" / "c-later.parquet", "selfcheck", 0, [9.0, 9.0], steps=[50])
    sweep = load(tmp_path)
    section = probe_section(sweep, run_metrics(sweep))
    assert section is not None and section.frozen is not None
    found = section.frozen
    assert (found.policies, found.pairs) == (["selfcheck, warm start 0", "selfcheck, warm start 1"], 4)
    # the mean of factors 1, 3, 4, 4; apart, those of 1, 3 and of 4, 4
    assert found.drifts[0].drift == pytest.approx(3 * EXTRA_BY_WEIGHT)
    apart = [drifts[0].drift for drifts in found.drifts_by_policy]
    assert apart == [pytest.approx(2 * EXTRA_BY_WEIGHT), pytest.approx(4 * EXTRA_BY_WEIGHT)]
    assert section.left_out == [
        "a-null-s0.parquet (selfcheck-null, warm start 0, step 0)", "b-s2.parquet (selfcheck, warm start 2, step 0)",
        "c-later.parquet (selfcheck, warm start 0, step 50)",
    ]  # fmt: skip


def test_probes_of_a_runs_checkpoints_stand_beside_what_it_did(tmp_path):
    (run_id,) = planned(tmp_path, [(SEQ_MEAN, 0)])
    probed_run(tmp_path, run_id, {step: 20 + 0.3 * step for step in range(1, 21)}, None)
    (tmp_path / "probe").mkdir()
    keep_probe(tmp_path / "probe" / "run.parquet", run_id, None, [1.0], steps=[0, 10])
    sweep = load(tmp_path)
    section = probe_section(sweep, run_metrics(sweep))
    assert section is not None and section.frozen is None and section.left_out == []
    assert [(point.step, point.step_end) for point in section.trained] == [(0, 10), (10, 20)]
    assert section.trained[0].predicted_tokens == pytest.approx(2**0.5 * RAW_BY_NORM)


def test_dividing_by_the_standard_deviation_changes_no_step_of_adam(tmp_path):
    # both groups have rewards 1 and 0, of standard deviation sqrt(.5): the same gradient but for its size
    of_group, of_none = planned(tmp_path, [("grpo", 0), (SEQ_MEAN, 0)])
    for run_id in (of_group, of_none):
        probed_run(tmp_path, run_id, dict.fromkeys(range(1, 21), 20.0), probe_rows(0, [1.0, 3.0]))
    with_std, without = trained_drifts(load(tmp_path))
    assert with_std.predicted_tokens == pytest.approx(without.predicted_tokens, rel=1e-3)
    (probe,) = projections_of(pd.DataFrame(probe_rows(0, [1.0, 1.2, 1.1])))
    table = DriftTable(probe)
    size = {"steps": 10, "rows_per_step": 4, "learning_rate": 0.1, "seeds": 8}
    group, none = (forecast(table, parse_mode(name), **size) for name in ("grpo", SEQ_MEAN))
    assert group.change_tokens == pytest.approx(none.change_tokens, rel=1e-3)
    assert group.noise_tokens == pytest.approx(none.noise_tokens, rel=1e-3)
    # but for the 1e-4 that is added to a standard deviation
    assert table.unit("group") == pytest.approx(0.5**0.5, rel=1e-3) and table.unit("none") == 1


def test_a_sweep_without_probes_has_no_section(tmp_path):
    make_sweep(tmp_path, Plan(arms=("grpo", "dr_grpo"), seeds=2, steps=10, text=False))
    sweep = load(tmp_path)
    assert probe_section(sweep, run_metrics(sweep)) is None


def test_agreement_counts_runs_and_not_stretches(tmp_path):
    ids = planned(tmp_path, [(SEQ_MEAN, seed) for seed in range(5)])
    for number, run_id in enumerate(ids):
        rising = {step: 20 + 0.1 * (number + 1) * step for step in range(1, 21)}
        # the larger the drift, the longer; but the last two runs change places
        factor = [1.0, 2.0, 3.0, 5.0, 4.0][number]
        probed_run(tmp_path, run_id, rising, joined(probe_rows(0, [factor]), probe_rows(10, [factor])))
    sweep = load(tmp_path)
    section = probe_section(sweep, run_metrics(sweep))
    assert section is not None and section.frozen is None
    assert len(section.trained) == 10 and section.agreement is not None
    # 1 - 6 * (1 + 1) / (5 * 24)
    assert section.agreement.units == 5 and section.agreement.correlation.estimate == pytest.approx(0.9)
    assert run_totals([TrainedDrift("r", "a", 0, 1, 1.0, 2.0), TrainedDrift("r", "a", 1, 2, 0.5, 1.0)]) == {
        "r": (1.5, 3.0)
    }


def test_a_report_reads_the_completions_of_a_probed_sweep_once(sweep_dir, monkeypatch):
    summed: list[str] = []
    original = Sweep.query

    def counting(self: Sweep, run_id: str, name: str, columns: Any, sql: Any) -> Any:
        if name == "rollouts" and sql is completions_sql:
            summed.append(run_id)
        return original(self, run_id, name, columns, sql)

    monkeypatch.setattr(Sweep, "query", counting)
    data = gather(load(sweep_dir))
    assert data.probe is not None and data.probe.frozen is not None and data.probe.frozen.orders
    assert len(summed) == len(set(summed)) == 18


def test_a_kept_probe_gives_the_drifts_of_its_arrays(sweep_dir):
    (probe,) = read_projections(sweep_dir / "probe" / "selfcheck-s0.parquet")
    ours = DriftTable(probe).drift(parse_mode(SEQ_MEAN), "incorrect", "plain", "row-weight")
    assert ours.drift == pytest.approx(table().drift(parse_mode(SEQ_MEAN), "incorrect", "plain", "row-weight").drift)
