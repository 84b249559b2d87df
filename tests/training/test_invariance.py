"""One optimizer step has one gradient, however the window is cut, ordered, padded and dealt out to ranks."""

import pytest
import torch
from support.trainer import Trained, relative, train
from support.two_ranks import gradients_of_two_ranks

from lossbench.loss.aggregations import AGGREGATIONS
from lossbench.loss.surrogates import SURROGATES

AGG_MODES = [f"{entry.name}:0.5" if entry.takes_alpha else entry.name for entry in AGGREGATIONS.values()]
MODES = [f"grpo@{name}" for name in AGG_MODES if not name.startswith("micro")]
WHITENED = "grpo@balanced/length-weighted+whiten-tokens"
OTHER_SURROGATES = [f"{name}@token-mean/none" for name in SURROGATES if name != "grpo"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def whole(root: str) -> dict[str, Trained]:
    """The step of each mode with all 16 rows in one micro-batch."""
    return {mode: _cut(root, mode, 16) for mode in [*MODES, WHITENED]}


def _cut(root: str, mode: str, rows: int, **changes) -> Trained:
    return train(root, mode=mode, per_device_train_batch_size=rows, gradient_accumulation_steps=16 // rows, **changes)


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("mode", [*MODES, WHITENED])
def test_micro_batches(root: str, whole: dict[str, Trained], mode: str, rows: int) -> None:
    cut = _cut(root, mode, rows)
    assert relative(cut.gradients[0], whole[mode].gradients[0]) < 1e-5
    assert cut.losses == pytest.approx(whole[mode].losses, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_float64(root: str, mode: str) -> None:
    one, four = _cut(root, mode, 16, double=True), _cut(root, mode, 4, double=True)
    assert relative(four.gradients[0], one.gradients[0]) < 1e-10


@pytest.mark.parametrize("mode", OTHER_SURROGATES)
def test_other_surrogates_off_policy(root: str, mode: str) -> None:
    # the second step uses the rollouts again, so ratios have left 1
    shared = {"num_iterations": 2, "max_steps": 2, "double": True}
    one, four = _cut(root, mode, 16, **shared), _cut(root, mode, 4, **shared)
    for first, second in zip(one.gradients, four.gradients, strict=True):
        assert relative(second, first) < 1e-10


def test_the_local_token_mean_depends_on_the_cut(root: str) -> None:
    one, four = _cut(root, "bnpo", 16), _cut(root, "bnpo", 4)
    assert relative(four.gradients[0], one.gradients[0]) > 1e-2
    # one micro-batch: dapo; one row per micro-batch: grpo
    assert relative(one.gradients[0], _cut(root, "dapo", 16).gradients[0]) < 1e-6
    assert relative(_cut(root, "bnpo", 1).gradients[0], _cut(root, "grpo", 1).gradients[0]) < 1e-5


@pytest.mark.parametrize("mode", ["grpo@prompt-mean", "grpo@delta-l:0.5"])
def test_row_order(root: str, whole: dict[str, Trained], mode: str) -> None:
    # the seed decides how the rows are shuffled into micro-batches; the rollouts stay the same
    assert relative(_cut(root, mode, 4, seed=11).gradients[0], whole[mode].gradients[0]) < 1e-5


@pytest.mark.parametrize("mode", ["grpo@token-mean", "grpo@prompt-mean"])
def test_padding(root: str, whole: dict[str, Trained], mode: str) -> None:
    # pieces without common padding against every row padded to the longest
    padded = _cut(root, mode, 16, cut_by_length=False)
    assert relative(padded.gradients[0], whole[mode].gradients[0]) < 1e-5


@pytest.mark.parametrize(
    "mode", ["grpo@token-mean", "grpo@prompt-mean", "grpo@delta-l:0.5", "grpo@seq-mean-token-mean"]
)
def test_several_windows_per_generation(root: str, mode: str) -> None:
    # 16 rows, two windows of 8: the same 8 rows in 1, 2 and 4 micro-batches; the second step is off-policy
    runs = [
        train(
            root,
            mode=mode,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=8 // rows,
            steps_per_generation=16 // rows,
            max_steps=2,
        )
        for rows in (8, 4, 2)
    ]
    for other in runs[1:]:
        assert len(other.gradients) == 2
        for first, second in zip(runs[0].gradients, other.gradients, strict=True):
            assert relative(second, first) < 1e-5


@pytest.mark.parametrize("mode", MODES)
def test_several_generations_per_window(root: str, whole: dict[str, Trained], mode: str) -> None:
    # four generations of one prompt each, in micro-batches of 2: the window's sums are known at its end only
    spread = train(
        root, mode=mode, per_device_train_batch_size=2, gradient_accumulation_steps=8, steps_per_generation=2
    )  # fmt: skip
    assert relative(spread.gradients[0], whole[mode].gradients[0]) < 1e-5


@pytest.mark.parametrize("mode", ["grpo@token-mean", "grpo@prompt-mean", "grpo@delta-l:0.5"])
def test_one_generation_twice_in_a_window(root: str, whole: dict[str, Trained], mode: str) -> None:
    # two passes over 16 rows before the optimizer steps: 32 rows of half the weight, the same gradient
    twice = train(
        root, mode=mode, per_device_train_batch_size=8, gradient_accumulation_steps=4, steps_per_generation=2,
        num_iterations=2,
    )  # fmt: skip
    assert relative(twice.gradients[0], whole[mode].gradients[0]) < 1e-5


@pytest.mark.parametrize(
    "mode", ["grpo@token-mean", "grpo@prompt-mean", "grpo@delta-l:0.5", "grpo@seq-mean-token-mean"]
)
def test_the_last_window_is_shorter(root: str, mode: str) -> None:
    # an epoch of 16 rows in windows of 12: the last one has 4
    epoch = {"max_steps": -1, "num_train_epochs": 1}
    runs = [
        train(
            root,
            mode=mode,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=12 // rows,
            steps_per_generation=4 // rows,
            **epoch,
        )
        for rows in (4, 2, 1)
    ]
    for other in runs[1:]:
        assert len(other.gradients) == 2
        for first, second in zip(runs[0].gradients, other.gradients, strict=True):
            assert relative(second, first) < 1e-5


def test_matched_scale_keeps_the_direction_and_has_one_normaliser(root: str, whole: dict[str, Trained]) -> None:
    matched = {mode: _cut(root, mode, 4, match_scale=True).gradients[0] for mode in MODES[:3]}
    for mode, gradient in matched.items():
        plain = whole[mode].gradients[0]
        assert torch.dot(gradient, plain) / (gradient.norm() * plain.norm()) == pytest.approx(1.0, abs=1e-6)
    assert relative(matched["grpo@token-mean"], matched["grpo@seq-mean-token-sum"]) < 1e-6
    assert relative(whole["grpo@token-mean"].gradients[0], whole["grpo@seq-mean-token-sum"].gradients[0]) > 0.5


@pytest.mark.parametrize(
    ("modes", "rows"),
    [([MODES[0], WHITENED], (4,)), pytest.param(MODES, (4, 8), marks=pytest.mark.slow)],
    ids=["one-mode", "every-mode"],
)
def test_two_ranks(root: str, whole: dict[str, Trained], modes: list[str], rows: tuple[int, ...]) -> None:
    # a real pair of processes: each holds half of the rows, DDP averages their gradients
    for (mode, size), gradient in gradients_of_two_ranks(root, modes, rows).items():
        assert relative(gradient, whole[mode].gradients[0]) < 1e-5, (mode, size)
