"""Speed of rollouts against `generate`, and of a training pass cut by length against one padded to the longest row.

Each figure is a ratio of medians within one run, the two sides taking turns, on one thread.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from lossbench.policies.tiny import TinyPolicy, make_tokenizer
from lossbench.policies.warmstart import ensure_policy
from lossbench.sampling.draws import row_uniforms
from lossbench.sampling.length_chunks import length_chunks
from lossbench.sampling.rollouts import sample

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def median_walls_s(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median wall time in seconds of each side, the sides taking turns."""
    walls_s: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            start_s = time.perf_counter()
            side()
            walls_s[name].append(time.perf_counter() - start_s)
    return {name: median(values) for name, values in walls_s.items()}


def report(title: str, walls_s: dict[str, float]) -> float:
    """Print the sides' medians and return the ratio of the first to the second."""
    slow_s, fast_s = walls_s.values()
    print(f"\n{title}")
    for name, wall_s in walls_s.items():
        print(f"  {name:<36}{1e3 * wall_s:>12.1f} ms")
    print(f"  {'ratio':<36}{slow_s / fast_s:>12.2f}")
    return slow_s / fast_s


@pytest.fixture(scope="module")
def policy():
    """The built-in policy after its warm start."""
    return AutoModelForCausalLM.from_pretrained(ensure_policy(TinyPolicy()))


def built_in_prompts() -> Tensor:
    """Eight prompts of the built-in task, eight rows each."""
    tokenizer = make_tokenizer()
    return torch.tensor([tokenizer(f"{a}+{9 - a}=")["input_ids"] for a in range(8)]).repeat_interleave(8, 0)


def built_in_rollouts(policy, ids_BP: Tensor, seed: int) -> list[list[int]]:
    uniforms_BT = row_uniforms(seed, 0, list(range(8)) * 8, list(range(64)), 128)
    return sample(policy, ids_BP, torch.ones_like(ids_BP), uniforms_BT, eos_token_ids=[1], pad_token_id=0)


def test_rollouts_of_the_built_in_policy(policy):
    """At least twice as fast as `generate`, with every seed drawn anew on both sides."""
    ids_BP = built_in_prompts()
    seeds = iter(range(1000))

    def with_generate():
        torch.manual_seed(next(seeds))
        policy.generate(ids_BP, attention_mask=torch.ones_like(ids_BP), do_sample=True, top_k=0, max_new_tokens=128)

    def with_sample():
        built_in_rollouts(policy, ids_BP, next(seeds))

    with_generate(), with_sample()
    lengths = [len(row) for seed in range(4) for row in built_in_rollouts(policy, ids_BP, seed)]
    walls_s = median_walls_s({"generate": with_generate, "sample": with_sample}, repeats=15)
    title = f"64 rollouts of the built-in policy, mean length {np.mean(lengths):.1f}, longest {max(lengths)}"
    assert report(title, walls_s) >= 2.0


class EndAt(LogitsProcessor):
    """Forces the EOS at each row's own length and forbids it before."""

    def __init__(self, lengths_B: Tensor, prompt_tokens: int, eos: int) -> None:
        self._lengths_B, self._prompt_tokens, self._eos = lengths_B, prompt_tokens, eos

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ends_B = self._lengths_B == input_ids.shape[1] - self._prompt_tokens + 1
        scores[:, self._eos] = torch.where(ends_B, 1e9, -torch.inf)
        return scores


def test_rollouts_at_the_size_of_smollm2_135m():
    """At least 1.5 times as fast as `generate` on random weights, 32 rows, lengths geometric with mean 77, cap 320."""
    torch.manual_seed(0)
    eos, pad, rows, cap = 0, 1, 32, 320
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config = LlamaConfig(
        **shape, num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True, eos_token_id=eos, pad_token_id=pad
    )
    model = LlamaForCausalLM(config).eval()
    ids_BP = torch.randint(2, 49152, (4, 32)).repeat_interleave(8, 0)
    lengths_B = torch.from_numpy(np.minimum(np.random.default_rng(0).geometric(1 / 77, rows), cap))
    # The EOS is the first token of the vocabulary: a uniform number of 0 draws it, and none above its probability does.
    uniforms_BT = 0.01 + 0.98 * row_uniforms(0, 0, [0] * rows, list(range(rows)), cap)
    uniforms_BT[torch.arange(rows), lengths_B - 1] = 0.0
    uniforms_BT = torch.where(torch.arange(cap) < lengths_B[:, None], uniforms_BT, 0.5)
    everything_BP = torch.ones_like(ids_BP)
    longest = int(lengths_B.max())

    def with_generate():
        ends = LogitsProcessorList([EndAt(lengths_B, ids_BP.shape[1], eos)])
        settings = {"do_sample": True, "top_k": 0, "max_new_tokens": cap, "logits_processor": ends}
        out = model.generate(ids_BP, attention_mask=everything_BP, **settings)
        assert out.shape[1] == ids_BP.shape[1] + longest

    def with_sample():
        out = sample(model, ids_BP, everything_BP, uniforms_BT, eos_token_ids=[eos], pad_token_id=pad)
        assert [len(row) for row in out] == [min(int(length), cap) for length in lengths_B]

    walls_s = median_walls_s({"generate": with_generate, "sample": with_sample}, repeats=3)
    title = f"32 rollouts at SmolLM2-135M's size, mean length {lengths_B.float().mean():.1f}, longest {longest}"
    assert report(title, walls_s) >= 1.5


def test_training_pass_cut_by_length(policy):
    """Forward and backward over a window of the built-in task, cut by length, against one padded pass."""
    ids_BP = built_in_prompts()
    completions = built_in_rollouts(policy, ids_BP, 0)
    lengths_B = torch.tensor([len(row) for row in completions])
    tokens_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in completions], batch_first=True)

    def gradient(pieces: list[Tensor]) -> Tensor:
        policy.zero_grad()
        for rows in pieces:
            width = int(lengths_B[rows].max())
            targets_BT = tokens_BT[rows, :width]
            mask_BT = torch.arange(width) < lengths_B[rows, None]
            logits = policy(torch.cat((ids_BP[rows], targets_BT), 1)).logits[:, ids_BP.shape[1] - 1 : -1]
            logp_BT = logits.log_softmax(-1).gather(-1, targets_BT[..., None]).squeeze(-1)
            torch.where(mask_BT, logp_BT, 0.0).sum().backward()
        return policy.lm_head.weight.grad.clone()

    whole = [torch.arange(64)]

    def cut() -> Tensor:
        return gradient(length_chunks(lengths_B, prompt_tokens=ids_BP.shape[1]))

    torch.testing.assert_close(cut(), gradient(whole), rtol=1e-3, atol=1e-3)
    walls_s = median_walls_s({"padded to the longest": lambda: gradient(whole), "cut by length": cut}, repeats=11)
    pieces = [len(rows) for rows in length_chunks(lengths_B, prompt_tokens=ids_BP.shape[1])]
    assert report(f"training pass over 64 rows, chunks of {pieces} rows", walls_s) >= 1.5


def test_uniform_numbers_of_a_window_cost_little():
    """Under 3 ms for 64 rows of 128 numbers."""
    prompts, samples = list(range(8)) * 8, list(range(64))
    walls_s = median_walls_s({"row_uniforms 64 x 128": lambda: row_uniforms(0, 0, prompts, samples, 128)}, repeats=21)
    print(f"\n  row_uniforms 64 x 128: {1e3 * walls_s['row_uniforms 64 x 128']:.2f} ms")
    assert walls_s["row_uniforms 64 x 128"] < 3e-3
