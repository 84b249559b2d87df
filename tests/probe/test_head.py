"""Scores by the use of the head alone, held to autograd on heads of every kind."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as tf
from support.hazard_policy import EVEN_TASK, HazardPolicy
from support.trainer import model_folder
from torch import nn
from typer.testing import CliRunner

import lossbench.probe.head_engine as head_engine
from lossbench.cli import app
from lossbench.errors import UsageError
from lossbench.probe.batches import ProbeBatch
from lossbench.probe.head_engine import find_head, make_head_engine
from lossbench.probe.local_engine import make_engine
from lossbench.probe.parameters import select_parameters
from lossbench.probe.projections import read_projections

SIZES = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {**SIZES, "intermediate_size": 12, "num_key_value_heads": 1}
GEMMA = {**LLAMA, "head_dim": 4, "query_pre_attn_scalar": 4, "pad_token_id": None}


def llama(**more):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA, **more))


class CutLogits(tf.LlamaForCausalLM):
    """Its head has three rows more than there are tokens, and one token that is never said."""

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        logits = found.logits[..., :16].clone()
        logits[..., 11] = -torch.inf
        return SimpleNamespace(logits=logits)


MODELS = {
    "untied": llama,
    "tied": lambda: llama(tie_word_embeddings=True),
    "padding token": lambda: llama(tie_word_embeddings=True, pad_token_id=2),
    "soft cap": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GEMMA, final_logit_softcapping=2.0)),
    "scale": lambda: tf.CohereForCausalLM(tf.CohereConfig(**LLAMA, logit_scale=0.3)),
    "divisor": lambda: tf.GraniteForCausalLM(tf.GraniteConfig(**LLAMA, logits_scaling=3.0)),
    "bias": lambda: tf.PhiForCausalLM(tf.PhiConfig(**LLAMA)),
    "positions": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=19, n_embd=8, n_layer=1, n_head=2)),
    "padded vocabulary": lambda: CutLogits(tf.LlamaConfig(**LLAMA)),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    model = MODELS[name]().double().eval()
    with torch.no_grad():  # logits far from 0, so that a cap bends them
        for parameter in model.parameters():
            parameter.mul_(3.0).add_(0.05 * torch.randn(parameter.shape))
    return model


def batch(shift: int = 0) -> ProbeBatch:
    prompts = [[2, 3], [4, 5, 6], [2, 3], [7], [8, 9]]
    completions = [[3, 4, 5, 1], [6, 1], [], [2, 10, 2, 12, 2, 13, 1], [9]]
    completions = [[(token + shift) % 11 for token in ids] for ids in completions]
    return ProbeBatch(
        prompts, completions, [0, 1, 0, 2, 3], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0], [True] * 5, [1.0, 0, 0, 1, 0],
        [True, False, False, True, False],
    )  # fmt: skip


def row_gradients(model: nn.Module, rollout: ProbeBatch, temperature: float) -> list[list[torch.Tensor]]:
    """Gradients of each completion's log-probability by a copy of the head, token by token, unpadded."""
    model = copy.deepcopy(model)
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    found = []
    for prompt, completion in zip(rollout.prompt_ids, rollout.completion_ids, strict=True):
        parameters = list(head.parameters())
        if completion:
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
            logps = (logits / temperature).log_softmax(-1)
            total = sum(logps[len(prompt) + t - 1, token] for t, token in enumerate(completion))
            found.append(list(torch.autograd.grad(total, parameters)))
        else:
            found.append([torch.zeros_like(p) for p in parameters])
    return found


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("block_numbers", [1 << 25, 400])
@pytest.mark.parametrize("name", MODELS)
def test_directions_and_projections_are_those_of_autograd_by_a_copy_of_the_head(name, block_numbers):
    model, rollout, temperature = made(name), batch(), 1.3
    gradients = row_gradients(model, rollout, temperature)
    assert any(float(part.abs().max()) > 0 for row in gradients for part in row)
    engine = make_head_engine(model, rollout, temperature=temperature, max_positions=12)
    engine.block_numbers = block_numbers
    record = engine.record(rollout)
    generator = torch.Generator().manual_seed(0)
    coefficients_KB = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    for found, coefficients_B in zip(record.directions(coefficients_KB), coefficients_KB, strict=True):
        for i, tensor in enumerate(found):
            close(tensor, sum(c * row[i] for c, row in zip(coefficients_B, gradients, strict=True)))
    shapes = [p.shape for p in engine.parameters.values()]
    vectors = [[torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(2)]
    scale = [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    projections = record.projections(vectors, [None, scale])
    for k, vector in enumerate(vectors):
        plain = [sum((g * v).sum() for g, v in zip(row, vector, strict=True)) for row in gradients]
        scaled = [sum((g * v * s).sum() for g, v, s in zip(row, vector, scale, strict=True)) for row in gradients]
        close(projections[0, k], torch.stack(plain))
        close(projections[1, k], torch.stack(scaled))


@pytest.mark.parametrize("block_numbers", [1 << 25, 400])
def test_both_batches_of_a_pair_are_projected_on_each_others_directions(block_numbers):
    model, rollouts = made("bias"), [batch(), batch(3)]
    engine = make_head_engine(model, rollouts[0])
    engine.block_numbers = block_numbers
    records = [engine.record(rollout) for rollout in rollouts]
    coefficients = [torch.randn(2, 5, dtype=torch.float64) for _ in rollouts]
    scale = [torch.rand(p.shape, dtype=torch.float64) for p in engine.parameters.values()]
    generators = [torch.Generator().manual_seed(half) for half in (0, 1)]
    found = engine.cross(records, coefficients, generators, 1, [None, scale])
    for half in (0, 1):
        assert found[half].shape == (2, 3, 5)
        vectors = records[1 - half].directions(coefficients[1 - half])
        close(found[half][:, :2], records[half].projections(vectors, [None, scale]))


def test_random_directions_give_the_gradient_norm():
    model, rollout = made("untied"), batch()
    engine = make_head_engine(model, rollout)
    records = [engine.record(rollout)] * 2
    none = [torch.zeros(0, 5)] * 2
    (drawn, _) = engine.cross(records, none, [torch.Generator().manual_seed(h) for h in (0, 1)], 4000, [None])
    sizes = torch.tensor([sum(float(g.square().sum()) for g in row) for row in row_gradients(model, rollout, 1.0)])
    # a mean of 4000 squares of a normal number has a relative error of sqrt(2 / 4000) = 2.2 %
    torch.testing.assert_close(drawn[0].square().mean(0).float(), sizes, rtol=0.1, atol=0)


def test_an_untied_head_is_what_its_parameters_give():
    model, rollout = llama().eval(), batch()
    head, all_of_it = (
        make_head_engine(model, rollout),
        make_engine(model, select_parameters(model, ["lm_head"]), rollout),
    )
    for mine, theirs in zip(
        *(e.record(rollout).directions(torch.ones(1, 5))[0] for e in (head, all_of_it)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_hidden_states_on_disk_change_nothing(monkeypatch):
    model, rollout = made("untied"), batch()
    whole = make_head_engine(model, rollout).record(rollout).scores(0, 19)
    monkeypatch.setattr(head_engine, "KEPT_BYTES", 0)
    torch.testing.assert_close(make_head_engine(model, rollout).record(rollout).scores(0, 19), whole)


def test_bfloat16_weights_have_float32_sums():
    model = made("untied").to(torch.bfloat16)
    rollout = batch()
    found = make_head_engine(model, rollout).record(rollout).scores(0, 19)
    assert found.dtype == torch.float32
    expected = make_head_engine(model.float(), rollout).record(rollout).scores(0, 19)
    assert np.corrcoef(found.flatten(), expected.flatten())[0, 1] > 0.999


def test_the_models_own_scale_and_cap_are_found():
    ids = torch.tensor([[2, 3, 4, 5, 6]])
    found = {name: find_head(made(name), ids) for name in ("untied", "soft cap", "scale", "divisor")}
    assert [head.scale for head in found.values()] == [1.0, 1.0, 0.3, pytest.approx(1 / 3, rel=1e-12)]
    assert [head.cap for head in found.values()] == [None, 2.0, None, None]
    used = find_head(made("padded vocabulary"), ids).used_V
    assert used.tolist() == [token < 16 and token != 11 for token in range(19)]


class Squared(tf.LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found.logits = found.logits.square()
        return found


def test_models_whose_head_is_not_understood_are_refused():
    with pytest.raises(
        UsageError, match="no output embedding, and --params head needs a linear layer: give --params all"
    ):
        make_head_engine(HazardPolicy(0.5, 0.3, 0.3), batch())
    with pytest.raises(UsageError, match="changes its logits after the head in a way not known here"):
        make_head_engine(Squared(tf.LlamaConfig(**LLAMA)).eval(), batch())
    broken = llama().eval()
    with torch.no_grad():
        broken.lm_head.weight[5] = torch.nan
    with pytest.raises(UsageError, match="logits are not finite"):
        make_head_engine(broken, batch())


def test_a_model_of_ones_own_is_probed_at_its_head(tmp_path):
    small = ["--batches", "2", "--completions", "16", "--num-generations", "4", "--max-completion-length", "6",
             "--recipe", "quick", "--task", EVEN_TASK, "--model", model_folder(str(tmp_path))]  # fmt: skip
    for name, more in (("default", []), ("head", ["--params", "head"]), ("all", ["--params", "all"])):
        result = CliRunner().invoke(app, ["probe", *small, *more, "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
    probes = {}
    for name in ("default", "head", "all"):
        (file,) = (tmp_path / name / "probe").glob("*.parquet")
        (probes[name],) = read_projections(file)
    assert [probe.parameters for probe in probes.values()] == ["head", "head", "all"]
    one, same, other = (probe.windows[0].projections["plain", "all"] for probe in probes.values())
    assert np.array_equal(one, same) and not np.allclose(one, other)
