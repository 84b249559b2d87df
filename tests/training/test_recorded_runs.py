"""What a run samples, evaluates and records: streams, groups, orders, metrics, and the sampler's settings."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.sweeps import quick_run
from support.trainer import Steps, relative, train

from lossbench.loss.surrogates import SurrogateParams
from lossbench.policies.loaded import LoadedPolicy
from lossbench.policies.tiny import TinyPolicy, make_model, make_tokenizer
from lossbench.sampling.draws import row_uniforms
from lossbench.tasks.selfcheck import SelfCheck
from lossbench.training import evaluate as evaluation
from lossbench.training import run as running
from lossbench.training import trainer as training

TWO_PROMPTS = """
from lossbench.tasks.selfcheck import SelfCheck

class Two(SelfCheck):
    def __init__(self):
        super().__init__()
        self.train_prompts = self.train_prompts[:2]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("policy"))


def _rollouts(folder: Path, **changes: Any) -> pd.DataFrame:
    running.execute(quick_run(**changes), folder)
    return pd.read_parquet(folder / "rollouts.parquet")


def test_generations_that_share_a_window_are_told_apart(tmp_path: Path) -> None:
    # two generations of eight rows make a step: rows numbered alike would be recorded once
    rows = _rollouts(tmp_path, steps=2, gradient_accumulation_steps=2, steps_per_generation=1)
    assert len(rows) == 2 * 2 * 8 and not rows.duplicated(["generation", "group", "sample"]).any()
    assert sorted(rows["step"]) == [1] * 16 + [2] * 16


def test_a_prompt_met_again_is_sampled_anew(tmp_path: Path) -> None:
    # two prompts fill four groups: each is twice in a generation, and the policy does not move
    (tmp_path / "two.py").write_text(TWO_PROMPTS)
    rows = _rollouts(
        tmp_path / "run", task=f"{tmp_path / 'two.py'}:Two", steps=2, learning_rate=1e-12, text=True,
        per_device_train_batch_size=16, num_generations=4, max_completion_length=24,
    )  # fmt: skip
    assert rows.groupby(["generation", "prompt_id"])["group"].nunique().tolist() == [2] * 4
    texts = [tuple(part.sort_values("sample")["completion"]) for _, part in rows.groupby(["generation", "group"])]
    assert len(set(texts)) == len(texts) == 8


def test_the_sampler_is_given_the_settings_in_training_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    for where, module in (("train", training), ("eval", evaluation)):

        def noted(*arguments: Any, where: str = where, original: Any = module.sample, **options: Any) -> Any:
            seen.append((where, options))
            return original(*arguments, **options)

        monkeypatch.setattr(module, "sample", noted)
    _rollouts(tmp_path, steps=1, temperature=0.7, top_p=0.8, top_k=5, eval_samples=1, eval_greedy=True)
    assert {where for where, _ in seen} == {"train", "eval"}
    for where, options in seen:
        assert (options["temperature"], options["top_p"], options["top_k"]) == (0.7, 0.8, 5)
        assert options.get("greedy", False) is (where == "eval")


class Some(SelfCheck):
    """More prompts than a batch of evaluation holds."""

    def __init__(self) -> None:
        super().__init__()
        self.eval_prompts = self.eval_prompts[:33]


