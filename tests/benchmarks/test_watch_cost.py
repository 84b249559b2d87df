"""What `lossbench.watch` adds to a stock TRL step of 512 completions on the built-in policy, every completion kept."""

import time
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import lossbench
from lossbench.diagnosis.watch import Watcher
from lossbench.policies.load import load_policy
from lossbench.tasks import make_task

STEPS, PROMPTS = 3, 64


@pytest.mark.benchmark
def test_watching_costs_at_most_one_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, task = load_policy("selfcheck", 0), make_task("selfcheck", {})
    spent = []
    take = Watcher._take

    def timed(self, *args):
        began = time.perf_counter()
        take(self, *args)
        spent.append(time.perf_counter() - began)

    monkeypatch.setattr(Watcher, "_take", timed)
    rows = (task.train_prompts * 2)[: PROMPTS * STEPS]
    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=512, num_generations=8, max_completion_length=128,
        max_steps=STEPS, report_to="none", use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
        logging_steps=1, loss_type="grpo",
    )  # fmt: skip

    def right(completions, answer, **_):
        return [float(text.startswith(wanted)) for text, wanted in zip(completions, answer, strict=True)]

    trainer = GRPOTrainer(
        model=policy.model, args=args, processing_class=policy.tokenizer,
        reward_funcs=lossbench.watch(right, args, save=tmp_path / "watched"),
        train_dataset=Dataset.from_dict({"prompt": [p.text for p in rows], "answer": [p.answer for p in rows]}),
    )  # fmt: skip
    began = time.perf_counter()
    trainer.train()
    step_s = (time.perf_counter() - began) / STEPS
    watch_s = sorted(spent)[len(spent) // 2]
    print(f"step {step_s:.2f} s, watch {watch_s * 1e3:.1f} ms, {watch_s / step_s:.2%}")
    assert watch_s <= 0.01 * step_s
