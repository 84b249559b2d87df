"""Stopping hazards and pushes: by hand, against autograd on a shared stop logit, and where nothing can be said."""

import numpy as np
import pytest
import torch

from lossbench.loss.advantages import advantages
from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.modes import parse_mode
from lossbench.metrics.push import BRANCHES, hazards, pushes, separation
from lossbench.metrics.step_sums import Columns


def table(**columns: list[float]) -> Columns:
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


# One group of four: two wrong answers of 8 (cut) and 2 tokens, two right ones of 4 and 5.
ROWS = table(
    step=[1, 1, 1, 1], group=[0, 0, 0, 0], length_tokens=[8, 2, 4, 5], terminated=[0, 1, 1, 1], correct=[0, 0, 1, 1],
    reward=[0, 0, 1, 1],
)  # fmt: skip


def test_hazards_by_hand() -> None:
    found = hazards(ROWS)
    # wrong: one ending in 8 + 2 tokens; right: two endings in 4 + 5
    assert found["hazard_incorrect"] == pytest.approx([1 / 10]) and found["hazard_correct"] == pytest.approx([2 / 9])
    # two forced tokens each: one ending in 6 + 0, two in 2 + 3
    free = hazards(ROWS, forced_tokens=2)
    assert free["hazard_incorrect"] == pytest.approx([1 / 6]) and free["hazard_correct"] == pytest.approx([2 / 5])


def test_pushes_by_hand() -> None:
    # Advantages without std: -1/2, -1/2, +1/2, +1/2. Scores e - pL: wrong 0 - .1·8 = -.8 and 1 - .1·2 = .8;
    # right 1 - 4·2/9 = 1/9 and 1 - 5·2/9 = -1/9.
    found = pushes(ROWS, [parse_mode("dr_grpo"), parse_mode("grpo@seq-mean-token-mean/none")])
    constant, by_length = found.values()
    assert constant["push_incorrect"] == pytest.approx([0]) and constant["push_correct"] == pytest.approx([0])
    # 1/L: wrong (-1/2)(-.8/8 + .8/2) / ((1/2)(1/8 + 1/2)) = -.15/.3125 = -.48
    assert by_length["push_incorrect"] == pytest.approx([-0.48])
    # right (1/2)(1/36 - 1/45) / ((1/2)(1/4 + 1/5)) = (1/360)/.225 = .012346
    assert by_length["push_correct"] == pytest.approx([(1 / 360) / 0.225])
    # V: the same numerators over (.3125 + .225) = .5375
    assert by_length["added_incorrect"] == pytest.approx([-0.15 / 0.5375])
    assert by_length["added_correct"] == pytest.approx([(1 / 360) / 0.5375])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "grpo@prompt-mean/none", "grpo@delta-l:0.5"])
def test_the_push_is_the_gradient_of_the_loss_by_a_shared_stop_logit(name: str) -> None:
    # A policy whose decision to stop at each token of a branch is one logit: a row of L tokens has
    # log pi = e log p + (L - e) log(1 - p).
    rng = np.random.default_rng(0)
    count, mode = 24, parse_mode(name)
    rows = table(
        step=[1] * count, group=np.repeat(range(6), 4).tolist(), length_tokens=rng.integers(1, 30, count).tolist(),
        terminated=rng.integers(0, 2, count).tolist(), correct=rng.integers(0, 2, count).tolist(), reward=[0] * count,
    )  # fmt: skip
    rows["reward"] = rows["correct"] * rows["terminated"]
    found = pushes(rows, [mode])[mode.name]
    hazard = hazards(rows)
    lengths, groups = torch.tensor(rows["length_tokens"]), torch.tensor(rows["group"]).long()
    weights = _weights(mode, lengths, groups)
    gains = weights * advantages(torch.tensor(rows["reward"]), groups, mode.scale_rewards)
    for branch, value in BRANCHES.items():
        p = float(hazard[f"hazard_{branch}"][0])
        logit = torch.tensor(p, dtype=torch.float64).logit().requires_grad_()
        ended = torch.tensor(rows["terminated"])
        logp = ended * torch.log(torch.sigmoid(logit)) + (lengths - ended) * torch.log(1 - torch.sigmoid(logit))
        inside = torch.tensor(rows["correct"] == value)
        (gradient,) = torch.autograd.grad((gains * logp)[inside].sum(), logit)
        expected = float(gradient / gains[inside].abs().sum())
        assert found[f"push_{branch}"] == pytest.approx([expected], abs=1e-9)


def _weights(mode, lengths, groups):
    from lossbench.metrics.push import window_weights_of

    return torch.from_numpy(window_weights_of(mode, lengths, groups))


def test_rows_outside_the_loss_or_without_a_verdict_count_nowhere() -> None:
    more = {name: np.append(values, values[0]) for name, values in ROWS.items()}
    more["correct"][-1] = np.nan
    mode = parse_mode("grpo")
    for name in ("push_incorrect", "added_correct"):
        assert pushes(more, [mode])["grpo"][name] == pytest.approx(pushes(ROWS, [mode])["grpo"][name])
    masked = {**ROWS, "in_loss": np.array([0.0, 1, 1, 1])}
    # The wrong row that is left scores 1 - .1·2 = .8, with A < 0: U = -.8.
    assert pushes(masked, [mode])["grpo"]["push_incorrect"] == pytest.approx([-0.8])


def test_no_weight_gives_null() -> None:
    equal = {**ROWS, "reward": np.ones(4)}
    assert np.isnan(pushes(equal, [parse_mode("grpo")])["grpo"]["push_incorrect"]).all()
    split = next(name for name, entry in AGGREGATIONS.items() if entry.depends_on_split)
    assert np.isnan(pushes(ROWS, [parse_mode(f"grpo@{split}")])[parse_mode(f"grpo@{split}").name]["push_correct"]).all()
    nobody = {**ROWS, "correct": np.full(4, np.nan)}
    assert np.isnan(hazards(nobody)["hazard_correct"]).all()


def test_steps_stand_apart() -> None:
    twice = {name: np.concatenate([values, values]) for name, values in ROWS.items()}
    twice["step"][4:] = 3
    found = pushes(twice, [parse_mode("grpo")])["grpo"]
    assert found["step"].tolist() == [1, 3]
    assert found["push_incorrect"][0] == pytest.approx(found["push_incorrect"][1])


def test_separation_per_unit_of_push() -> None:
    # Odds of stopping: right .2/.8 and wrong .2/.8 at first, right .5/.5 and wrong .1/.9 at last: log 9 apart.
    hazard = table(step=range(10), hazard_correct=[0.2] * 5 + [0.5] * 5, hazard_incorrect=[0.2] * 5 + [0.1] * 5)
    pushed = table(step=range(10), added_correct=[0.3] * 10, added_incorrect=[-0.2] * 10)
    assert separation(hazard, pushed) == pytest.approx(np.log(9) / 5)
    still = {**pushed, "added_incorrect": pushed["added_correct"]}
    assert np.isnan(separation(hazard, still))
