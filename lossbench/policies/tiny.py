"""The built-in policy: a Llama of 134k parameters over characters, and the text it is warm-started on.

The warm start teaches the `selfcheck` format (`lossbench.tasks.selfcheck`) with many wrong answers, so that training
begins at an accuracy near 0.2 with room both ways, and with check tokens that tell the truth, or, for the null control,
are coin flips.
"""

import random
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from lossbench.tasks.selfcheck import ALPHABET, CHECK_RIGHT, CHECK_WRONG, reversed_sum

PAD, EOS = "<pad>", "<eos>"
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class TinyPolicy:
    """Everything that decides the weights of a built-in policy; its hash is the cache key."""

    policy_seed: int = 0
    check_truth: Share = 0.95  # probability that a check token tells the truth; 0.5 carries no information
    check_continues: Share = 0.94  # probability that another check follows
    max_checks: Count = 60
    corrupted_answers: Share = 0.75  # share of answers with one digit changed
    hidden_size: Count = 64
    layers: Count = 2
    heads: Count = 4
    # The warm start goes from cheap to dear: with few checks and as many right answers as wrong ones, what is right and
    # what is wrong; then long completions and the share of wrong answers that the policy is to begin with.
    short_steps: Count = 900
    short_checks: Count = 8
    short_corrupted: Share = 0.5
    short_lr: Rate = 2e-3
    long_steps: Count = 450
    long_lr: Rate = 1e-3  # high enough to learn when to stop, low enough to keep the sums
    warmstart_batch: Count = 32
    least_knowledge: Share = 0.6  # share of the right answers in its text that it must give, or it is begun again

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the plan and the cache key."""
        return asdict(self)


@dataclass(frozen=True)
class Phase:
    """A stretch of the warm start: steps, the rate that its cosine begins at, and what its completions are like."""

    steps: int
    lr: float
    corrupted_answers: float
    max_checks: int


def phases(policy: TinyPolicy) -> list[Phase]:
    """The warm start's phases; the last one is the distribution that the policy is to have."""
    corrupted = min(policy.short_corrupted, policy.corrupted_answers)
    return [
        Phase(policy.short_steps, policy.short_lr, corrupted, policy.short_checks),
        Phase(policy.long_steps, policy.long_lr, policy.corrupted_answers, policy.max_checks),
    ]


def write_completion(policy: TinyPolicy, phase: Phase, a: int, b: int, rng: random.Random) -> str:
    """One warm-start completion for `a+b=`, without its EOS: two digits, then check tokens."""
    right = reversed_sum(a, b)
    answer = list(right)
    if rng.random() < phase.corrupted_answers:
        place = rng.randrange(2)
        answer[place] = rng.choice([digit for digit in "0123456789" if digit != answer[place]])
    is_right = "".join(answer) == right
    checks = []
    while len(checks) < phase.max_checks and rng.random() < policy.check_continues:
        says_right = is_right if rng.random() < policy.check_truth else not is_right
        checks.append(CHECK_RIGHT if says_right else CHECK_WRONG)
    return "".join(answer + checks)


def make_tokenizer():
    """A character tokenizer over the task's alphabet: a `PreTrainedTokenizerFast` that pads on the left."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def make_model(policy: TinyPolicy, vocabulary_size: int):
    """A freshly initialised model, float32; the caller seeds torch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=policy.hidden_size,
        intermediate_size=4 * policy.hidden_size,
        num_hidden_layers=policy.layers,
        num_attention_heads=policy.heads,
        num_key_value_heads=policy.heads,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)
