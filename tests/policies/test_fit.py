"""What a model's config, tokenizer and prompts tell before any run: positions, embeddings, empty prompts, caches."""

from pathlib import Path
from typing import Any

import pytest
from support.architectures import saved_policy, trained_tokenizer
from support.sweeps import quick_run
from transformers import AutoConfig, MambaConfig, RecurrentGemmaConfig

from lossbench.errors import UsageError
from lossbench.policies.fit import check_balancing_loss, check_fit, check_texts
from lossbench.policies.hub import load_config, load_tokenizer
from lossbench.sampling.prompts import check_cache
from lossbench.sweep.preflight import preflight
from lossbench.tasks.base import Prompt

PROMPTS = [Prompt(0, "1 plus 2 is", "3"), Prompt(1, "1 plus 2 plus 3 plus 4 plus 5 is", "15")]


def _fit(root: Path, architecture: str, prompts: list[Prompt] = PROMPTS, cap: int = 8, **config: Any) -> list[str]:
    folder, said = saved_policy(root, architecture, **config), []
    check_fit("m", load_config(folder), load_tokenizer(folder), prompts, cap, said.append)
    return said


def test_positions_are_counted_with_the_longest_prompt(tmp_path: Path) -> None:
    longest = len(trained_tokenizer()(PROMPTS[1].text)["input_ids"])
    assert _fit(tmp_path, "gpt2", cap=96 - longest) == []  # 96 learned positions
    with pytest.raises(UsageError, match=f"a prompt of {longest} tokens .* need 97 positions, and it has 96: lower"):
        _fit(tmp_path, "gpt2", cap=97 - longest)
    assert _fit(tmp_path, "qwen2-sliding", cap=128 - longest) == []
    (warning,) = _fit(tmp_path, "qwen2-sliding", cap=129 - longest)  # rotary: it goes on, untrained
    assert "need 129 positions, and it has 128; rotary positions go on" in warning
    assert _fit(tmp_path, "bloom", cap=10_000) == []  # no positions to run out of


def test_an_empty_prompt_and_a_token_without_embedding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="prompt 7 is empty"):
        _fit(tmp_path, "gpt2", [*PROMPTS, Prompt(7, "", "1")])
    folder = saved_policy(tmp_path, "gpt2")
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    size = config.vocab_size
    with pytest.raises(UsageError, match=rf"token {size} \('\[PAD\]'\), and its embedding ends at {size - 1}"):
        check_fit("m", config, tokenizer, PROMPTS, 8, print)


@pytest.mark.parametrize("prompt", [Prompt(3, "a\ud83d", "1"), Prompt(3, "a", "\udc001")])
def test_half_a_surrogate_pair_is_no_text(prompt: Prompt) -> None:
    with pytest.raises(UsageError, match=r"of number 3 holds .u(d83d|dc00), half of a surrogate pair"):
        check_texts("mine", [*PROMPTS, prompt])
    check_texts("mine", [Prompt(4, "a\U0001f600", "1")])


@pytest.mark.parametrize("config", [MambaConfig(), RecurrentGemmaConfig()], ids=["mamba", "recurrent-gemma"])
def test_a_model_without_a_key_value_cache_is_refused(config: Any) -> None:
    with pytest.raises(UsageError, match="keeps no plain key-value cache: use --sampler generate"):
        check_cache("m", config)


def test_models_with_a_cache_are_not(tmp_path: Path) -> None:
    for architecture in ("gpt2", "qwen2-sliding", "gemma2", "bloom"):
        check_cache("m", AutoConfig.from_pretrained(saved_policy(tmp_path, architecture)))


def test_all_of_it_is_said_before_any_run(tmp_path: Path) -> None:
    folder = saved_policy(tmp_path, "gpt2")
    with pytest.raises(UsageError, match="positions, and it has 96"):
        preflight([quick_run(policy=folder, max_completion_length=95)], fetch=False, say=print)
    preflight([quick_run(policy=folder)], fetch=False, say=print)
    with pytest.raises(UsageError, match=r"router_aux_loss_coef=0\.001 of Qwen2MoeConfig"):
        check_balancing_loss("Qwen2MoeConfig", load_config(saved_policy(tmp_path, "qwen2-moe")), None)
    mixture = saved_policy(tmp_path, "qwen2-moe")
    with pytest.raises(UsageError, match=r"router_aux_loss_coef=0\.001"):
        preflight([quick_run(policy=mixture)], fetch=False, say=print)
    preflight([quick_run(policy=mixture, router_aux_loss_coef=0)], fetch=False, say=print)
    with pytest.raises(UsageError, match=r"LoRA option dropout=0\.1 is switched off"):
        preflight([quick_run(lora={"r": 2, "dropout": 0.1})], fetch=False, say=print)
