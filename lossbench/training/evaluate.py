"""Evaluation: a few completions per evaluation prompt, the same random numbers for all modes of a seed."""

from typing import Any

import torch

from lossbench.policies.loaded import LoadedPolicy
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.rollouts import sample
from lossbench.tasks.base import Task
from lossbench.tasks.judging import judge
from lossbench.training.rollout_data import eval_prompts
from lossbench.training.run_spec import RunSpec

_EVAL_STREAM = 1
_ROWS_PER_BATCH = 128


def evaluate(spec: RunSpec, policy: LoadedPolicy, task: Task, eos_ids: list[int], step: int) -> list[dict[str, Any]]:
    """A row of the `evals` table per completion, `step` optimizer steps into the run."""
    settings = spec.settings
    chosen = eval_prompts(task, settings.eval_samples)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(chosen), _ROWS_PER_BATCH):
        batch = chosen[start : start + _ROWS_PER_BATCH]
        encoded = policy.tokenizer([p.text for p, _ in batch], padding=True, padding_side="left", return_tensors="pt")
        uniforms_BT = row_uniforms(
            spec.seed,
            step,
            [prompt.id for prompt, _ in batch],
            [number for _, number in batch],
            settings.max_completion_length,
            stream=_EVAL_STREAM,
        )
        device = next(policy.model.parameters()).device
        with torch.no_grad():
            completions = sample(
                policy.model,
                encoded["input_ids"].to(device),
                encoded["attention_mask"].to(device),
                uniforms_BT.to(device),
                eos_token_ids=eos_ids,
                pad_token_id=policy.tokenizer.pad_token_id,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                greedy=settings.eval_greedy,
            )
        texts = policy.tokenizer.batch_decode(completions, skip_special_tokens=True)
        for i, ((prompt, number), text, ids) in enumerate(zip(batch, texts, completions, strict=True)):
            group = (start + i) // settings.eval_samples
            outcome = judge(task, prompt.text, prompt.answer, text, ids, eos_ids)
            rows.append({"step": step, "prompt_id": prompt.id, "group": group, "sample": number, **outcome})
    return rows
