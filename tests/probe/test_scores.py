"""Scores along directions: both engines against row-by-row gradients, on several kinds of model."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import lossbench.probe.local_engine as probe_local
import lossbench.probe.module_products as probe_products
from lossbench.errors import UsageError
from lossbench.probe.batches import ProbeBatch, make_chunks
from lossbench.probe.local_engine import LocalEngine, NotLocal, make_engine
from lossbench.probe.parameters import select_parameters
from lossbench.probe.prober import length_coefficients
from lossbench.probe.scores import ForwardEngine, Policy

SMALL = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama(tied: bool = False, pad: int | None = None) -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=tied, pad_token_id=pad))


def padded() -> LlamaForCausalLM:
    """Its padding token, whose embedding no backward pass reaches, occurs in prompts and completions."""
    return llama(tied=True, pad=2)


def qwen() -> Qwen2ForCausalLM:
    torch.manual_seed(2)
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, num_key_value_heads=1))  # biases on query, key and value


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=32, n_embd=8, n_layer=1, n_head=2))


def batch() -> ProbeBatch:
    prompts = [[2, 3], [4, 5, 6], [2, 3], [7], [8, 9]]
    completions = [[3, 4, 5, 1], [6, 1], [], [2, 2, 2, 2, 2, 2, 1], [9]]
    rows = len(prompts)
    return ProbeBatch(
        prompts, completions, [0, 1, 0, 2, 3], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0], [True, True, False, True, False],
        [1.0, 0, 0, 1, 0], [True, False, False, True, False][:rows],
    )  # fmt: skip


def row_gradient(model, rollout: ProbeBatch, row: int) -> list[torch.Tensor]:
    """Gradient of one completion's log-probability, unpadded, token by token."""
    prompt, completion = rollout.prompt_ids[row], rollout.completion_ids[row]
    parameters = list(select_parameters(model).values())
    if not completion:
        return [torch.zeros_like(p) for p in parameters]
    logps = model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    total = sum(logps[len(prompt) + t - 1, token] for t, token in enumerate(completion))
    return list(torch.autograd.grad(total, parameters))


