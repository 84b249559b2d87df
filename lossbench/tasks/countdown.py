"""`countdown`: combine given numbers with + - * / so that they make a target, each number used exactly once.

A completion's expression is taken from its `<answer></answer>`, else from its last line that holds one. It is parsed
into a syntax tree and only whole numbers and the four operations are evaluated, exactly.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from lossbench.errors import UsageError
from lossbench.tasks.base import Prompt, VerifiedTask
from lossbench.tasks.params import Size, TaskParams, held_out
from lossbench.tasks.verifiers import Verifier, marked_answer

_LONGEST_EXPRESSION = 200  # characters
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SYMBOLS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "[": "(", "]": ")"})
_EXPRESSION = re.compile(r"[\d\s()+*/-]*\d[\d\s()+*/-]*")


def evaluate(expression: str) -> tuple[Fraction, Counter[int]] | None:
    """Exact value of `expression` and the numbers it uses; None where it is not plain arithmetic on whole numbers.

    >>> evaluate("(7 - 3) * 6")
    (Fraction(24, 1), Counter({7: 1, 3: 1, 6: 1}))
    """
    text = expression.translate(_SYMBOLS).strip()
    if len(text) > _LONGEST_EXPRESSION:
        return None
    used: Counter[int] = Counter()
    try:
        return _value(ast.parse(text, mode="eval").body, used), used
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left, used), _value(node.right, used))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, used)
    raise ValueError(f"not plain arithmetic: {type(node).__name__}")


def _candidates(completion: str) -> list[str]:
    """Texts that may be the completion's expression, the most likely first; a trailing `= result` is dropped."""
    marked = marked_answer(completion)
    lines = [marked] if marked is not None else completion.translate(_SYMBOLS).splitlines()[::-1]
    return [match.group() for line in lines for match in _EXPRESSION.finditer(line.translate(_SYMBOLS).split("=")[0])]


def check_countdown(completion: str, answer: str) -> bool:
    """Whether the completion's expression makes the target from the numbers of `answer` ("target: n1 n2 ...")."""
    target, numbers = answer.split(":")
    wanted = Counter(int(number) for number in numbers.split())
    for text in _candidates(completion):
        evaluated = evaluate(text)
        if evaluated is None or sum(evaluated[1].values()) < 2:
            continue
        value, used = evaluated
        return value == int(target) and used == wanted
    return False


class CountdownParams(TaskParams):
    """Size of the problems: `numbers` up to `largest`, combined into a target up to `largest_target`."""

    numbers: Annotated[int, Field(ge=2, le=6)] = 3
    largest: int = 20
    largest_target: Size = 100
    chat: bool = True
    train_size: Size = 1000
    eval_size: Size = 100
    seed: int = 0

    @model_validator(mode="after")
    def _check_largest(self) -> "CountdownParams":
        if self.largest < self.numbers:
            raise ValueError(f"largest={self.largest}, numbers={self.numbers}; valid: largest >= numbers")
        return self


class Countdown(VerifiedTask):
    """Problems with at least one solution, made by combining the numbers at random."""

    name = "countdown"
    shortest_answer_tokens = 4  # a number, a sign, a number, the EOS, in the coarsest vocabulary

    def __init__(self, params: CountdownParams) -> None:
        self.chat = params.chat
        self.verifier = Verifier("countdown", check_countdown)
        self._solutions: dict[int, str] = {}
        generator = np.random.default_rng(params.seed)
        prompts = self._make(params, generator)
        evaluated = held_out(len(prompts), params.train_size, params.eval_size)
        self.eval_prompts, self.train_prompts = prompts[:evaluated], prompts[evaluated : evaluated + params.train_size]

    def _make(self, params: CountdownParams, generator: np.random.Generator) -> list[Prompt]:
        prompts: dict[str, Prompt] = {}
        count = params.train_size + params.eval_size
        for _ in range(200 * count):
            if len(prompts) == count:
                break
            terms = [int(term) for term in generator.integers(1, params.largest + 1, params.numbers)]
            expression, value = _combined(terms, generator)
            answer = f"{value}: {' '.join(map(str, terms))}"
            if value.denominator != 1 or not 1 <= value <= params.largest_target or answer in prompts:
                continue
            text = (
                f"Using the numbers {', '.join(map(str, terms))} exactly once each and the operations + - * /, "
                f"write an expression that equals {value}. Give it as <answer>expression</answer>."
            )
            number = len(prompts)
            self._solutions[number] = expression
            prompts[answer] = Prompt(number, text, answer)
        if len(prompts) < 2:
            raise UsageError("task 'countdown': fewer than two problems fit these settings; raise largest_target")
        return list(prompts.values())

    def right_completion(self, prompt: Prompt) -> str:
        """A completion that solves `prompt`."""
        return f"<answer>{self._solutions[prompt.id]}</answer>"


def _combined(terms: list[int], generator: np.random.Generator) -> tuple[str, Fraction]:
    """`terms` joined from left to right by random operations: the expression and its value."""
    expression, value = str(terms[0]), Fraction(terms[0])
    for term in terms[1:]:
        sign = "+-*/"[int(generator.integers(4))]
        expression = f"({expression} {sign} {term})"
        value = {"+": value + term, "-": value - term, "*": value * term, "/": value / term}[sign]
    return expression, value
