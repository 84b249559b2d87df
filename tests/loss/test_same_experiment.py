"""Which modes coincide, computed from their gradients."""

import pytest

from lossbench.loss.modes import Mode, grid_modes, parse_modes
from lossbench.loss.same_experiment import Equality, Setup, equalities
from lossbench.loss.surrogates import SurrogateParams


def _distinct(modes: list[Mode], setup: Setup) -> list[Mode]:
    repeated = {equality.second for equality in equalities(modes, setup) if equality.kind == "same"}
    return [mode for mode in modes if mode.name not in repeated]


def _only(names: str, setup: Setup) -> Equality | None:
    found = equalities(parse_modes(names), setup)
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("names", "setup", "separated_by"),
    [
        ("dapo,bnpo", Setup(micro_batches=1), "more than one micro-batch"),
        ("grpo,bnpo", Setup(rows_per_micro_batch=1, micro_batches=8), "more than one row per micro-batch"),
        ("grpo,gspo", Setup(), "several optimizer steps per generation"),
        ("dapo,cispo", Setup(), "several optimizer steps per generation"),
        ("dapo,vespo", Setup(), "several optimizer steps per generation"),
        ("dapo,grpo@seq-mean-token-sum", Setup(match_scale=True), "match_scale = false"),
        ("dapo,grpo@prompt-mean", Setup(num_generations=8), "more than one prompt per optimizer step"),
        ("grpo,grpo@length-power:0", Setup(on_policy=False), "no setting"),
        ("dr_grpo,grpo@length-power:1/none", Setup(on_policy=False), "no setting"),
        ("dr_grpo,grpo@delta-l:0/none", Setup(on_policy=False), "no setting"),
    ],
)
def test_same(names: str, setup: Setup, separated_by: str) -> None:
    found = _only(names, setup)
    assert found is not None and found.kind == "same" and found.ratio == pytest.approx(1.0)
    assert separated_by in found.separated_by and found.second in found.sentence


@pytest.mark.parametrize(
    ("names", "setup", "ratio"),
    [
        ("grpo@seq-mean-token-sum,grpo@token-sum", Setup(), 8.0),  # N = 4 rows x 2 micro-batches
        ("grpo@seq-mean-token-sum,grpo@seq-mean-token-sum-norm", Setup(horizon=64), 1 / 64),
        ("dapo,cispo", Setup(params=SurrogateParams(cispo_cap=0.2)), 0.2),  # on-policy the cap scales everything
    ],
)
def test_constant_is_named_as_such_with_its_ratio(names: str, setup: Setup, ratio: float) -> None:
    found = _only(names, setup)
    assert found is not None and found.kind == "constant" and found.ratio == pytest.approx(ratio)
    assert "gradient clipping" in found.sentence


@pytest.mark.parametrize(
    ("names", "setup"),
    [
        ("grpo,dapo", Setup()),
        ("dapo,grpo@seq-mean-token-sum", Setup()),  # proportional on one window, not over windows of other lengths
        ("dapo,bnpo", Setup(micro_batches=2)),
        ("dapo,cispo", Setup(on_policy=False)),
        ("grpo,gspo", Setup(on_policy=False)),
        ("grpo,grpo@seq-mean-token-mean/none", Setup()),
        ("grpo,grpo@seq-mean-token-mean/batch", Setup()),
        ("dapo,grpo@prompt-mean", Setup(num_generations=2)),
    ],
)
def test_different(names: str, setup: Setup) -> None:
    assert _only(names, setup) is None


def test_distinct_keeps_the_first_of_each_and_all_constants() -> None:
    modes = parse_modes("grpo,gspo,gmpo@seq-mean-token-mean,sapo,dapo,grpo@seq-mean-token-sum,grpo@token-sum")
    assert [mode.name for mode in _distinct(modes, Setup())] == [
        "grpo",
        "dapo",
        "grpo@seq-mean-token-sum/group",
        "grpo@token-sum/group",
    ]
    assert _distinct(modes, Setup(on_policy=False)) == modes


def test_a_large_grid_is_compared_quickly() -> None:
    modes = grid_modes(
        ["grpo", "cispo", "sapo", "gspo", "vespo", "gmpo"],
        ["token-mean", "seq-mean-token-mean", "prompt-mean", "length-power:0.5", "delta-l:0.5"],
        ["group", "batch", "none"],
    )
    # 6 surrogates coincide on-policy: 15 of the 90 are distinct
    assert len(_distinct(modes, Setup())) == 15
