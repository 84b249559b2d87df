"""Streams of uniform numbers per row, and tokens drawn from them."""

import pytest
import torch
from scipy.stats import chisquare

from lossbench.sampling.draws import draw_tokens, filtered_logits, row_uniforms


def test_inverse_cdf_by_hand():
    # Probabilities 1/2, 0, 1/4, 1/4, 0: cumulative .5, .5, .75, 1, 1.
    logits_BV = torch.tensor([[0.5, 0.0, 0.25, 0.25, 0.0]]).log().expand(7, -1)
    uniforms_B = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 0.9, 1 - 2.0**-24])
    assert draw_tokens(logits_BV, uniforms_B).tolist() == [0, 0, 2, 2, 3, 3, 3]
    # Temperature 1/2 squares the odds: 4 : 0 : 1 : 1 : 0, cumulative 2/3, 2/3, 5/6, 1, 1.
    assert draw_tokens(logits_BV, uniforms_B, temperature=0.5).tolist() == [0, 0, 0, 2, 2, 3, 3]
    # The most likely token alone makes up 1/2; the next in rank is needed to reach 0.6.
    assert draw_tokens(logits_BV, uniforms_B, top_k=1).tolist() == [0] * 7
    assert draw_tokens(logits_BV, uniforms_B, top_p=0.5).tolist() == [0] * 7


def test_top_p_keeps_the_most_likely_tokens_at_the_temperature():
    # Rising .1, .2, .7: cumulative .1 and .3 are at most 1 - .5, so both go.
    kept = filtered_logits(torch.tensor([[0.1, 0.2, 0.7]]).log(), 0.5, 0)
    assert torch.isneginf(kept).tolist() == [[True, True, False]]
    # However small the mass, the most likely token stays.
    kept = filtered_logits(torch.tensor([[0.1, 0.2, 0.7]]).log(), 1e-9, 0)
    assert torch.isneginf(kept).tolist() == [[True, True, False]]
    # .5, .3, .2 at temperature 4 are .374, .329, .297: the least likely exceeds 1 - .75, so all three stay. A filter
    # before the temperature would leave it out.
    logits_BV = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert draw_tokens(logits_BV, torch.tensor([0.95]), temperature=4.0, top_p=0.75).item() == 2


def test_no_token_of_probability_zero_is_drawn_from_a_large_vocabulary():
    generator = torch.Generator().manual_seed(0)
    logits_BV = 3 * torch.randn(64, 49152, generator=generator)
    logits_BV[:, ::2] = -torch.inf
    logits_BV[:, -500:] = -torch.inf
    uniforms_B = torch.cat((torch.rand(32, generator=generator), torch.full((32,), 1 - 2.0**-24)))
    tokens_B = draw_tokens(logits_BV, uniforms_B)
    assert bool((logits_BV.gather(1, tokens_B[:, None]) > -torch.inf).all())


def test_row_uniforms_belong_to_their_row():
    whole = row_uniforms(7, 3, [5, 5, 9], [0, 1, 0], 128)
    assert whole.shape == (3, 128) and whole.dtype == torch.float32
    assert bool(((whole >= 0) & (whole < 1)).all())
    assert torch.equal(row_uniforms(7, 3, [9, 5], [0, 1], 40), whole[[2, 1], :40])
    others = [
        row_uniforms(8, 3, [5], [0], 128),
        row_uniforms(7, 4, [5], [0], 128),
        row_uniforms(7, 3, [6], [0], 128),
        row_uniforms(7, 3, [5], [2], 128),
        row_uniforms(7, 3, [5], [0], 128, stream=1),
    ]
    assert len({tuple(row.tolist()) for table in (whole, *others) for row in table}) == 3 + 5


def test_row_uniforms_are_uniform_and_uncorrelated():
    table = row_uniforms(0, 0, list(range(64)), [0] * 64, 512).double()
    counts = torch.histc(table, bins=32, min=0, max=1).tolist()
    assert chisquare(counts).pvalue > 0.001
    # 64 x 512 pairs: the standard deviation of a correlation is 1 / sqrt(32768) = 0.0055.
    centred = (table - 0.5) * 12**0.5
    assert abs(float((centred[:, 1:] * centred[:, :-1]).mean())) < 4 * 0.0055
    assert abs(float((centred[1:] * centred[:-1]).mean())) < 4 * 0.0055


@pytest.mark.parametrize("changes", [{"seed": -1}, {"generation": 1 << 64}, {"samples": [0]}, {"prompt_ids": [0, -3]}])
def test_row_uniforms_refuses_what_names_no_stream(changes):
    with pytest.raises(ValueError, match=r"2\*\*64|one of each per row"):
        row_uniforms(**{"seed": 0, "generation": 0, "prompt_ids": [0, 1], "samples": [0, 0], "width": 4, **changes})
