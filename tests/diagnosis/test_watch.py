"""`lossbench.watch` around reward functions: by hand, and inside TRL's own trainer."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from support.trainer import CAP, GROUP, PROMPTS, model_folder, settings

import lossbench
from lossbench.diagnosis.watch import group_numbers, watch
from lossbench.errors import UsageError
from lossbench.policies.tiny import make_tokenizer

EOS = 1
CONFIG = SimpleNamespace(
    num_generations=2, max_completion_length=4, loss_type="grpo", scale_rewards="group", reward_weights=None, seed=3,
    max_steps=2,
)  # fmt: skip
CALL: dict[str, Any] = {
    "prompts": ["a", "a", "b", "b"], "completions": ["xy", "xyz", "wxyz", "x"],
    "completion_ids": [[5, EOS], [5, 6, EOS], [5, 6, 7, 8], [EOS]],
}  # fmt: skip


def rewards(completions: list[str], **_: Any) -> list[float | None]:
    return [1.0, 0.0, 0.0, None]


class Logged(dict[str, float]):
    """Stands in for the trainer behind `log_metric`."""

    def __init__(self, training: bool = True) -> None:
        self.model = SimpleNamespace(training=training)

    def log_metric(self, name: str, value: float) -> None:
        self[name] = value


def call(watched: Callable[..., Any], step: int = 0, log: Logged | None = None, **changes: Any) -> Any:
    extra = {} if log is None else {"log_metric": log.log_metric}
    return watched(**{**CALL, **changes}, trainer_state=SimpleNamespace(global_step=step), **extra)


def test_rewards_come_back_as_they_are_and_lengths_are_logged() -> None:
    log = Logged()
    assert call(watch(rewards, CONFIG), log=log) == [1.0, 0.0, 0.0, None]
    # Right: 2 tokens. Wrong: 3 and 4 tokens, the second cut at the cap of 4. The last has no reward, so no verdict.
    assert log == {
        "lossbench/length_correct": 2.0, "lossbench/length_incorrect": 3.5, "lossbench/length_ratio": 1.75,
        "lossbench/truncated_correct": 0.0, "lossbench/truncated_incorrect": 0.5,
        "lossbench/stop_hazard_correct": 0.5, "lossbench/stop_hazard_incorrect": pytest.approx(1 / 7),
    } | {name: log[name] for name in log if "push" in name}  # fmt: skip


def test_a_list_counts_together_with_its_weights() -> None:
    config = SimpleNamespace(**{**vars(CONFIG), "reward_weights": [0.7, 0.3]})
    log = Logged()
    first, second = watch([rewards, lambda **_: [0.0, 1.0, 1.0, 1.0]], config, correct_above=0.25)
    ids = CALL["completion_ids"]
    call(first, log=log, completion_ids=ids)
    assert not log
    call(second, log=log, completion_ids=ids)
    # .7 · 1 + .3 · 0 = .7, then .3 three times: all above .25, so every completion is right: (2 + 3 + 4 + 1) / 4.
    assert log["lossbench/length_correct"] == 2.5 and "lossbench/length_incorrect" not in log
    with pytest.raises(UsageError, match="reward_weights has 2 numbers for 1"):
        watch([rewards], config)


def test_async_functions_stay_async() -> None:
    async def slow(**_: Any) -> list[float]:
        return [1.0, 0.0, 0.0, 0.0]

    log = Logged()
    assert asyncio.run(call(watch(slow, CONFIG), log=log)) == [1.0, 0.0, 0.0, 0.0]
    assert log["lossbench/length_correct"] == 2.0


def test_a_verdict_of_ones_own_sees_the_columns() -> None:
    log = Logged()
    watched = watch(rewards, CONFIG, correct=lambda prompt, completion, answer: completion == answer)
    call(watched, log=log, answer=["", "xyz", "wxyz", ""])
    assert log["lossbench/length_correct"] == 3.5


def test_groups_are_rows_of_one_prompt() -> None:
    assert group_numbers(["a", "a", "a", "b"], None) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert group_numbers([], 4) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "is not callable"),
        ((rewards, None, "grp"), "mode"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[Any, ...], message: str) -> None:
    function, *rest = arguments
    with pytest.raises(UsageError, match=message):
        watch(function, *rest[:1], mode=rest[1] if len(rest) > 1 else None)
    with pytest.raises(UsageError, match="needs the loss mode"):
        watch(rewards, save="somewhere")
    with pytest.raises(UsageError, match="completion_ids"):
        watch(rewards)(prompts=["a"], completions=["x"])


def test_the_folder_is_a_sweep_while_it_grows_and_after(tmp_path: Path) -> None:
    watched = watch(rewards, CONFIG, save=tmp_path / "mine")
    call(watched, 0, Logged())
    call(watched, 1, Logged())
    call(watched, 1, Logged(training=False))
    sweep = lossbench.load(tmp_path / "mine")
    assert list(sweep.runs["mode"]) == ["grpo"] and list(sweep.runs["seed"]) == [3]
    assert list(sweep.steps["step"]) == [1, 2] and list(sweep.steps["length_incorrect"]) == [3.5, 3.5]
    assert list(sweep.rollouts["length_tokens"]) == [2, 3, 4, 1] * 2
    assert sweep.rollouts["terminated"].tolist() == [True, True, False, True] * 2
    assert list(sweep.rollouts["group"])[:4] == [0, 0, 1, 1]
    assert list(sweep.evals["step"]) == [1] * 4


def test_a_run_that_goes_on_drops_what_it_makes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("lossbench.diagnosis.watch.atexit.register", at_exit.append)
    first = watch(rewards, CONFIG, save=tmp_path / "mine")
    for step in range(3):
        call(first, step, Logged())
    at_exit[0]()  # the first process ends, and its lock with it
    call(watch(rewards, CONFIG, save=tmp_path / "mine"), 1, Logged())
    assert list(lossbench.load(tmp_path / "mine").rollouts["step"].unique()) == [1, 2]


def test_processes_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        call(watch(rewards, CONFIG, save=tmp_path / "mine"), 0, Logged())
    rows = lossbench.load(tmp_path / "mine").rollouts
    assert len(rows) == 8 and rows["group"].tolist() == [0, 0, 1, 1, 4, 4, 5, 5]
    assert rows["prompt_id"].nunique() == 2


def test_inside_the_stock_trainer(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM
    from trl import GRPOTrainer

    args = settings(str(tmp_path), per_device_train_batch_size=16, gradient_accumulation_steps=1, max_steps=2)
    even = lambda completion_ids, **_: [float(len(ids) % 2 == 0) for ids in completion_ids]  # noqa: E731
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder(str(tmp_path))), args=args,
        reward_funcs=lossbench.watch(even, args, save=tmp_path / "mine"), processing_class=make_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}),
    )  # fmt: skip
    trainer.train()
    rows = lossbench.load(tmp_path / "mine").rollouts
    assert len(rows) == 32 and set(rows["step"]) == {1, 2}
    assert rows.groupby(["generation", "group"]).size().eq(GROUP).all()
    assert rows["length_tokens"].between(1, CAP).all()
    assert (rows["correct"] == (rows["length_tokens"] % 2 == 0)).all()
    logged = [entry for entry in trainer.state.log_history if "lossbench/length_incorrect" in entry]
    assert len(logged) == 2
