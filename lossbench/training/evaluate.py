"""Measurements of a policy in training: completions of evaluation prompts, and the probe's drifts."""

import logging
from typing import Any

from lossbench.errors import UsageError
from lossbench.policies.loaded import LoadedPolicy
from lossbench.probe.batches import Sampling
from lossbench.probe.jobs import draw_seed
from lossbench.probe.prober import ProbeSettings, probe_now
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.rollouts import sample
from lossbench.tasks.base import Task
from lossbench.tasks.judging import judge
from lossbench.training.run_spec import RunSpec

_EVAL_STREAM = 1
_ROWS_PER_BATCH = 128
_PROBE_PAIRS = 8

_log = logging.getLogger(__name__)


def evaluate(spec: RunSpec, policy: LoadedPolicy, task: Task, eos_ids: list[int], step: int) -> list[dict[str, Any]]:
    """A row of the `evals` table per completion, `step` optimizer steps into the run.

    All modes of a seed have the same random numbers.
    """
    settings, tokenizer = spec.settings, policy.tokenizer
    device = next(policy.model.parameters()).device
    chosen = [(prompt, number) for prompt in task.eval_prompts for number in range(settings.eval_samples)]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(chosen), _ROWS_PER_BATCH):
        prompts, numbers = zip(*chosen[start : start + _ROWS_PER_BATCH], strict=True)
        texts = [prompt.text for prompt in prompts]
        encoded = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt").to(device)
        uniforms_BT = row_uniforms(
            spec.seed, step, [prompt.id for prompt in prompts], numbers, settings.max_completion_length,
            stream=_EVAL_STREAM,
        ).to(device)  # fmt: skip
        completions = sample(
            policy.model, encoded["input_ids"], encoded["attention_mask"], uniforms_BT, eos_token_ids=eos_ids,
            pad_token_id=tokenizer.pad_token_id, temperature=settings.temperature, top_p=settings.top_p,
            top_k=settings.top_k, greedy=settings.eval_greedy,
        )  # fmt: skip
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        for prompt, number, text, ids in zip(prompts, numbers, texts, completions, strict=True):
            group = len(rows) // settings.eval_samples
            outcome = judge(task, prompt.text, prompt.answer, text, ids, eos_ids)
            rows.append({"step": step, "prompt_id": prompt.id, "group": group, "sample": number, **outcome})
    return rows


def probe(spec: RunSpec, policy: LoadedPolicy, task: Task, step: int) -> dict[str, list[Any]]:
    """Columns of the `probe` table, none where the run is not to be probed.

    Small enough to be taken while a run trains: eight pairs of batches, as large and drawn as the run's. Runs of one
    policy and seed share prompts and draws, others do not.
    """
    settings, seed = spec.settings, draw_seed(spec.seed, spec.policy, spec.policy_seed)
    if settings.probe_every is None:
        return {}
    sampling = Sampling(
        settings.rows_per_generation(), settings.num_generations, settings.max_completion_length, settings.temperature,
        seed,
    )  # fmt: skip
    setup = ProbeSettings(sampling, pairs=_PROBE_PAIRS, moment_batches=_PROBE_PAIRS // 2)
    try:
        return probe_now(policy.model, policy.tokenizer, task, setup, policy=spec.policy, step=step)
    except UsageError as error:
        # A policy that is right or wrong throughout has no gradient to probe; that is no reason to end its run.
        _log.warning("no probe at step %d: %s", step, error)
        return {}
