"""The decoders: which model goes which way, and each step's logits against one full forward."""

import pytest
import torch
from support.small_models import (
    LLAMA_KINDS,
    OTHER_KINDS,
    VOCABULARY,
    draw,
    generated,
    model_of,
    ragged_prompts,
    tiny_gpt2,
    tiny_llama,
)
from torch import nn
from transformers import DynamicCache

from lossbench.errors import UsageError
from lossbench.sampling.decode import ModelDecoder, evaluation_mode, make_decoder
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.llama_decode import LlamaDecoder, computes_plain_llama


@pytest.mark.parametrize("kind", LLAMA_KINDS)
def test_the_written_out_step_serves_plain_llamas(kind):
    assert isinstance(make_decoder(LLAMA_KINDS[kind]()), LlamaDecoder)


def test_the_forward_that_trl_puts_on_policies_counts_as_the_models_own():
    from trl.trainer.utils import add_fused_lm_head

    model = tiny_llama()
    add_fused_lm_head(model, temperature=1.0)
    assert "forward" in vars(model)
    assert computes_plain_llama(model)
    ids_BP, mask_BP = ragged_prompts(rows=3)
    ours = draw(model, ids_BP, mask_BP, torch.zeros(3, 5), greedy=True)
    assert ours == generated(model, ids_BP, mask_BP, 5, do_sample=False)
    changed = tiny_llama()
    original = changed.forward
    changed.forward = lambda **inputs: original(**inputs)
    add_fused_lm_head(changed, temperature=1.0)
    assert not computes_plain_llama(changed), "what TRL wraps here is not the class's forward"


def hooked() -> nn.Module:
    model = tiny_llama()
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output * 0.5)
    return model


class HalvedLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 0.5


def replaced() -> nn.Module:
    model = tiny_llama()
    model.model.layers[1].mlp.down_proj.__class__ = HalvedLinear
    return model


def patched() -> nn.Module:
    model = tiny_llama()
    original = model.lm_head.forward
    model.lm_head.forward = lambda rows: original(rows) * 0.5
    return model


@pytest.mark.parametrize(
    "make",
    [
        *OTHER_KINDS.values(),
        hooked,
        patched,
        lambda: tiny_llama(hidden_act="gelu"),
        replaced,
    ],
    ids=[*OTHER_KINDS, "hook", "patched-forward", "gelu", "other-linear"],
)
def test_any_other_model_goes_through_its_own_forward(make):
    model = make()
    assert not computes_plain_llama(model)
    ids_BP, mask_BP = ragged_prompts(rows=3)
    ours = draw(model, ids_BP, mask_BP, torch.zeros(3, 5), greedy=True)
    assert ours == generated(model, ids_BP, mask_BP, 5, do_sample=False)


@pytest.mark.parametrize("kind", ["multi-head", "grouped-query", "biases", "wide-weights", "qwen2", "gpt2"])
def test_each_step_gives_the_logits_of_a_full_forward_while_rows_leave(kind):
    model = model_of(kind).eval()
    ids_BP, mask_BP = ragged_prompts(rows=8)
    steps_BT = torch.randint(
        2, VOCABULARY, (8, 20 if kind == "gpt2" else 80), generator=torch.Generator().manual_seed(1)
    )
    rows = torch.arange(8)
    decoder = make_decoder(model)
    with torch.no_grad():
        logits = decoder.prefill(ids_BP, mask_BP, rows, ids_BP.shape[1] + steps_BT.shape[1])
        ids_BT, mask_BT = torch.cat((ids_BP, steps_BT), 1), torch.cat((mask_BP, torch.ones_like(steps_BT)), 1)
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        full_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT).logits
        torch.testing.assert_close(logits, full_BTV[:, ids_BP.shape[1] - 1], atol=1e-4, rtol=1e-4)
        for step in range(steps_BT.shape[1]):
            if step in (2, 9, 15):
                stay = torch.tensor({2: [0, 7, 2, 3, 6], 9: [4, 1, 2], 15: [0, 1]}[step])
                decoder.keep(stay)
                rows = rows[stay]
            logits = decoder.step(steps_BT[rows, step])
            torch.testing.assert_close(logits, full_BTV[rows, ids_BP.shape[1] + step], atol=1e-4, rtol=1e-4)


def test_modes_are_restored_after_an_error():
    model = tiny_llama().train()
    with pytest.raises(RuntimeError, match="stop"), evaluation_mode(model):
        assert not model.model.norm.training
        raise RuntimeError("stop")
    assert model.model.norm.training


def test_models_without_a_plain_cache_are_refused():
    from transformers import MambaConfig, MambaForCausalLM, T5Config, T5ForConditionalGeneration

    ids_BP = torch.full((2, 3), 4)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UsageError, match="key-value cache"):
        draw(mamba, ids_BP, torch.ones_like(ids_BP), torch.zeros(2, 4))
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=4, num_layers=1))
    with pytest.raises(UsageError, match="encoder-decoder"):
        draw(t5, ids_BP, torch.ones_like(ids_BP), torch.zeros(2, 4))


def test_more_positions_than_a_model_has_learned_are_refused():
    ids_BP = torch.full((1, 5), 4)
    with pytest.raises(UsageError, match="64 positions, prompt and cap need 65"):
        draw(tiny_gpt2(), ids_BP, torch.ones_like(ids_BP), torch.zeros(1, 60))


def test_prompts_are_read_once_each():
    """Sixteen completions of two prompts read two rows, and both decoders agree token for token."""
    model = tiny_llama().eval()
    seen: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    ids_BP = torch.tensor([[4, 5, 6], [7, 8, 9]]).repeat_interleave(8, 0)
    uniforms_BT = row_uniforms(0, 0, [0] * 8 + [1] * 8, [*range(8)] * 2, 16)
    through_model = draw(model, ids_BP, torch.ones_like(ids_BP), uniforms_BT)
    assert seen[0] == 2
    assert through_model == draw(tiny_llama(), ids_BP, torch.ones_like(ids_BP), uniforms_BT)


def test_model_decoder_grows_its_cache_by_one_position_a_step():
    model = tiny_gpt2().eval()
    decoder = ModelDecoder(model)
    with torch.no_grad():
        decoder.prefill(
            torch.full((1, 3), 4), torch.ones(1, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 8
        )
        decoder.step(torch.tensor([5, 6]))
    assert isinstance(decoder._cache, DynamicCache)
    assert decoder._cache.get_seq_length() == 4
