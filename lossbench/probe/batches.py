"""Rollout batches for the probe: drawn from a policy, and cut into chunks of similar length for passes over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossbench.errors import UsageError
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.length_chunks import length_chunks
from lossbench.sampling.rollouts import sample
from lossbench.tasks.base import Task
from lossbench.tasks.judging import judge

PAIR_STREAM, MOMENT_STREAM = 16, 17
"""Streams of random numbers of the probe: its pairs, and the batches behind the second moments."""

# Cost of a chunk beside its positions, in positions: what a pass over the built-in policy costs however small it is.
_OVERHEAD_POSITIONS = 300


@dataclass(frozen=True)
class ProbeBatch:
    """B completions with their prompts, as token ids, and what the verifier said of each; lists of length B."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    prompt_id: list[int]
    group: list[int]
    sample: list[int]
    terminated: list[bool | None]
    reward: list[float]
    correct: list[bool]

    @property
    def lengths_B(self) -> Tensor:
        """Completion tokens, EOS included, int64 (B)."""
        return torch.tensor([len(ids) for ids in self.completion_ids])


BatchSource = Callable[[int, int], ProbeBatch]
"""Gives batch `number` of a stream, always the same one for the same two numbers: `source(stream, number)`."""


@dataclass(frozen=True)
class Chunk:
    """Rows passed through the model together, padded on the right.

    `rows_R` are their numbers in the batch; `ids_RS` prompt, completion and padding; `start` the first position whose
    token may belong to a completion; `live_RT` marks completion tokens among positions `start` to S - 1; `real_RS`
    marks tokens that are not padding.
    """

    rows_R: Tensor
    ids_RS: Tensor
    start: int
    live_RT: Tensor
    real_RS: Tensor


def make_chunks(batch: ProbeBatch, max_positions: int, device: torch.device) -> list[Chunk]:
    """The batch's non-empty rows, sorted by length and cut so that no chunk exceeds `max_positions` (one row may)."""
    totals = [len(p) + len(c) for p, c in zip(batch.prompt_ids, batch.completion_ids, strict=True)]
    kept = [row for row, ids in enumerate(batch.completion_ids) if ids]
    if not kept:
        return []
    pieces = length_chunks(
        [totals[row] for row in kept],
        prompt_tokens=0,
        overhead_positions=_OVERHEAD_POSITIONS,
        max_positions=max_positions,
    )
    return [_chunk(batch, [kept[i] for i in piece.tolist()], device) for piece in pieces]


def _chunk(batch: ProbeBatch, rows: list[int], device: torch.device) -> Chunk:
    texts = [batch.prompt_ids[row] + batch.completion_ids[row] for row in rows]
    width = max(map(len, texts))
    ids_RS = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts])
    totals_R1 = torch.tensor([[len(ids)] for ids in texts])
    prompts_R1 = torch.tensor([[len(batch.prompt_ids[row])] for row in rows])
    start = int(prompts_R1.min())
    positions_S = torch.arange(width)
    real_RS = positions_S < totals_R1
    live_RT = ((positions_S >= prompts_R1) & real_RS)[:, start:]
    return Chunk(torch.tensor(rows), ids_RS.to(device), start, live_RT.to(device), real_RS.to(device))


def ending_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end a completion: the generation configuration's and the tokenizer's EOS."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    configured = configured if isinstance(configured, list) else [configured]
    ids = [token for token in dict.fromkeys([*configured, tokenizer.eos_token_id]) if token is not None]
    if not ids:
        raise UsageError("the policy has no EOS token: completions could not end, so their length holds no information")
    return ids


@dataclass(frozen=True)
class Sampling:
    """Sampling of a batch: `completions` rows in groups of `num_generations`, capped at `max_completion_length`."""

    completions: int = 128
    num_generations: int = 8
    max_completion_length: int = 128
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse batches that the groups do not divide, and settings out of range."""
        if self.num_generations < 2:
            raise UsageError(f"num_generations is {self.num_generations}: a group needs 2 completions or more")
        if self.completions < 4 or self.completions % self.num_generations:
            raise UsageError(
                f"completions is {self.completions}: give 4 or more, a multiple of num_generations "
                f"({self.num_generations})"
            )
        if self.max_completion_length < 1 or not self.temperature > 0 or self.seed < 0:
            raise UsageError(
                f"max_completion_length is {self.max_completion_length}, temperature {self.temperature}, seed "
                f"{self.seed}: valid are 1 or more, above 0, 0 or more"
            )


class PolicySource:
    """Source of batches from a frozen policy: `prompts` distinct prompts of the task's training set, a group each."""

    def __init__(self, model: Any, tokenizer: Any, task: Task, sampling: Sampling) -> None:
        self._model, self._tokenizer, self._task, self._sampling = model, tokenizer, task, sampling
        self._eos_ids = ending_tokens(model, tokenizer)

    def __call__(self, stream: int, number: int) -> ProbeBatch:
        """Batch `number` of `stream`. Raises UsageError where the policy's logits are not finite."""
        setup, group_size = self._sampling, self._sampling.num_generations
        rng = np.random.default_rng([setup.seed, stream, number])
        prompts = self._task.train_prompts
        groups = setup.completions // group_size
        chosen = [prompts[i] for i in rng.choice(len(prompts), groups, replace=groups > len(prompts))]
        encoded = [self._tokenizer(prompt.text)["input_ids"] for prompt in chosen]
        group = [g for g in range(groups) for _ in range(group_size)]
        numbers = list(range(group_size)) * groups
        uniforms_BT = row_uniforms(setup.seed, number, group, numbers, setup.max_completion_length, stream=stream)
        completions = self._sample([encoded[g] for g in group], uniforms_BT)
        texts = self._tokenizer.batch_decode(completions, skip_special_tokens=True)
        verdicts = [
            judge(self._task, chosen[g].text, chosen[g].answer, text, ids, self._eos_ids)
            for g, text, ids in zip(group, texts, completions, strict=True)
        ]
        return ProbeBatch(
            prompt_ids=[encoded[g] for g in group],
            completion_ids=completions,
            prompt_id=[chosen[g].id for g in group],
            group=group,
            sample=numbers,
            terminated=[verdict["terminated"] for verdict in verdicts],
            reward=[float(verdict["reward"]) for verdict in verdicts],
            correct=[bool(verdict["correct"]) for verdict in verdicts],
        )

    def _sample(self, prompts: Sequence[list[int]], uniforms_BT: Tensor) -> list[list[int]]:
        device = next(self._model.parameters()).device
        width = max(map(len, prompts))
        ids_BP = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts], device=device)
        mask_BP = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=device)
        try:
            return sample(
                self._model, ids_BP, mask_BP, uniforms_BT.to(device), eos_token_ids=self._eos_ids, pad_token_id=0,
                temperature=self._sampling.temperature,
            )  # fmt: skip
        except FloatingPointError as error:
            raise UsageError(f"the policy cannot be sampled: {error}") from error
