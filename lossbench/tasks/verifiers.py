"""Verifiers: does a completion give the answer? Each judges text alone, and none of them raises into training.

A verifier is one `VerifierKind` and one row in `VERIFIERS`. `make_verifier` binds a kind to an error counter: whatever
goes wrong while a completion is judged is counted, logged, and read as "not correct".
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from lossbench.errors import UsageError, unknown

_LOG = logging.getLogger(__name__)
_LOGGED_ERRORS = 3

_THOUSANDS = r"(?:,\\!|\{,\}|\\,|,)"  # but for the last one LaTeX's ways to keep a space from after it
_WHOLE = rf"(?:\d{{1,3}}(?:{_THOUSANDS}\d{{3}})+(?!\d)|\d+)"
_UNSIGNED = _WHOLE + r"(?:\.\d+)?(?:[eE][-+]?\d{1,4}(?!\d))?|\.\d+"
# A minus right after a word character or a bracket subtracts, or joins a range; it is not a sign.
_SIGN = r"(?:(?<![\w.)\]}])[-+\u2212]\s?)?"
_NUMBER = re.compile(rf"(?P<sign>{_SIGN})[$€£]?(?P<top>{_UNSIGNED})(?:\s?/\s?(?P<bottom>\d+)(?![\d/]))?")
_NO_DIGIT = re.compile(r"[^\d.eE+-]")
_BULLET = re.compile(r"^[ \t]*-[ \t]+(?=\S)", re.MULTILINE)
_MARKS = (
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(r"####[ \t]*([^\n]*)"),
)
_SAID = r"\banswer(?: is|:)"
_UP_TO_THE_NEXT = rf"[ \t]*((?:(?!{_SAID})[^\n])*)"
_PHRASES = (
    re.compile(rf"\bfinal answer(?: is|:){_UP_TO_THE_NEXT}", re.IGNORECASE),
    re.compile(rf"{_SAID}{_UP_TO_THE_NEXT}", re.IGNORECASE),
)
_LEAD = re.compile(rf".*{_SAID}|\s*\$?\s*[A-Za-z]\w*\s*=", re.DOTALL | re.IGNORECASE)  # "the answer is", "x ="
_BEFORE_WORDS = re.compile(r"(?:[^A-Za-z\\]|\\(?:[A-Za-z]+|\W))*+")
_LONGEST_NUMBER = 400  # characters; Python refuses to convert very long digit strings, and no answer has them


def _last_boxed(text: str) -> str | None:
    """Content of the last complete `\\boxed{...}`, braces balanced; None if absent."""
    start = text.rfind(r"\boxed{")
    while start >= 0:
        opened = start + len(r"\boxed{")
        depth = 1
        for end in range(opened, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[opened:end]
        start = text.rfind(r"\boxed{", 0, start)
    return None


def marked_answer(text: str, *, phrases: bool = False) -> str | None:
    """The part of `text` that its writer marked as the answer, or None.

    Marks, first match wins and its last occurrence counts: `\\boxed{}`, `<answer></answer>`, `####`; with `phrases`
    also "final answer is" or "final answer:", "answer is" or "answer:", up to the end of the line or the next of these.
    """
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    for pattern in _MARKS + (_PHRASES if phrases else ()):
        found = pattern.findall(text)
        if found:
            return found[-1]
    return None


def _value(match: re.Match[str]) -> Decimal | Fraction | None:
    top = _NO_DIGIT.sub("", match["top"])
    if len(top) > _LONGEST_NUMBER or len(match["bottom"] or "") > _LONGEST_NUMBER:
        return None
    try:
        value: Decimal | Fraction = Decimal(top)
    except InvalidOperation:
        return None
    if match["bottom"] and "e" not in top.lower() and int(match["bottom"]) != 0:
        value = Fraction(value) / int(match["bottom"])
    return -value if match["sign"].strip() in ("-", "\u2212") else value


def last_number(text: str) -> Decimal | Fraction | None:
    """The last number in `text`, exactly: thousands separators, signs, decimals, exponents and `a/b` are understood.

    >>> last_number("The total is 72 clips, altogether."), last_number("profit is $70,000."), last_number("#### -3")
    (Decimal('72'), Decimal('70000'), Decimal('-3'))
    """
    values = [_value(match) for match in _NUMBER.finditer(text)]
    return values[-1] if values else None


def _said_number(text: str) -> Decimal | Fraction | None:
    """The last number of running text: the hyphen before an item of a list is no sign, that of a lone "- 3" is."""
    return last_number(text if _NUMBER.fullmatch(text.strip()) else _BULLET.sub("", text))


def _marked_number(marked: str) -> Decimal | Fraction | None:
    """The number that a marked answer gives: the first before its words, or the result where those are an equation.

    What follows is comment, however long. Without a number in front of the words it is the last one among them.

    >>> _marked_number(" 42 because 7 and 9"), _marked_number("7 * 6 = 42, as 7 > 6"), _marked_number("a dozen, 12")
    (Decimal('42'), Decimal('42'), Decimal('12'))
    """
    text = marked[lead.end() :] if (lead := _LEAD.match(marked)) else marked
    words = _BEFORE_WORDS.match(text)
    assert words is not None
    found = [match for match in _NUMBER.finditer(text) if match.start() < words.end()]
    if not found:
        return last_number(marked)
    sides = text[: words.end()].split("=")
    left = [match for match in found if match.end() <= len(sides[0])]
    first_of_last = [match for match in found if match.start() >= words.end() - len(sides[-1])]
    return _value(first_of_last[0] if len(left) > 1 and len(sides) > 1 and first_of_last else found[0])


def _same_value(left: Decimal | Fraction, right: Decimal | Fraction) -> bool:
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left == right  # never expands an exponent, however large
    if any(isinstance(side, Decimal) and abs(side.adjusted()) > _LONGEST_NUMBER for side in (left, right)):
        return False
    return Fraction(left) == Fraction(right)


def check_numeric(completion: str, answer: str) -> bool:
    """Whether the number of the completion (of its marked answer, else its last) equals the number of `answer`."""
    gold = last_number(answer)
    marked = marked_answer(completion)
    said = None if marked is None else _marked_number(marked)
    if said is None:
        said = _said_number(completion)
    return gold is not None and said is not None and _same_value(said, gold)


def check_last_number(completion: str, answer: str) -> bool:
    """Whether the last number of the completion, marked or not, equals the number of `answer`."""
    gold, said = last_number(answer), _said_number(completion)
    return gold is not None and said is not None and _same_value(said, gold)


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").strip().casefold()


def check_exact(completion: str, answer: str) -> bool:
    """Whether the completion (marked answer, else all of it) is `answer`, up to case, spacing and a final full stop."""
    marked = marked_answer(completion, phrases=True)
    return _plain(answer) in {_plain(completion), _plain(marked) if marked is not None else _plain(completion)}


_LETTER_ENDS = r"(?!['’]?[^\W_])"
_OPTION = re.compile(rf"(?<![^\W_])(?<![^\W_]['’])([A-J]){_LETTER_ENDS}")
_ARTICLE = re.compile(r"[AI] [a-z]")
_DENIED = re.compile(r"\bnot[ (\[*_\"']*$", re.IGNORECASE)
# What may stand before the letter that opens an answer: commands and marks, as in `**(`, `\text{`, `\mathbf{(`.
_WRAPPING = r"(?:\\(?:[A-Za-z]++|\W)|[^\w\\]|_)*+"
_OPENING = re.compile(rf"{_WRAPPING}(?:(?i:option|choice)\W+)?([A-Ja-j]){_LETTER_ENDS}(?!(?<=[aiI]) [a-z])")


def _standing_letters(text: str) -> list[str]:
    """Option letters A-J that stand alone, except the article "A", the pronoun "I" and those that "not" denies."""
    found = _OPTION.finditer(text)
    return [
        m[1]
        for m in found
        if not _ARTICLE.match(text, m.start()) and not _DENIED.search(text, max(0, m.start() - 8), m.start())
    ]


def option_letter(text: str) -> str | None:
    """The last option letter A-J that stands alone in `text`; the article "A" and the pronoun "I" do not count.

    >>> option_letter("So the answer is (B)."), option_letter("A long story. I give up.")
    ('B', None)
    """
    letters = _standing_letters(text)
    return letters[-1] if letters else None


def _opening_letter(text: str) -> str | None:
    """The option letter that `text` opens with: what follows it, as in "B. A dog" or "c) I think", is its text."""
    opening = _OPENING.match(text)
    return opening[1].upper() if opening else None


def _gold_letter(answer: str) -> str | None:
    marked = marked_answer(answer, phrases=True)
    return _opening_letter(answer if marked is None else marked)


def check_choice(completion: str, answer: str) -> bool:
    """Whether the option letter of the completion is the one of `answer`.

    It is the first letter of its marked answer, for reasons come after it, else the last one of the completion.
    """
    marked = marked_answer(completion, phrases=True)
    said = None
    if marked is not None:
        said = _opening_letter(marked) or next(iter(_standing_letters(marked)), None)
    if said is None:
        said = option_letter(completion)
    return said is not None and said == _gold_letter(answer)


def _not_a_number(answer: str) -> str | None:
    if last_number(answer) is not None:
        return None
    longest = max((len(digits) for digits in re.findall(r"\d+", answer)), default=0)
    too_long = f"holds a number of {longest:,} digits, valid: at most {_LONGEST_NUMBER}"
    return too_long if longest > _LONGEST_NUMBER else "holds no number"


def _not_a_letter(answer: str) -> str | None:
    return None if _gold_letter(answer) else "is not an option letter A-J"


def _blank(answer: str) -> str | None:
    return None if answer.strip() else "is empty"


Check = Callable[[str, str], bool | None]
GoldProblem = Callable[[str], str | None]


@dataclass(frozen=True)
class VerifierKind:
    """A registry row.

    `start` returns the check itself (completion, answer) -> bool, and what says what is wrong with a reference answer,
    or None; a kind with a worker process starts one per verifier. `right` makes a completion that gives an answer.
    """

    start: Callable[[], tuple[Check, GoldProblem]]
    summary: str
    right: Callable[[str], str] = str


def _start_math() -> tuple[Check, GoldProblem]:
    from lossbench.tasks.math_process import MathProcess

    process = MathProcess()
    return process.check, process.gold_problem


def _right_math(answer: str) -> str:
    from lossbench.tasks.math_process import as_math

    return as_math(answer)


VERIFIERS: dict[str, VerifierKind] = {
    "numeric": VerifierKind(lambda: (check_numeric, _not_a_number), "the last (or marked) number equals the answer's"),
    "exact": VerifierKind(lambda: (check_exact, _blank), "the text equals the answer, up to case and spacing"),
    "choice": VerifierKind(
        lambda: (check_choice, _not_a_letter),
        "the marked option letter, or the last, is the answer's",
        lambda answer: _gold_letter(answer) or answer,
    ),
    "math": VerifierKind(_start_math, "math-verify says that the expressions are equal (extra `math`)", _right_math),
}


@dataclass
class Verifier:
    """A check that cannot raise. `errors` counts the completions on which it failed, `last_error` says how.

    What it returns is judged by `lossbench.tasks.judging`.

    `gold_problem` says why it could not compare with a reference answer, or None.
    """

    name: str
    check: Check
    gold_problem: GoldProblem = lambda answer: None
    errors: int = 0
    last_error: str | None = None

    def __call__(self, completion: str, answer: str) -> bool:
        """Whether `completion` gives `answer`; False, counted and logged, where the check itself fails."""
        return bool(self.guarded(self.check, completion, answer))

    def guarded(self, check: Check, completion: str, answer: str) -> bool | None:
        """Result of `check`; where it raises, that is counted and logged, and the completion is wrong."""
        try:
            return check(completion, answer)
        except Exception as error:  # a failure of a third party's parser, or of a user's code, must not end a run
            self.errors += 1
            self.last_error = f"{type(error).__name__}: {error}"
            if self.errors <= _LOGGED_ERRORS:
                _LOG.warning("verifier '%s' failed on a completion, counted as wrong: %s", self.name, self.last_error)
            return False


def verifier_kind(name: str) -> VerifierKind:
    """The registry row of `name`. Raises UsageError with the valid names."""
    if name not in VERIFIERS:
        raise UsageError(unknown("verifier", name, VERIFIERS))
    return VERIFIERS[name]


def make_verifier(name: str) -> Verifier:
    """A verifier with its own error counter. Raises UsageError on an unknown name or a missing extra."""
    return Verifier(name, *verifier_kind(name).start())
