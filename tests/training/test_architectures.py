"""Log-probabilities and gradients of a batch are those of each row alone, for any architecture, padding and dropout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from support.architectures import CONFIGS, QUICK, saved_policy, trained_tokenizer
from support.trainer import Gradients, Steps, relative, settings
from transformers import AutoModelForCausalLM

from lossbench.errors import UsageError
from lossbench.training.trainer import ModeTrainer

ARCHITECTURES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]
PROMPTS = ("1 plus 2 is", "what , then , is 12 plus 17 plus 3 plus 5 ?", "7 plus 19 is", "19 plus 18 plus 4 is")
CAP, ROWS = 10, 16


def _reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(ids) % 5) for ids in completion_ids]


def _trained(folder: str, root: Path, **changes: Any) -> tuple[ModeTrainer, Gradients, Steps]:
    """Two passes over one generation at a learning rate of nearly 0, with a reference model."""
    gradients, steps = Gradients(), Steps()
    chosen = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-9, "beta": 0.1, "max_completion_length": CAP}
    trainer = ModeTrainer(
        mode="dr_grpo", model=AutoModelForCausalLM.from_pretrained(folder), processing_class=trained_tokenizer(),
        args=settings(str(root), **{**chosen, **changes.pop("args", {})}), reward_funcs=_reward, recorder=steps,  # type: ignore[arg-type]
        train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}), callbacks=[gradients], **changes,
    )  # fmt: skip
    trainer.train()
    return trainer, gradients, steps


def _alone(model: Any, batch: dict[str, torch.Tensor], row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies (L,) of a row's completion, by the model's own forward without padding."""
    prompt, ids = (
        batch[f"{part}_ids"][row][batch[f"{part}_mask"][row].bool()] for part in ("prompt", "completion")
    )  # fmt: skip
    logits = model(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1].float()
    logps = logits.log_softmax(-1)
    return logps.gather(-1, ids[:, None]).squeeze(-1), -(logps.exp() * logps).sum(-1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_in_a_batch_is_the_row_alone(tmp_path: Path, architecture: str) -> None:
    trainer, gradients, steps = _trained(saved_policy(tmp_path, architecture), tmp_path)
    model = trainer.model
    model.eval().zero_grad()
    loss = torch.zeros(())
    rows = 0
    for batch in trainer._buffered_inputs:
        ids, mask = (
            torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask")
        )
        with torch.no_grad():
            logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
                model.train(), ids, mask, batch["completion_ids"].shape[1], compute_entropy=True
            )
        model.eval()
        assert (batch["prompt_mask"][:, 0] == 0).any()  # some prompts are padded
        for row, advantage in enumerate(batch["advantages"]):
            own_logps, own_entropies = _alone(model, batch, row)
            live = slice(0, len(own_logps))
            for found in (logps, batch["old_per_token_logps"], batch["ref_per_token_logps"]):
                torch.testing.assert_close(found[row, live], own_logps.detach(), atol=1e-4, rtol=0)
            torch.testing.assert_close(entropies[row, live], own_entropies.detach(), atol=1e-4, rtol=0)
            # on-policy the ratio's gradient is that of the log-probability; dr_grpo divides by rows and cap
            loss = loss - advantage * own_logps.sum() / (ROWS * CAP)
            rows += 1
    assert rows == ROWS
    loss.backward()
    own = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    assert relative(gradients.steps[0], own) < 1e-4
    # on-policy, first pass and second: nothing is clipped, and the policy is the reference
    for stats in steps.stats:
        assert stats.tokens > 0 and stats.clipped_tokens == 0
        assert stats.kl_sum == pytest.approx(0, abs=1e-4)


def _first_pass(steps: Steps) -> tuple[float, float]:
    stats = steps.stats[0]
    return stats.clipped_tokens / stats.tokens, abs(stats.kl_sum or 0) / stats.tokens


@pytest.mark.parametrize("how", ["lora", "checkpointed", "generate"])
def test_the_first_pass_is_on_policy_whatever_has_dropout(tmp_path: Path, how: str) -> None:
    pytest.importorskip("peft")
    from peft import LoraConfig

    changes: dict[str, Any] = {}
    if how == "lora":
        changes["peft_config"] = LoraConfig(r=2, lora_dropout=0.5, target_modules=["c_attn"], init_lora_weights=False)
    elif how == "checkpointed":
        changes["args"] = {"gradient_checkpointing": True}
    else:
        changes["sampler"] = "generate"
    folder = saved_policy(tmp_path, "gpt2" if how == "lora" else "opt")
    _, gradients, steps = _trained(folder, tmp_path, **changes)
    clipped, kl = _first_pass(steps)
    assert clipped == 0 and (kl > 0.01 if how == "lora" else kl < 1e-6)  # these adapters differ from the reference
    # both passes see the same policy, to a learning rate of nearly nothing
    assert relative(gradients.steps[1], gradients.steps[0]) < 1e-4


def test_dropout_can_be_left_on_and_then_shows(tmp_path: Path) -> None:
    clipped, kl = _first_pass(_trained(saved_policy(tmp_path, "gpt2"), tmp_path, disable_dropout=False)[2])
    assert clipped > 0.05 and kl > 0.005


def test_a_balancing_loss_is_refused_unless_it_is_off(tmp_path: Path) -> None:
    folder = saved_policy(tmp_path, "qwen2-moe")
    with pytest.raises(UsageError, match=r"router_aux_loss_coef=0\.001 of Qwen2MoeForCausalLM .* use 0"):
        _trained(folder, tmp_path)
    with pytest.raises(UsageError, match=r"router_aux_loss_coef=0\.5 "):
        _trained(folder, tmp_path, args={"router_aux_loss_coef": 0.5})
    _, _, steps = _trained(folder, tmp_path, args={"router_aux_loss_coef": 0.0})
    assert _first_pass(steps) == (0, pytest.approx(0, abs=1e-6))
