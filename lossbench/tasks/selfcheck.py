"""`selfcheck`: one-digit addition, then any number of self-checks, then EOS.

A completion is the two digits of the sum, units first, followed by check tokens `y` or `n`. The answer comes before the
chatter, so the policy can tell whether it went wrong, and its decision to stop is free to depend on that: this is the
freedom that a length-biased loss exploits.
"""

import re

from lossbench.tasks.base import Prompt, VerifiedTask

CHECK_RIGHT, CHECK_WRONG = "y", "n"
ALPHABET = "0123456789+=" + CHECK_RIGHT + CHECK_WRONG
_LEADING_DIGITS = re.compile(r"\d+")


def reversed_sum(a: int, b: int) -> str:
    """Two digits of `a + b`, units first.

    >>> reversed_sum(7, 8), reversed_sum(1, 2)
    ('51', '30')
    """
    return f"{a + b:02d}"[::-1]


class SelfCheck(VerifiedTask):
    """All hundred sums of two digits; training and evaluation prompts are the same."""

    name = "selfcheck"
    shortest_answer_tokens = 3  # two digits and the EOS
    forced_tokens = 2  # the digits: no completion of use ends before them

    def __init__(self) -> None:
        pairs = [(a, b) for a in range(10) for b in range(10)]
        self.train_prompts = [Prompt(i, f"{a}+{b}=", reversed_sum(a, b)) for i, (a, b) in enumerate(pairs)]
        self.eval_prompts = self.train_prompts

    def verify(self, completion: str, answer: str) -> bool:
        """Whether the digits that open the completion are the answer; what follows them is free."""
        digits = _LEADING_DIGITS.match(completion)
        return digits is not None and digits.group() == answer
