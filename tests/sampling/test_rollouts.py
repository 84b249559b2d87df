"""The sampler: same distribution as `generate`, rows independent of their batch, and no trace of the rows that left."""

from collections.abc import Sequence

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from support.small_models import (
    EOS,
    LLAMA_KINDS,
    OTHER_KINDS,
    PAD,
    VOCABULARY,
    draw,
    generated,
    model_of,
    ragged_prompts,
    tiny_gpt2,
    tiny_llama,
)
from torch import nn

from lossbench.errors import UsageError
from lossbench.sampling.draws import filtered_logits, row_uniforms
from lossbench.sampling.rollouts import sample


@pytest.mark.parametrize("kind", [*LLAMA_KINDS, *OTHER_KINDS])
def test_greedy_tokens_are_those_of_generate(kind):
    model = model_of(kind)
    ids_BP, mask_BP = ragged_prompts(rows=12)
    ours = draw(model, ids_BP, mask_BP, torch.zeros(12, 40), eos=(EOS, 7, 12, 15), greedy=True)
    assert ours == generated(model, ids_BP, mask_BP, 40, eos=(EOS, 7, 12, 15), do_sample=False)
    assert len({len(row) for row in ours}) > 1, "rows must end at different tokens for this to test anything"


@pytest.mark.parametrize("kind", ["multi-head", "qwen2", "gpt2"])
def test_sampled_tokens_are_the_inverse_cdf_of_a_full_forward(kind):
    """Redraw each sampled token from the probabilities of one forward over prompt and completion."""
    model = model_of(kind)
    ids_BP, mask_BP = ragged_prompts(rows=16)
    uniforms_BT = row_uniforms(3, 0, list(range(16)), [0] * 16, 24)
    completions = draw(model, ids_BP, mask_BP, uniforms_BT, temperature=1.3)
    model.eval()
    for row, completion in enumerate(completions):
        prompt = ids_BP[row][mask_BP[row] == 1]
        with torch.no_grad():
            logits_TV = model(torch.cat((prompt, torch.tensor(completion)))[None]).logits[0, len(prompt) - 1 : -1]
        cdf_TV = (logits_TV.double() / 1.3).softmax(-1).cumsum(-1)
        for step, token in enumerate(completion):
            lower = float(cdf_TV[step, token - 1]) if token else 0.0
            assert lower - 1e-5 <= float(uniforms_BT[row, step]) <= float(cdf_TV[step, token]) + 1e-5


@pytest.mark.parametrize("kind", ["multi-head", "gpt2"])
def test_a_row_does_not_depend_on_its_batch(kind):
    model = model_of(kind)
    ids_BP, mask_BP = ragged_prompts(rows=24)
    uniforms_BT = row_uniforms(0, 5, list(range(24)), [0] * 24, 30)
    together = draw(model, ids_BP, mask_BP, uniforms_BT)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    shuffled = draw(model, ids_BP[order], mask_BP[order], uniforms_BT[order])
    assert shuffled == [together[int(row)] for row in order]
    alone = [
        draw(model, ids_BP[row : row + 1], mask_BP[row : row + 1], uniforms_BT[row : row + 1])[0] for row in range(24)
    ]
    assert alone == together


@pytest.mark.parametrize("kind", ["multi-head", "qwen2", "gpt2"])
def test_left_padding_changes_nothing(kind):
    model = model_of(kind)
    ids_BP = torch.randint(2, VOCABULARY, (6, 4), generator=torch.Generator().manual_seed(0))
    mask_BP = torch.ones_like(ids_BP)
    uniforms_BT = row_uniforms(1, 0, list(range(6)), [0] * 6, 20)
    plain = draw(model, ids_BP, mask_BP, uniforms_BT)
    padded = draw(model, nn.functional.pad(ids_BP, (3, 0), value=9), nn.functional.pad(mask_BP, (3, 0)), uniforms_BT)
    assert padded == plain
    # Beside a longer prompt the padding stays in the batch instead of being cut off.
    longer_ids = torch.cat((nn.functional.pad(ids_BP, (3, 0), value=9), torch.full((1, 7), 5)))
    longer_mask = torch.cat((nn.functional.pad(mask_BP, (3, 0)), torch.ones(1, 7, dtype=torch.int64)))
    assert draw(model, longer_ids, longer_mask, torch.cat((uniforms_BT, uniforms_BT[:1])))[:6] == plain


def bin_counts(values: Sequence[int], edges: Sequence[int]) -> list[int]:
    """How many values fall below each edge and not below the one before it."""
    return [sum(low <= value < high for value in values) for low, high in zip((0, *edges[:-1]), edges, strict=True)]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.8}], ids=str)
def test_first_tokens_and_lengths_are_distributed_as_in_generate(settings):
    """Chi-square tests at level 0.001 with fixed seeds: 1,536 rows from each side."""
    model = tiny_llama()
    rows, cap = 1536, 20
    ids_BP = torch.tensor([[3, 9, 4]]).expand(rows, -1)
    mask_BP = torch.ones_like(ids_BP)
    ours = draw(
        model, ids_BP, mask_BP, row_uniforms(11, 0, [0] * rows, list(range(rows)), cap), eos=(EOS, 7, 12), **settings
    )
    torch.manual_seed(5)
    theirs = generated(model, ids_BP, mask_BP, cap, eos=(EOS, 7, 12), do_sample=True, **{"top_k": 0, **settings})

    temperature = settings.get("temperature", 1.0)
    with torch.no_grad():
        logits_BV = model(ids_BP[:1]).logits[:, -1] / temperature
    first_V = filtered_logits(logits_BV, settings.get("top_p", 1.0), settings.get("top_k", 0)).softmax(-1)[0].double()
    seen_V = torch.bincount(torch.tensor([row[0] for row in ours]), minlength=VOCABULARY).double()
    assert seen_V[first_V == 0].sum() == 0
    common = first_V * rows >= 5
    seen = [*seen_V[common].tolist(), float(seen_V[~common].sum())]
    expected = [*(first_V[common] * rows).tolist(), float(first_V[~common].sum() * rows)]
    pairs = [(s, e) for s, e in zip(seen, expected, strict=True) if e > 0]
    scale = sum(s for s, _ in pairs) / sum(e for _, e in pairs)
    assert chisquare([s for s, _ in pairs], [e * scale for _, e in pairs]).pvalue > 0.001

    edges = (2, 3, 4, 6, 9, 13, cap, cap + 1)
    table = [bin_counts([len(row) for row in side], edges) for side in (ours, theirs)]
    columns = [column for column in zip(*table, strict=True) if sum(column) >= 10]
    assert len(columns) >= 4
    assert chi2_contingency(list(zip(*columns, strict=True))).pvalue > 0.001


