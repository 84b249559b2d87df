"""Aggregations read off gradients: TRL's and verl's own, faults that shipped, and functions that have none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossbench.diagnosis.loss_code import identify_loss
from lossbench.errors import UsageError
from lossbench.loss.surrogates import SurrogateParams
from lossbench.loss.verl_agg_loss import VERL_MODES, agg_loss
from lossbench.training.trl_check import _stand_in

TRL = {
    "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm", "dapo": "token-mean", "bnpo": "token-mean",
    "cispo": "token-mean", "sapo": "seq-mean-token-mean", "luspo": "seq-mean-token-sum", "vespo": "token-mean",
}  # fmt: skip


def trl_loss(loss_type: str) -> Callable[..., Tensor]:
    """TRL's own `_compute_loss` as a function of tensors."""
    from trl import GRPOTrainer

    def loss(
        logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, num_items_in_batch: float,
        gradient_accumulation_steps: int, max_completion_length: float,
    ) -> Tensor:  # fmt: skip
        trainer = _stand_in(loss_type, "token", 0.0, SurrogateParams(), logp)
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = gradient_accumulation_steps
        trainer.max_completion_length = max_completion_length
        ids = mask.long()
        return GRPOTrainer._compute_loss(trainer, None, {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": ids,
            "advantages": advantages, "old_per_token_logps": old_logp,
            "num_items_in_batch": torch.tensor(num_items_in_batch),
        })  # fmt: skip

    return loss


@pytest.mark.parametrize("loss_type", TRL)
def test_trl_loss_types_are_named(loss_type: str) -> None:
    found = identify_loss(trl_loss(loss_type))
    assert (found.agg_mode, found.factor) == (TRL[loss_type], "")
    assert any("micro-token-mean" in note for note in found.notes) == (loss_type == "bnpo")
    if loss_type == "dr_grpo":
        assert found.horizon == 64


@pytest.mark.parametrize("mode", VERL_MODES["latest"])
def test_verl_modes_are_named(mode: str) -> None:
    found = identify_loss(agg_loss, call=lambda loss, loss_mat, mask, horizon, **_: loss(
        loss_mat, mask, mode, loss_scale_factor=horizon, version="latest"))  # fmt: skip
    assert (found.agg_mode, found.factor) == (mode, "")


def padded(loss_mat: Tensor, mask: Tensor) -> Tensor:
    return (loss_mat * mask).sum() / (mask.shape[0] * mask.shape[1])


def without_batch_size(loss_mat: Tensor, mask: Tensor) -> Tensor:
    return agg_loss(loss_mat, mask, "seq-mean-token-sum-norm", loss_scale_factor=100.0)


def local_token_mean(logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    ratio = torch.exp(logp - old_logp)
    return -(ratio * advantages[:, None] * mask).sum() / mask.sum()


def local_sum_over_global_count(loss_mat: Tensor, mask: Tensor, batch_num_tokens: float) -> Tensor:
    return (loss_mat * mask).sum() / batch_num_tokens


def configured_accumulation(loss_mat: Tensor, mask: Tensor, gradient_accumulation_steps: int) -> Tensor:
    return ((loss_mat * mask).sum(-1) / mask.sum(-1)).mean() / gradient_accumulation_steps


def per_sequence(loss_mat: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    return ((loss_mat * mask).sum(-1) / mask.sum(-1)).mean()


def per_prompt(loss_mat: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    groups = [group_ids == g for g in group_ids.unique()]
    return torch.stack([(loss_mat * mask)[g].sum() / mask[g].sum() for g in groups]).mean()


@pytest.mark.parametrize(
    ("loss", "agg_mode", "factor", "note"),
    [
        (padded, "seq-mean-token-sum", "1/W", "padded width"),
        (without_batch_size, "token-sum", "0.01", ""),
        (local_token_mean, "token-mean", "", "micro-token-mean"),
        (local_sum_over_global_count, "token-mean", "", "multiply by the number of processes"),
        (configured_accumulation, "seq-mean-token-mean", "", "0.5 times"),
        (per_sequence, "seq-mean-token-mean", "", ""),
        (per_prompt, "prompt-mean", "", ""),
    ],
)
def test_faults_that_shipped_are_recognised(loss: Any, agg_mode: str, factor: str, note: str) -> None:
    found = identify_loss(loss)
    assert (found.agg_mode, found.factor) == (agg_mode, factor)
    assert note in " ".join(found.notes)


def test_an_exponent_is_found() -> None:
    found = identify_loss(lambda loss_mat, mask: ((loss_mat * mask).sum(-1) * mask.sum(-1) ** -0.5).mean() / 8)
    # L^(alpha - 1) / (N H^alpha) at alpha 0.5 and H 64: L^-0.5 / (8 N)
    assert (found.agg_mode, found.factor) == ("length-power:0.5", "")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_random_row_weights_get_no_name(seed: int) -> None:
    def loss(loss_mat: Tensor, mask: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed + len(mask))
        return ((loss_mat * mask).sum(-1) * (0.2 + torch.rand(len(mask), generator=generator))).sum()

    found = identify_loss(loss)
    assert found.agg_mode is None and found.nearest
    assert found.sentence.startswith("none; nearest is")


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda loss_mat, mask: loss_mat.sum() / mask.sum(), "masked tokens have a gradient"),
        (lambda loss_mat, mask: (loss_mat * mask * torch.arange(mask.shape[1])).sum(), "from token to token"),
        (
            lambda logp, old_logp, advantages, mask: -(
                torch.exp(logp - old_logp) * advantages[:, None] * mask
            )[advantages > 0].sum(),
            "depends on its advantage",
        ),
    ],
)  # fmt: skip
def test_what_is_no_row_weight_gets_no_name(loss: Any, reason: str) -> None:
    found = identify_loss(loss)
    assert found.agg_mode is None and reason in found.notes[0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda loss_mat, mask, wibble: loss_mat.sum(), "parameter 'wibble' is not known"),
        (lambda mask: mask.sum(), "takes neither token losses"),
        (lambda loss_mat, mask: 1.0, "no scalar with a gradient"),
        (lambda loss_mat, mask: loss_mat.sum() * float("nan"), "not finite"),
        (lambda loss_mat, mask: loss_mat[999], "raised IndexError"),
    ],
)
def test_a_callable_that_is_no_loss_is_one_line(loss: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        identify_loss(loss)
    assert "\n" not in str(raised.value)
