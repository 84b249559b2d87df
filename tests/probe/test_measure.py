"""Measuring: draws of each policy's own, pairs that never share batches, threads, and probes that are stopped."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.hazard_policy import EVEN_TASK, HazardPolicy, HazardSource
from support.trainer import model_folder

from lossbench.claims.probe_evidence import pooled
from lossbench.errors import UsageError
from lossbench.probe import jobs
from lossbench.probe.batches import MOMENT_STREAM, PAIR_STREAM, Sampling
from lossbench.probe.jobs import ProbeJob, draw_seed, prepare, run_job
from lossbench.probe.measure import is_complete, measure, probe_path
from lossbench.probe.prober import Prober, ProbeSettings
from lossbench.probe.projections import read_projections
from lossbench.store.read import read_facts, read_table

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "dr_grpo" / "probe"


@pytest.fixture
def job(tmp_path) -> ProbeJob:
    settings = ProbeSettings(Sampling(16, 4, 6), pairs=3, random_directions=1, moment_batches=1)
    return ProbeJob(model_folder(str(tmp_path)), None, EVEN_TASK, settings=settings, load_options={"device": "cpu"})


def test_policies_and_warm_starts_have_draws_of_their_own(job):
    seeds = {draw_seed(0, "selfcheck", 0), draw_seed(0, "selfcheck", 1), draw_seed(0, "selfcheck-null", 0),
             draw_seed(1, "selfcheck", 0)}  # fmt: skip
    assert len(seeds) == 4 and all(0 <= seed < 2**63 for seed in seeds)
    one, other = (prepare(replace(job, label=label)).source(PAIR_STREAM, 0) for label in "ab")
    assert one.prompt_id != other.prompt_id and one.completion_ids != other.completion_ids


def test_pairs_that_share_draws_are_counted_once():
    probes = [read_projections(REFERENCE / f"selfcheck-s{seed}.parquet")[0] for seed in (0, 1)]
    assert len(probes[0].windows_of_pair()) == 40
    apart = pooled(probes)
    assert [len(windows) for windows in apart.windows_of_pair()] == [2] * 80
    both = pooled([replace(probe, facts={**probe.facts, "draws": 7}) for probe in probes])
    assert [len(windows) for windows in both.windows_of_pair()] == [4] * 40


def test_every_batch_serves_one_pair_and_every_half_has_its_own_random_directions():
    policy = HazardPolicy(accuracy=0.5, stop_correct=0.3, stop_wrong=0.3)
    inner, asked = HazardSource(policy, 2, 4), []

    def source(stream, number):
        asked.append((stream, number))
        return inner(stream, number)

    settings = ProbeSettings(Sampling(8, 4), pairs=3, random_directions=2, moment_batches=2)
    prober = Prober(policy, source, settings)
    assert {stream for stream, _ in asked} == {MOMENT_STREAM}
    asked.clear()
    for number in range(3):
        prober.pair(number)
    assert asked == [(PAIR_STREAM, number) for number in range(6)]
    drawn = [torch.randn(4, generator=prober._generator(number)) for number in range(6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize("built_in", [False, True])
def test_a_probe_takes_no_more_threads_than_cores_and_a_built_in_policy_one(job, monkeypatch, built_in):
    monkeypatch.setattr(ProbeJob, "built_in", built_in)
    monkeypatch.setattr(jobs, "cores", lambda: 2)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        for _ in run_job(job, 1, [0]):
            seen.append(torch.get_num_threads())
        assert seen == [1 if built_in else 2] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_stopped_probe_keeps_whole_pairs_and_goes_on(job, tmp_path):
    path = probe_path(tmp_path / "out", job)

    def stop(progress):
        assert (progress.done, progress.pairs, progress.measured) == (1, 3, 1)
        assert len(progress.so_far().windows) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure([job], path, on_pair=stop)
    assert set(read_table(path, "probe")["pair"].to_pylist()) == {0} and not is_complete(path)
    seen = []
    measure([job], path, on_pair=seen.append)
    assert [progress.measured for progress in seen] == [1, 2] and is_complete(path)
    whole = measure([job], tmp_path / "whole.parquet")
    assert read_table(path, "probe").equals(read_table(whole, "probe"))
    measure([job], path, on_pair=lambda progress: pytest.fail("a pair was measured twice"))


def test_other_settings_or_another_policy_begin_again(job, tmp_path):
    job = replace(job, settings=replace(job.settings, pairs=1))
    path, done = measure([job], tmp_path / "p.parquet"), []
    other = replace(job, settings=replace(job.settings, random_directions=2))
    measure([other], path, on_pair=done.append)
    assert len(done) == 1 and read_facts(path)["settings"]["random_directions"] == 2
    Path(job.policy, "note.txt").write_text("the folder changed")
    measure([other], path, on_pair=done.append)
    assert len(done) == 2


def test_a_failed_probe_leaves_no_folder(job, tmp_path):
    never_right = replace(job, task="arithmetic")
    with pytest.raises(UsageError):
        measure([never_right], probe_path(tmp_path / "out", never_right))
    assert not (tmp_path / "out").exists()
