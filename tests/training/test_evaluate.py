"""Evaluation: numbers of groups, and the settings and random streams that reach the sampler."""

from typing import Any

import pytest
import torch
from support.sweeps import quick_run
from support.trainer import model_folder
from transformers import AutoModelForCausalLM

import lossbench.training.evaluate as evaluation
from lossbench.policies.loaded import LoadedPolicy
from lossbench.policies.tiny import make_tokenizer
from lossbench.sampling.draws import row_uniforms
from lossbench.tasks import make_task


@pytest.fixture
def policy(tmp_path) -> LoadedPolicy:
    return LoadedPolicy(AutoModelForCausalLM.from_pretrained(model_folder(str(tmp_path))), make_tokenizer())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Keyword arguments of each call of the sampler, which gives each row one EOS."""
    calls: list[dict[str, Any]] = []

    def sampler(model: Any, ids_BP: torch.Tensor, mask_BP: torch.Tensor, uniforms_BT: torch.Tensor, **keywords: Any):
        calls.append({**keywords, "uniforms_BT": uniforms_BT})
        return [[1]] * len(ids_BP)

    monkeypatch.setattr(evaluation, "sample", sampler)
    return calls


def test_groups_are_numbered_over_all_prompts(policy, seen):
    # 100 prompts x 4 samples are 400 rows in batches of 128, so groups cross the seams between batches.
    rows = evaluation.evaluate(quick_run(eval_samples=4), policy, make_task("selfcheck"), [1], 0)
    assert [row["group"] for row in rows] == [i // 4 for i in range(400)]
    assert [row["sample"] for row in rows[:5]] == [0, 1, 2, 3, 0] and len(seen) == 4


def test_settings_reach_the_sampler(policy, seen):
    spec = quick_run(eval_samples=1, temperature=0.7, top_p=0.8, top_k=5, eval_greedy=True)
    evaluation.evaluate(spec, policy, make_task("selfcheck"), [1], 0)
    keywords = {name: seen[0][name] for name in ("temperature", "top_p", "top_k", "greedy")}
    assert keywords == {"temperature": 0.7, "top_p": 0.8, "top_k": 5, "greedy": True}


def test_draws_have_a_stream_of_their_own_that_moves_with_the_step(policy, seen):
    spec = quick_run(eval_samples=1)
    for step in (0, 7):
        evaluation.evaluate(spec, policy, make_task("selfcheck"), [1], step)
    cap = spec.settings.max_completion_length
    for call, step in ((seen[0], 0), (seen[1], 7)):
        first = row_uniforms(spec.seed, step, range(100), [0] * 100, cap, stream=1)
        assert torch.equal(call["uniforms_BT"], first)
