"""Fields of a completion, the numbers in its cells, and the count of what was damaged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossbench.errors import one_line

ROW_FIELDS = ("step", "prompt", "completion", "reward", "correct", "advantage", "length", "terminated", "group")
"""Fields of a completion, as `--map field=column` names them; `length` in tokens, `terminated` with an EOS, `group` the
name of the samples of one prompt that were drawn together."""

TOKENS, CHARACTERS = "tokens", "characters"
_EXAMPLES = 5  # of damage that are named
_LARGEST = 2**53  # up to which a float holds every whole number


@dataclass
class Damage:
    """Count of the lines and files that could not be read, with the places of the first few.

    What a part (a run's, a file's) counts, the whole that it is a part of counts too.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)
    whole: "Damage | None" = None

    def add(self, place: str, reason: str) -> None:
        """Count one damaged line or file."""
        self.share(Damage(1, [f"{place}: {one_line(reason)}"]))
        if self.whole is not None:
            self.whole.add(place, reason)

    def part(self) -> "Damage":
        """A count of its own within this one."""
        return Damage(whole=self)

    def share(self, other: "Damage") -> None:
        """Count here what `other` counted, and not in the whole again: a file's damage is that of each of its runs."""
        self.count += other.count
        self.examples = [*self.examples, *other.examples][:_EXAMPLES]

    def first_place(self) -> str:
        """Place of the first damage, as the end of a message."""
        return f": {self.examples[0]}" if self.examples else ""


CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Completion texts -> tokens of each, special tokens left out."""


@dataclass(frozen=True)
class Reading:
    """Options for reading completions.

    `correct_above` makes a numeric verdict above it correct, or a reward without a verdict; one that is true or
    false stands. A text that shows `eos` ends there.
    """

    count_tokens: CountTokens | None = None
    correct_above: float | None = None
    keep_text: bool = True
    eos: str | None = None


def number(value: Any) -> float | None:
    """`value` as a float, None where it is null, NaN, or no number."""
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if result != result else result


def whole(value: Any) -> int | None:
    """`value` as a whole number, a fraction cut off; None where it is no number, or too large to be a count.

    >>> whole("7"), whole(7.5), whole("inf"), whole(None)
    (7, 7, None, None)
    """
    known = number(value)
    return None if known is None or abs(known) > _LARGEST else int(known)


def listed(steps: Iterable[int]) -> str:
    """Steps in a note: the first few of them, and how many more there are.

    >>> listed([30, 10, 20]), listed(range(9))
    ('10, 20, 30', '0, 1, 2, 3, 4 and 4 more')
    """
    ordered = sorted(steps)
    return ", ".join(map(str, ordered[:5])) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
