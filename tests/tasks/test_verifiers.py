"""Verifiers on the answers that other projects' parsers got wrong, and on text made to break them."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import quick_run

from lossbench.errors import UsageError
from lossbench.tasks.math_process import MathProcess
from lossbench.tasks.verifiers import VERIFIERS, Verifier, last_number, make_verifier, marked_answer
from lossbench.training.checkpoint import verifier_errors_at


@pytest.mark.parametrize(
    ("completion", "answer", "correct"),
    [
        ("The total is 72 clips, altogether.", "72", True),  # a lone comma is not a number
        ("profit is $70,000.", "70000", True),
        ("-3", "#### -3", True),
        ("3", "#### -3", False),
        ("29.00", "29", True),
        ("12 - 5 = 7", "7", True),
        ("0.3333333333333333", "1/3", False),  # equal as floats, not as numbers
        ("so 5-3", "3", True),  # a difference, not minus three
        ("the loss is -$3", "-3", True),
        ("\u22124", "-4", True),
        ("1/2", "0.5", True),
        ("It costs .5 dollars", "0.5", True),
        ("1e3", "1000", True),
        ("1,2 and 1,234,567", "1234567", True),
        (r"The answer is $1{,}000$", "1000", True),
        (r"\boxed{12,\!345.50}", "12345.5", True),
        (r"1\,000\,000", "1{,}000{,}000", True),
        ("Answer:\n- 18", "18", True),  # an item of a list
        ("- 18 apples are left", "18", True),
        ("x is\n  - -3", "-3", True),
        ("- 3", "-3", True),  # nothing else: a sign
        (r"\boxed{- 3}", "-3", True),
        ("x = - 3", "-3", True),
        ("#### 7\nbut 8 is nice too", "7", True),
        (r"\boxed{12}, checked 3 times", "12", True),
        (r"\boxed{\text{none}} 12", "12", True),
        ("#### 42 because 7 and 9", "42", True),  # what follows the number is comment, however long
        ("#### 42 because 7 and 9", "9", False),
        (r"\boxed{42 \text{ as } 7 + 35}", "42", True),
        ("<answer>42, for 6 * 7 is 42 and not 43</answer>", "42", True),
        ("<answer>\n$42 (7 a day for 6 days)\n</answer>", "42", True),
        ("#### 42. 7 and 9 were used", "42", True),
        ("#### 7 * 6 = 42 since 7 > 6", "42", True),  # an equation gives its result
        ("#### 42 = 7 * 6", "42", True),
        ("#### 1 + 1 = 2 = 4 / 2", "2", True),
        (r"\boxed{x = 42}", "42", True),
        ("<answer>x = 42 because 7 and 9</answer>", "42", True),
        ("<answer>The answer is 42 because of 9</answer>", "42", True),
        ("<answer>Anna 5, Ben 7, together 12</answer>", "12", True),  # words first: the last number
        ("#### 1e3, or 10 squared times 10", "1000", True),
        ("#### -3 (not 3)", "-3", True),
        (r"\boxed{12{,}000\%}", "12000", True),
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
        ("Perhaps C. On second thoughts D", "D", True),  # the last one counts
        ("B", "B. A dog", True),  # the gold's letter opens it
        ("A", "B. A dog", False),
        ("C", "C) A", True),
        ("A", "C) A", False),
        ("B", "B. I think", True),
        ("B", "B: A", True),
        ("B", "The answer is B", True),
        ("C", r"$\textbf{(C)}\ 12$", True),
        ("The answer is B, not A.", "B", True),  # reasons come after the marked letter
        ("The answer is (B) because A is wrong.", "B", True),
        ("The answer is A because B is wrong.", "A", True),
        ("Answer: C. (A and B are false)", "C", True),
        ("Answer: C. (A and B are false)", "B", False),
        ("The answer is not A but B", "B", True),
        ("It is B, not A", "B", True),
        ("A, no: the answer is A. Wait. The answer is B", "B", True),
        ("<answer>B</answer>, since A is wrong", "B", True),
        (r"\boxed{\text{(B)}}", "B", True),
        ("answer is **B**", "B", True),
        ("Answer:\nB", "B", True),
        ("The answer is a dog", "A", False),
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
        ("The answer is Rome. Wait: the answer is Paris", "Paris", True),
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
@given(st.integers(-(10**9), 10**9), st.text("abcxyz 0123456789.,+*/()-", max_size=60))
def test_a_marked_number_stays_the_answer_however_the_text_rambles_on(value, comment):
    # rambling must not make an answer wrong: a score that falls with length would look like a length bias
    for marked in (f"#### {value} because {comment}", f"<answer>{value}, since {comment}</answer>"):
        assert make_verifier("numeric")(marked, str(value)), marked


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


UNUSABLE = {
    "numeric": ["many", ""],
    "exact": [" "],
    "choice": ["Paris", "Vitamin C", "I think", "a dog", "2"],
    "math": ["", "(((((", "...", r"\frac{", "$$", "\u00bd"],
}
USABLE = {"numeric": "B 3", "exact": "B 3", "choice": "B 3", "math": "B 3"}


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_kind_names_what_is_wrong_with_a_reference_answer(name):
    if name == "math":
        pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    verifier = make_verifier(name)
    assert verifier.gold_problem(USABLE[name]) is None
    assert all(verifier.gold_problem(answer) for answer in UNUSABLE[name])
    assert verifier(VERIFIERS[name].right(USABLE[name]), USABLE[name])


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


MATH_GOLDS = [  # a reference answer as it stands in the box of a right completion, and what a wrong one has there
    ("42", "43"),
    ("-3", "3"),
    ("2.50", "2.05"),
    ("70,000", "70"),
    (r"10,\!000", "10"),
    ("1{,}000", "1"),
    ("1/2", "2"),
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    (r"\dfrac34", "3"),
    (r"3\frac{1}{2}", r"\frac{3}{2}"),
    (r"2\pi", "2"),
    (r"\sqrt{2}", "2"),
    (r"11\sqrt2", "11"),
    (r"1 \pm \sqrt{5}", r"1 + \sqrt{5}"),
    (r"\text{Evelyn}", r"\text{Briana}"),
    ("p - q", "q - p"),
    ("x^2+2x+1", "x^2+2x-1"),
    ("y=2x+1", "y=2x"),
    ("(1,2)", "(2,1)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\left( 3, \pi \right)"),
    (r"x \in [-2,7]", r"x \in (-2,7)"),
    (r"(-\infty,2]\cup[3,\infty)", r"(-\infty,2]"),
    (r"\{1,2,3\}", r"\{1,2\}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\4&3\end{pmatrix}"),
    (r"10\%", "11"),
    (r"90^\circ", r"80^\circ"),
    (r"5\text{ cm}", "6"),
    (r"\$18", "8"),
]
IN_CONTEXT = {  # reference answers with marks around them, or beside them, and what is in the box
    "$70,000": "70,000",
    r"$2\pi$": r"2\pi",
    r"\[2\pi\]": r"2\pi",
    r"So it is \boxed{2\pi}.": r"2\pi",
    "two and two:\n#### 4": "4",
}


def test_math_reads_every_shape_of_reference_answer_whole():
    pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    verifier = make_verifier("math")
    rows = [(gold, gold, near) for gold, near in MATH_GOLDS] + [(*row, "2") for row in IN_CONTEXT.items()]
    for gold, right, near in rows:
        assert verifier.gold_problem(gold) is None, gold
        assert verifier(rf"So the answer is $\boxed{{{right}}}$.", gold), gold
        assert not verifier(rf"So the answer is $\boxed{{{near}}}$.", gold), gold
        assert verifier(VERIFIERS["math"].right(gold), gold), gold
    assert (verifier.errors, verifier.last_error) == (0, None)


def test_math_counts_a_reference_answer_that_does_not_parse_as_an_error():
    pytest.importorskip("math_verify", reason="the `math` extra is not installed")
    verifier = make_verifier("math")
    assert not verifier(r"$\boxed{(((((}$", "(((((")
    assert verifier.errors == 1 and "'(((((' does not parse" in str(verifier.last_error)
    impatient = MathProcess(limit_s=0.001)
    long = "+".join(f"x^{n}" for n in range(99))
    assert impatient.gold_problem(long) == "cannot be parsed (no verdict within 0.001 s)"


def test_a_checkpoint_keeps_how_often_the_verifier_had_failed(tmp_path):
    from lossbench.training.run import _Checkpoints

    checkpoint = tmp_path / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    verifier = Verifier("odd", lambda completion, answer: 1 / 0, errors=3)  # type: ignore[return-value]
    task, trainer = SimpleNamespace(verifier=verifier), SimpleNamespace(accelerator=Accelerator())
    saved: Any = _Checkpoints(quick_run(), tmp_path, trainer, task)  # type: ignore[arg-type]
    saved.on_save(None, SimpleNamespace(global_step=4), None)
    assert verifier_errors_at(checkpoint) == 3
    (checkpoint / "lossbench.json").write_text('{"run_id": "grpo-s0"}')  # as earlier versions sealed theirs
    assert verifier_errors_at(checkpoint) == 0


def test_math_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'lossbench\[math\]'"):
        make_verifier("math")
