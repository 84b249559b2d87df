"""Verifiers on the answers that other projects' parsers got wrong, and on text made to break them."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossbench.errors import UsageError
from lossbench.tasks.math_process import MathProcess
from lossbench.tasks.verifiers import VERIFIERS, Verifier, last_number, make_verifier, marked_answer


@pytest.mark.parametrize(
    ("completion", "answer", "correct"),
    [
        ("The total is 72 clips, altogether.", "72", True),  # a lone comma is not a number
        ("profit is $70,000.", "70000", True),
        ("-3", "#### -3", True),
        ("3", "#### -3", False),
        ("29.00", "29", True),
        ("12 - 5 = 7", "7", True),
        ("so 5-3", "3", True),  # a difference, not minus three
        ("the loss is -$3", "-3", True),
        ("\u22124", "-4", True),
        ("1/2", "0.5", True),
        ("It costs .5 dollars", "0.5", True),
        ("1e3", "1000", True),
        ("1,2 and 1,234,567", "1234567", True),
        ("#### 7\nbut 8 is nice too", "7", True),
        (r"\boxed{12}, checked 3 times", "12", True),
        (r"\boxed{\text{none}} 12", "12", True),
        ("no number here", "0", False),
        ("", "3", False),
        ("9" * 5000, "3", False),
        ("1e9999", "1e9998", False),
    ],
)
def test_numeric(completion, answer, correct):
    verifier = make_verifier("numeric")
    assert verifier(completion, answer) is correct
    assert verifier.errors == 0


@pytest.mark.parametrize(
    ("completion", "answer", "correct"),
    [
        ("(B)", "B", True),
        ("The answer is c", "C", True),
        ("A dog barks. I would say D", "D", True),
        ("Answer: A", "(a)", True),
        ("A or B? B. Not C? B", "B. Paris", True),
        ("I don't know", "A", False),
        ("", "A", False),
    ],
)
def test_choice(completion, answer, correct):
    assert make_verifier("choice")(completion, answer) is correct


@pytest.mark.parametrize(
    ("completion", "answer", "correct"),
    [
        (" new   york. ", "New York", True),
        ("I think the final answer is New York", "new york", True),
        ("<answer>Paris</answer> is lovely", "Paris", True),
        ("not Paris", "Paris", False),
    ],
)
def test_exact(completion, answer, correct):
    assert make_verifier("exact")(completion, answer) is correct


def test_nested_braces_stay_whole_and_an_unclosed_box_is_no_answer():
    assert marked_answer(r"\boxed{1} then \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert marked_answer(r"\boxed{1} then \boxed{2") == "1"
    assert marked_answer("the answer is 4") is None
    assert marked_answer("the answer is 4", phrases=True) == "4"


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_a_number_is_read_back_however_it_is_written(value):
    for text in (str(value), f"{value:,}", f"{value}.00", f"so it is {value}, I think."):
        assert last_number(text) == value


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=80), st.text(max_size=20))
def test_no_text_raises(completion, answer):
    for name in ("numeric", "exact", "choice"):
        verifier = make_verifier(name)
        assert verifier(completion, answer) in (True, False)
        assert verifier.errors == 0


def test_a_failing_check_counts_as_wrong_and_is_counted(caplog):
    verifier = Verifier("odd", lambda completion, answer: 1 / 0)  # type: ignore[return-value]
    assert [verifier("a", "b") for _ in range(5)] == [False] * 5
    assert verifier.errors == 5
    assert verifier.last_error == "ZeroDivisionError: division by zero"
    assert len(caplog.records) == 3  # the first few are logged, not thousands


def test_an_unknown_verifier_names_the_valid_ones():
    with pytest.raises(UsageError, match=r"unknown verifier 'numerc': did you mean 'numeric'\? valid: numeric, exact"):
        make_verifier("numerc")


def test_every_kind_names_what_is_wrong_with_a_reference_answer():
    unusable = {"numeric": "many", "exact": " ", "choice": "Paris", "math": ""}
    assert unusable.keys() == VERIFIERS.keys()
    for name, answer in unusable.items():
        assert VERIFIERS[name].gold_problem(answer), name
        assert VERIFIERS[name].gold_problem("B 3") is None or name == "choice"


def test_math_compares_expressions_survives_a_runaway_and_goes_on():
    pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    verifier = make_verifier("math")
    assert verifier(r"so \boxed{\frac{1}{2}}", "0.5")
    assert verifier("$x^2+2x+1$", "(x+1)^2")
    assert not verifier("It is 7", "8")
    assert verifier.errors == 0
    process = MathProcess(limit_s=0.5)
    impatient = Verifier("math", process.check)
    assert not impatient("$10^{10^{10^{10}}}$", "4")
    assert (impatient.errors, impatient.last_error) == (1, "MathTimeLimit: no verdict within 0.5 s")
    process.limit_s = 30.0
    assert impatient("The answer is 12", "12")


def test_math_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'lossbench\[math\]'"):
        make_verifier("math")
