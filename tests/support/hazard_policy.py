"""A policy so small that expected drifts can be enumerated: after `c` or `w` it stops with a hazard of its own.

And a task that an untrained policy is right in about half the time.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from lossbench.probe.batches import ProbeBatch
from lossbench.tasks import make_task

PAD, EOS, PROMPT, CORRECT, WRONG = range(5)
NEVER = -30.0

EVEN_TASK = f"{__file__}:EvenDigits"


class EvenDigits:
    """Rewards completions that begin with an even digit, so that an untrained policy is right about half the time."""

    name, shortest_answer_tokens = "even", 1

    def __init__(self) -> None:
        self.train_prompts = self.eval_prompts = make_task("selfcheck", {}).train_prompts

    def verify(self, completion: str, answer: str) -> bool:
        return completion[:1] in ("0", "2", "4", "6", "8", "+", "y")

    def reward(self, correct: bool, terminated: bool, length_tokens: int) -> float:
        return float(correct)


class HazardPolicy(nn.Module):
    """A table of next-token logits: prompt -> c or w; c -> c or EOS; w -> w or EOS."""

    def __init__(self, accuracy: float, stop_correct: float, stop_wrong: float) -> None:
        super().__init__()
        self.accuracy, self.stops = accuracy, {CORRECT: stop_correct, WRONG: stop_wrong}
        self.table = nn.Embedding(5, 5)
        logits = torch.full((5, 5), NEVER)
        for state, outcomes in {
            PROMPT: {CORRECT: accuracy, WRONG: 1 - accuracy},
            CORRECT: {EOS: stop_correct, CORRECT: 1 - stop_correct},
            WRONG: {EOS: stop_wrong, WRONG: 1 - stop_wrong},
        }.items():
            for token, probability in outcomes.items():
                logits[state, token] = float(np.log(probability))
        self.table.weight.data = logits

    def forward(self, input_ids, use_cache=False):
        return SimpleNamespace(logits=self.table(input_ids))


@dataclass
class HazardSource:
    """Batches from the hazard policy, each from its own stream."""

    policy: HazardPolicy
    groups: int
    group_size: int
    seed: int = 0

    def __call__(self, stream: int, number: int) -> ProbeBatch:
        rng = np.random.default_rng([self.seed, stream, number])
        rows = self.groups * self.group_size
        correct_B, lengths_B = draw(rng, self.policy, (rows,))
        states_B = np.where(correct_B, CORRECT, WRONG)
        completions = [[int(s)] * (n - 1) + [EOS] for s, n in zip(states_B, lengths_B, strict=True)]
        group = [g for g in range(self.groups) for _ in range(self.group_size)]
        return ProbeBatch(
            prompt_ids=[[PROMPT]] * rows, completion_ids=completions, prompt_id=[0] * rows, group=group,
            sample=list(range(self.group_size)) * self.groups, terminated=[True] * rows,
            reward=correct_B.astype(float).tolist(), correct=correct_B.tolist(),
        )  # fmt: skip


def draw(rng: np.random.Generator, policy: HazardPolicy, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(correct, length): the length is the answer, a geometric number of repetitions, and the EOS."""
    correct = rng.random(shape) < policy.accuracy
    hazard = np.where(correct, policy.stops[CORRECT], policy.stops[WRONG])
    return correct, 1 + rng.geometric(hazard)


def hazard_score(lengths: np.ndarray, hazard: float) -> np.ndarray:
    """d log-probability / d EOS logit: 1 - p for the stop, -p for each of the L - 2 repetitions."""
    return (1 - hazard) - hazard * (lengths - 2)


def length_slope(hazard: float) -> float:
    """d E[L] / d EOS logit of a branch, with E[L] = 2 + (1 - p) / p: it is -(1 - p) / p."""
    return -(1 - hazard) / hazard


def closed_form(policy: HazardPolicy, weight, rows: int, group_size: int) -> dict[str, float]:
    """Expected drift less the unbiased mode's, at equal mean weight, for w_i = weight(L_i) / rows and centred rewards.

    With mu the accuracy, E[A | wrong] = -mu (G-1)/G and E[A | correct] = (1-mu) (G-1)/G. The two logits of a branch
    have opposite gradients, so their product counts twice. The matched unbiased weight is E[weight] over the rows whose
    group is mixed: a wrong row's group is not with chance (1-mu)^(G-1), a right one's with mu^(G-1).
    """
    lengths = np.arange(2, 20_000)
    mu, factor = policy.accuracy, (group_size - 1) / group_size
    pulls, mean_weight, mixed = {}, 0.0, 0.0
    for name, state, share, advantage in (
        ("incorrect", WRONG, 1 - mu, -mu * factor), ("correct", CORRECT, mu, (1 - mu) * factor)
    ):  # fmt: skip
        p = policy.stops[state]
        probability = p * (1 - p) ** (lengths - 2)
        pull = (probability * weight(lengths) * hazard_score(lengths, p)).sum()
        pulls[name] = 2 * share * advantage * pull * length_slope(p)
        alive = share - share**group_size
        mean_weight += alive * (probability * weight(lengths)).sum()
        mixed += alive
    assert rows > 0
    mean_weight /= mixed
    return {name: pull / mean_weight for name, pull in pulls.items()}