@pytest.mark.parametrize("engine", [LocalEngine, ForwardEngine, "by completion"])
@pytest.mark.parametrize(
    "make", [llama, lambda: llama(tied=True), padded, qwen], ids=["llama", "tied", "padded", "qwen"]
)
def test_directions_and_projections_are_those_of_row_gradients(make, engine, monkeypatch):
    if engine == "by completion":  # as large layers go; blocks of one or two completions
        monkeypatch.setattr(probe_products, "_LEAST_NUMBERS", 1)
        monkeypatch.setattr(probe_products, "_LEAST_TOKENS", 0)
        monkeypatch.setattr(probe_products, "_BLOCK_NUMBERS", 150)
        engine = LocalEngine
    model, rollout = make().eval(), batch()
    parameters = select_parameters(model)
    gradients = [row_gradient(model, rollout, row) for row in range(5)]
    generator = torch.Generator().manual_seed(0)
    coefficients_KB = torch.randn(2, 5, generator=generator)
    vectors = [[torch.randn(p.shape, generator=generator) for p in parameters.values()] for _ in range(2)]
    scale = [torch.rand(p.shape, generator=generator) for p in parameters.values()]
    record = engine(Policy(model, parameters, 1.0, 10_000)).record(rollout)
    for found, coefficients_B in zip(record.directions(coefficients_KB), coefficients_KB, strict=True):
        for i, tensor in enumerate(found):
            expected = sum(c * g[i] for c, g in zip(coefficients_B, gradients, strict=True))
            torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)
    projections = record.projections(vectors, [None, scale])
    for k, vector in enumerate(vectors):
        plain = [sum((g * v).sum() for g, v in zip(row, vector, strict=True)) for row in gradients]
        scaled = [sum((g * v * s).sum() for g, v, s in zip(row, vector, scale, strict=True)) for row in gradients]
        torch.testing.assert_close(projections[0, k], torch.stack(plain).double(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(projections[1, k], torch.stack(scaled).double(), rtol=1e-4, atol=1e-5)


def test_passes_bounded_in_size_or_repeated_change_nothing(monkeypatch):
    model, rollout = llama().eval(), batch()
    parameters = select_parameters(model)
    vector = [torch.ones_like(p) for p in parameters.values()]
    whole = LocalEngine(Policy(model, parameters, 1.0, 10_000)).record(rollout).projections([vector], [None])
    monkeypatch.setattr(probe_local, "_KEPT_NUMBERS", 0)
    assert [len(c.rows_R) for c in make_chunks(rollout, 10, torch.device("cpu"))] == [1, 1, 2]
    cut = LocalEngine(Policy(model, parameters, 1.0, 10)).record(rollout).projections([vector], [None])
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)


def test_temperature_divides_the_logits():
    model, rollout = llama().eval(), batch()
    parameters = select_parameters(model, ["lm_head"])
    hot = Policy(model, parameters, 2.0, 10_000)
    (weight,) = LocalEngine(hot).record(rollout).directions(torch.ones(1, 5))[0]
    with torch.no_grad():
        model.lm_head.weight /= 2  # the same distribution at temperature 1, in a parameter half as large
    (half,) = LocalEngine(Policy(model, parameters, 1.0, 10_000)).record(rollout).directions(torch.ones(1, 5))[0]
    torch.testing.assert_close(weight, half / 2, rtol=1e-4, atol=1e-6)


def test_a_model_that_mixes_rows_is_given_to_the_reference_engine():
    model, rollout = gpt2().eval(), batch()  # one call of its position table serves all rows
    parameters = select_parameters(model)
    with pytest.raises(NotLocal, match="Embedding"):
        LocalEngine(Policy(model, parameters, 1.0, 10_000)).record(rollout)
    assert make_engine(model, parameters, rollout).name == "forward"
    assert make_engine(model, select_parameters(model, ["h", "ln_f"]), rollout).name == "local"


def test_the_model_is_left_as_it_was():
    model, rollout = llama().train(), batch()
    model.lm_head.weight.requires_grad_(False)
    required = {name: p.requires_grad for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    make_engine(model, select_parameters(model, ["lm_head"]), rollout).record(rollout).directions(torch.ones(1, 5))
    assert model.training and {name: p.requires_grad for name, p in model.named_parameters()} == required
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_gradient_that_is_not_finite_is_said_with_its_parameter():
    model, rollout = llama().eval(), batch()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(UsageError, match="gradient is not finite in"):
        make_engine(model, select_parameters(model), rollout)


def test_parameters_are_named_by_whole_parts_and_counted_from_the_end():
    model = llama()
    assert list(select_parameters(model, ["layers.-1.mlp"])) == [
        f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")
    ]
    assert list(select_parameters(llama(tied=True), ["lm_head"])) == ["model.embed_tokens.weight"]
    assert len(select_parameters(model)) == len(list(model.parameters()))
    with pytest.raises(UsageError, match="'head' matches no parameter; parts of names here: model, embed_tokens"):
        select_parameters(model, ["head"])


def test_length_coefficients_by_hand():
    found = length_coefficients(batch())
    # lengths 4 2 0 7 1; incorrect rows 1, 2, 4: mean 1, over n - 1 = 2
    assert found["incorrect"].tolist() == [0, 0.5, -0.5, 0, 0]
    # correct rows 0 and 3: mean 5.5, over n - 1 = 1
    assert found["correct"].tolist() == [-1.5, 0, 0, 1.5, 0]
    # all: mean 2.8, over 4
    assert found["all"].tolist() == pytest.approx([0.3, -0.2, -0.7, 1.05, -0.45])


def test_a_class_of_one_completion_has_no_direction():
    rollout = batch()
    rollout.correct[:] = [True, False, True, True, True]
    assert length_coefficients(rollout)["incorrect"] is None