def test_evaluation_has_groups_and_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def noted(seed: int, generation: int, *rest: Any, stream: int = 0) -> torch.Tensor:
        asked.append((seed, generation, stream))
        return row_uniforms(seed, generation, *rest, stream=stream)

    monkeypatch.setattr(evaluation, "row_uniforms", noted)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    policy = LoadedPolicy(make_model(TinyPolicy(hidden_size=16, heads=2, layers=1), len(tokenizer)), tokenizer)
    spec = quick_run(eval_samples=4, max_completion_length=12)
    first, later = (pd.DataFrame(evaluation.evaluate(spec, policy, Some(), [1], step)) for step in (0, 7))
    # 33 prompts, four samples each, in batches of 128 rows
    assert first.groupby("group")["prompt_id"].nunique().tolist() == [1] * 33
    assert first.groupby("group").size().tolist() == [4] * 33 and sorted(first["group"].unique()) == list(range(33))
    assert set(asked) == {(0, 0, 1), (0, 7, 1)}  # training's stream is 0
    assert (first["completion"] != later["completion"]).mean() > 0.5
    greedy = spec.model_copy(update={"settings": spec.settings.model_copy(update={"eval_greedy": True})})
    same = pd.DataFrame(evaluation.evaluate(greedy, policy, Some(), [1], 0)).groupby("group")["completion"].nunique()
    assert (same == 1).all() and (first.groupby("group")["completion"].nunique() > 1).any()


def test_a_binding_gradient_norm_clips_the_step_s_gradient_once(root: str) -> None:
    theirs, ours = (train(root, max_grad_norm=0.1, **kind) for kind in ({"loss_type": "dapo"}, {"mode": "dapo"}))
    assert float(theirs.gradients[0].norm()) == pytest.approx(0.1, rel=1e-3)  # as the optimizer takes it
    assert relative(ours.gradients[0], theirs.gradients[0]) < 1e-5
    logged = [side.trainer.state.log_history[0]["grad_norm"] for side in (ours, theirs)]
    assert logged[0] == pytest.approx(logged[1], rel=1e-4) and logged[0] > 0.2


def test_kl_entropy_and_clipped_share_are_trl_s(root: str) -> None:
    # one micro-batch a step, for TRL takes the mean over micro-batches; the second step is off-policy
    shared: dict[str, Any] = {
        "beta": 0.04, "num_iterations": 2, "max_steps": 2, "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 1, "learning_rate": 20.0, "epsilon": 0.02,
    }  # fmt: skip
    steps = Steps()
    theirs = train(root, loss_type="dapo", **shared)
    train(root, mode="dapo", recorder=steps, **shared)
    logs = [entry for entry in theirs.trainer.state.log_history if "loss" in entry]
    assert len(logs) == len(steps.stats) == 2 and logs[1]["kl"] > 0 and logs[1]["clip_ratio/region_mean"] > 0
    for log, stats in zip(logs, steps.stats, strict=True):
        assert stats.kl_sum is not None and stats.clipped_tokens is not None
        assert stats.kl_sum / stats.tokens == pytest.approx(log["kl"], rel=1e-3, abs=1e-7)
        assert stats.entropy_sum / stats.tokens == pytest.approx(log["entropy"], rel=1e-4)
        assert stats.clipped_tokens / stats.tokens == pytest.approx(log["clip_ratio/region_mean"], abs=1e-6)


@pytest.mark.parametrize("level", ["sequence", "sequence_token"])
def test_gspo_is_grpo_at_a_level_of_sequences_its_kl_term_too(root: str, level: Any) -> None:
    shared: dict[str, Any] = {"beta": 0.5, "num_iterations": 2, "max_steps": 2, "use_bias_correction_kl": True}
    given = None if level == "sequence" else SurrogateParams(importance_sampling_level=level)
    gspo = train(root, mode="gspo", params=given, **shared)
    grpo = train(root, mode="grpo", params=SurrogateParams(importance_sampling_level=level), **shared)
    token = train(root, mode="grpo", **shared)
    assert relative(gspo.gradients[1], grpo.gradients[1]) < 1e-6
    assert relative(gspo.gradients[1], token.gradients[1]) > 1e-4


def test_the_wall_time_of_a_step_leaves_evaluations_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause_s = 2.0

    def slow(*_: Any) -> list[dict[str, Any]]:
        time.sleep(pause_s)
        return []

    monkeypatch.setattr(running, "evaluate", slow)
    running.execute(quick_run(steps=2, eval_samples=1), tmp_path)
    wall_s = pd.read_parquet(tmp_path / "steps.parquet")["wall_s"]
    assert (wall_s > 0).all() and wall_s.iloc[0] < pause_s
