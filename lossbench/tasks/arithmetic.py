"""`arithmetic`: sums of a few numbers, as plain text, with worked examples, or as a chat question.

The answer of a completion is the last number in it, so the completion may reason, chat or repeat itself as it likes.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from lossbench.tasks.base import Prompt, VerifiedTask
from lossbench.tasks.params import Size, TaskParams, held_out
from lossbench.tasks.verifiers import Verifier, check_last_number


class ArithmeticParams(TaskParams):
    """Numbers to add up, their size, and the form of the prompt; `seed` fixes choice and order of the problems."""

    operands: Annotated[int, Field(ge=2)] = 2
    digits: Annotated[int, Field(ge=1, le=15)] = 1
    form: Literal["plain", "few-shot", "chat"] = "chat"
    shots: Size = 3  # worked examples of form "few-shot"
    train_size: Size = 1000
    eval_size: Size = 100
    seed: int = 0


_ENUMERATED = 100_000  # spaces up to this size are listed and shuffled instead of drawn


class Arithmetic(VerifiedTask):
    """Sums of `operands` numbers of up to `digits` digits; training and evaluation prompts never overlap.

    `train_size` and `eval_size` are upper bounds: a space of problems smaller than that gives a fifth of itself to
    evaluation. `seed` fixes the choice and the order of the problems.
    """

    name = "arithmetic"
    shortest_answer_tokens = 2  # one number token and the EOS

    def __init__(self, params: ArithmeticParams) -> None:
        self._form = params.form
        self.chat = params.form == "chat"
        self.verifier = Verifier("last-number", check_last_number)
        generator = np.random.default_rng(params.seed)
        problems = _problems(
            params.operands, params.digits, params.train_size + params.eval_size + params.shots, generator
        )
        self._examples = problems[: params.shots] if self._form == "few-shot" else []
        problems = problems[len(self._examples) :]
        evaluated = held_out(len(problems), params.train_size, params.eval_size)
        self.eval_prompts = [self._prompt(i, numbers) for i, numbers in enumerate(problems[:evaluated])]
        training = problems[evaluated : evaluated + params.train_size]
        self.train_prompts = [self._prompt(i + evaluated, numbers) for i, numbers in enumerate(training)]

    def _prompt(self, number: int, terms: tuple[int, ...]) -> Prompt:
        total = " + ".join(map(str, terms))
        if self._form == "chat":
            text = f"What is {total}?"
        else:
            worked = [f"{' + '.join(map(str, example))} = {sum(example)}" for example in self._examples]
            text = "\n".join([*worked, f"{total} ="])
        return Prompt(number, text, str(sum(terms)))


def _problems(operands: int, digits: int, count: int, generator: np.random.Generator) -> list[tuple[int, ...]]:
    """Up to `count` different problems in random order."""
    base = 10**digits
    if base**operands <= _ENUMERATED:
        codes = generator.permutation(base**operands)[:count]
        return [tuple(int(code) // base**k % base for k in range(operands)) for code in codes]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < min(count, _ENUMERATED):
        drawn[tuple(int(term) for term in generator.integers(0, base, operands))] = None
    return list(drawn)
