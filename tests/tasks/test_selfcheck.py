import pytest

from lossbench.errors import UsageError
from lossbench.tasks import make_task


@pytest.mark.parametrize(
    ("completion", "answer", "correct"),
    [
        ("51", "51", True),
        ("51yyny", "51", True),  # chatter after the answer is free
        ("15", "51", False),  # units come first
        ("510", "51", False),  # three digits are another answer
        ("5y1", "51", False),
        ("", "51", False),
        ("y51", "51", False),
        ("30nn", "30", True),  # 1 + 2 = 03, units first
    ],
)
def test_the_leading_digits_are_the_answer(completion, answer, correct):
    assert make_task("selfcheck").verify(completion, answer) is correct


def test_reward_needs_a_right_answer_and_an_end():
    reward = make_task("selfcheck").reward
    assert [reward(c, t, 5) for c, t in ((True, True), (True, False), (False, True), (False, False))] == [1, 0, 0, 0]


def test_prompts_are_all_sums_of_two_digits():
    prompts = make_task("selfcheck").train_prompts
    assert len(prompts) == len({p.text for p in prompts}) == 100
    assert next(p for p in prompts if p.text == "9+9=").answer == "81"


def test_it_takes_no_parameters():
    with pytest.raises(UsageError, match="takes no parameters, got digits"):
        make_task("selfcheck", {"digits": 2})