def test_completions_end_at_the_first_eos_or_at_the_cap():
    model = tiny_llama()
    ids_BP, mask_BP = ragged_prompts(rows=32)
    uniforms_BT = row_uniforms(2, 0, list(range(32)), [0] * 32, 12)
    one = draw(model, ids_BP, mask_BP, uniforms_BT)
    two = draw(model, ids_BP, mask_BP, uniforms_BT, eos=(EOS, 7))
    for longer, shorter in zip(one, two, strict=True):
        assert 1 <= len(shorter) <= len(longer) <= 12
        assert longer[: len(shorter)] == shorter
        assert all(token not in (EOS, 7) for token in shorter[:-1])
        assert len(shorter) == 12 or shorter[-1] in (EOS, 7)
    assert any(row[-1] == 7 for row in two)
    assert draw(model, ids_BP, mask_BP, uniforms_BT[:, :5]) == [row[:5] for row in one]


def test_weights_are_read_at_each_call():
    model = tiny_llama()
    ids_BP, mask_BP = ragged_prompts(rows=4)
    before = draw(model, ids_BP, mask_BP, torch.zeros(4, 10), greedy=True)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.mul_(-2)
        model.lm_head.weight.mul_(-1)
    after = draw(model, ids_BP, mask_BP, torch.zeros(4, 10), greedy=True)
    assert after != before
    assert after == generated(model, ids_BP, mask_BP, 10, do_sample=False)


@pytest.mark.parametrize("kind", ["multi-head", "gpt2"])
def test_training_mode_is_left_as_found_and_drops_nothing(kind):
    model = tiny_llama(attention_dropout=0.9) if kind == "multi-head" else tiny_gpt2()
    ids_BP, mask_BP = ragged_prompts(rows=6)
    uniforms_BT = row_uniforms(0, 0, list(range(6)), [0] * 6, 10)
    quiet = draw(model.eval(), ids_BP, mask_BP, uniforms_BT)
    model.train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.Embedding))
    frozen.eval()
    assert draw(model, ids_BP, mask_BP, uniforms_BT) == quiet
    assert [module for module in model.modules() if not module.training] == [frozen]
    model(input_ids=ids_BP, labels=ids_BP).loss.backward()


@pytest.mark.parametrize("kind", ["multi-head", "wide-weights", "gpt2"])
def test_bfloat16_runs_and_stays_near_float32(kind):
    model = model_of(kind)
    ids_BP, mask_BP = ragged_prompts(rows=32)
    uniforms_BT = row_uniforms(0, 0, list(range(32)), [0] * 32, 8)
    exact = draw(model, ids_BP, mask_BP, uniforms_BT)
    rounded = draw(model.to(torch.bfloat16), ids_BP, mask_BP, uniforms_BT)
    assert sum(a[0] == b[0] for a, b in zip(exact, rounded, strict=True)) >= 28
    assert all(0 <= token < VOCABULARY for row in rounded for token in row)


def test_low_rank_adapters_take_part():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        tiny_llama(), peft.LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    ids_BP, mask_BP = ragged_prompts(rows=6)
    ours = draw(adapted, ids_BP, mask_BP, torch.zeros(6, 12), greedy=True)
    assert ours == generated(adapted, ids_BP, mask_BP, 12, do_sample=False)
    assert ours != draw(tiny_llama(), ids_BP, mask_BP, torch.zeros(6, 12), greedy=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"eos_token_ids": []}, "eos_token_ids is empty"),
        ({"eos_token_ids": [20]}, "tokens are 0 to 19"),
        ({"uniforms_BT": torch.ones(2, 4)}, r"\[0, 1\)"),
        ({"uniforms_BT": torch.zeros(3, 4)}, "shapes are"),
        ({"uniforms_BT": torch.zeros(2, 0)}, "at least 1"),
        ({"prompt_mask_BP": torch.tensor([[1, 1, 0], [1, 1, 1]])}, "left"),
        ({"prompt_mask_BP": torch.tensor([[0, 0, 0], [1, 1, 1]])}, "needs a token"),
    ],
)
def test_what_cannot_be_sampled_is_refused(changes, words):
    arguments = {
        "prompt_ids_BP": torch.full((2, 3), 4),
        "prompt_mask_BP": torch.ones(2, 3, dtype=torch.int64),
        "uniforms_BT": torch.zeros(2, 4),
        "eos_token_ids": [EOS],
        "pad_token_id": PAD,
    }
    with pytest.raises(UsageError, match=words):
        sample(tiny_llama(), **{**arguments, **changes})


@pytest.mark.parametrize("greedy", [False, True])
def test_logits_that_are_not_finite_are_reported(greedy):
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="completion token 0"):
        draw(model, torch.full((2, 3), 4), torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 4), greedy=greedy)
