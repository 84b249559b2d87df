"""The GPU recipe: a dry run that fetches nothing, and a step on a CPU with a tiny model of the same architecture."""

import json
import string
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner

import lossbench
from lossbench.cli import app
from lossbench.sweep.recipe import load_recipe

PAD, EOS, CAP = "<pad>", "<eos>", 64


def test_the_dry_run_checks_the_recipe_and_fetches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["sweep", "qwen_gsm8k", "--dry-run", "-f", "json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 15 and {row["policy"].partition("@")[0] for row in rows} == {"Qwen/Qwen2.5-0.5B"}
    assert {(row["device"], row["dtype"]) for row in rows} <= {
        ("cpu", "float32"),
        ("cuda", "float32"),
        ("cuda", "bfloat16"),
    }
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert any("data set hub:openai/gsm8k:main@" in note and "when the sweep starts" in note for note in notes)
    assert any("model Qwen/Qwen2.5-0.5B@" in note and "fetched from the hub" in note for note in notes)
    assert "weights float32" in result.stderr and "15 runs" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_recipe_has_the_settings_recommended_for_a_small_gpu_run():
    recipe = load_recipe("qwen_gsm8k")
    assert (recipe.num_generations, recipe.prompts_per_generation()) == (8, 32)
    assert recipe.max_completion_length >= 1024 and recipe.steps >= 150 and recipe.learning_rate == 1e-6
    assert (recipe.beta, recipe.temperature, recipe.top_p, recipe.num_iterations) == (0.0, 1.0, 1.0, 1)


@pytest.fixture
def tiny_qwen(tmp_path):
    """Two layers of Qwen2 with grouped key heads and tied embeddings, as the real one has, over characters."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *string.printable])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token=PAD, eos_token=EOS)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    tokenizer.save_pretrained(tmp_path / "qwen")
    return tmp_path / "qwen"


@pytest.mark.slow
def test_one_step_on_the_cpu(tiny_qwen, tmp_path):
    data = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"What is {n} more than {n}?", "answer": f"{n}+{n}=<<2*{n}>>\n#### {2 * n}"} for n in range(10)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # A random model solves nothing; the penalty of long completions makes rewards differ, so that there is a gradient.
    changes = {
        "num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "eval_samples": 1,
        "max_completion_length": CAP, "task_params.path": data, "task_params.overlong_max_tokens": CAP,
        "task_params.overlong_cache_tokens": CAP - 2,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "lossbench", "sweep", "qwen_gsm8k", "--model", str(tiny_qwen), "--modes", "dr_grpo",
        "--seeds", "1", "--steps", "1", "--out", str(tmp_path / "out"), "--quiet",
    ]  # fmt: skip
    for name, value in changes.items():
        command += ["--set", f"{name}={value}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    sweep = lossbench.load(tmp_path / "out")
    assert sweep.runs["status"].tolist() == ["completed"] and sweep.problems == []
    (step,) = sweep.steps.to_dict("records")
    assert np.isfinite(step["loss"]) and step["grad_norm"] > 0
    texts = sweep.table("rollouts")
    assert len(texts) == 8 and texts["length_tokens"].between(1, CAP).all()
    assert texts["prompt"].str.startswith("The assistant reasons").all()
    assert texts["prompt"].str.endswith("Assistant: <think>").all()
    assert np.allclose(texts["token_weight"].sum(), 1 / CAP)  # match_scale
    assert set(sweep.evals["step"]) == {0, 1}
