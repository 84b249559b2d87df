"""What a probe at the head will take, from a configuration alone."""

import json

import pytest
from transformers import Qwen2Config
from typer.testing import CliRunner

import lossbench.probe.cost as cost
from lossbench.cli import app
from lossbench.errors import UsageError

QWEN_7B = {
    "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen")
    Qwen2Config(**QWEN_7B, architectures=["Qwen2ForCausalLM"]).save_pretrained(path)
    return str(path)


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["probe", "--dry-run", "--format", "json", *arguments])


def test_memory_tokens_and_seconds_by_arithmetic(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(cost, "free_bytes", lambda device: 80 * 10**9)
    monkeypatch.setattr(cost, "_rate", lambda device, dtype: 1e14)
    out = tmp_path / "out"
    result = invoke("--model", folder, "--params", "head", "--dtype", "bfloat16", "--out", str(out))
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert not out.exists()
    assert (found["parameters"], found["vocabulary"], found["hidden"]) == (7_615_616_512, 152_064, 3584)
    assert found["tokens_per_pair"] == 2 * 128 * 1024
    assert found["weights_gb"] == pytest.approx(15.231, abs=1e-3)  # two bytes each
    assert found["moments_gb"] == pytest.approx(2 * 152_064 * 3584 * 4 / 1e9)  # 2.2 GB twice
    # 128 completions of 1024 tokens after 256 of a prompt: keys and values of 28 layers, 4 heads of 128, 2 bytes each
    assert found["cache_gb"] == pytest.approx(128 * 1280 * 2 * 28 * 4 * 128 * 2 / 1e9)
    assert found["memory_gb"] == pytest.approx(sum(found[f"{name}_gb"] for name in
                                                   ("weights", "moments", "cache", "hidden", "blocks")))  # fmt: skip
    # 2 operations by every parameter but the head for 327,680 tokens, and 3 x 2 by the head for 262,144
    body, head = 7_615_616_512 - 152_064 * 3584, 152_064 * 3584
    assert found["passes_s"] == pytest.approx((327_680 * 2 * body + 262_144 * 6 * head) / 1e14)


def test_what_does_not_fit_is_refused_in_one_line(folder, monkeypatch):
    monkeypatch.setattr(cost, "free_bytes", lambda device: 24 * 10**9)
    result = invoke("--model", folder, "--params", "head")
    assert isinstance(result.exception, UsageError) and "\n" not in str(result.exception)
    assert "the probe needs about" in str(result.exception) and "24 GB are free" in str(result.exception)
    small = ["--dtype", "bfloat16", "--metric", "plain", "--completions", "64", "--max-completion-length", "512"]
    assert invoke("--model", folder, *small).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "Qwen/Qwen2.5-7B"], "model 'Qwen/Qwen2.5-7B': not in the local cache"),
        (["--model", "./nowhere"], "no such folder"),
        (["--policy", "selfcheck"], "--dry-run is for a model of your own at its head"),
        (["--model", "x/y", "--params", "all"], "--dry-run is for a model of your own at its head"),
    ],
)
def test_mistakes_are_one_line(arguments, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = invoke(*arguments)
    assert isinstance(result.exception, UsageError) and message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_free_memory_is_that_of_this_machine():
    assert 1e8 < cost.free_bytes("cpu") < 1e14
