"""The order of prompts over a run, and the numbers of groups and generations."""

from lossbench.tasks import make_task
from lossbench.training.rollout_data import prompt_order, training_data


def test_each_pass_over_the_prompts_has_an_order_of_its_own():
    order = prompt_order(8, 16, seed=0).tolist()
    assert sorted(order[:8]) == sorted(order[8:]) == list(range(8))
    assert order[:8] != order[8:]
    # The beginning does not depend on how far the run goes, which is what lets it continue.
    assert prompt_order(8, 11, seed=0).tolist() == order[:11] and prompt_order(8, 16, seed=1).tolist() != order


def test_groups_are_numbered_within_their_generation():
    data = training_data(make_task("selfcheck"), generations=3, prompts_per_generation=2, seed=0)
    assert data["group"][:] == [0, 1, 0, 1, 0, 1] and data["generation"][:] == [1, 1, 2, 2, 3, 3]
