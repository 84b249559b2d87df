"""Cost of a probe at the head, by arithmetic from the model's configuration: tokens, memory, seconds a pair."""

import os
import time
from dataclasses import dataclass
from typing import Any

import torch

from lossbench.errors import UsageError, one_line
from lossbench.policies.hardware import choose_device, torch_dtype
from lossbench.policies.hub import resolve
from lossbench.probe.head_engine import BLOCK_NUMBERS, KEPT_BYTES
from lossbench.probe.jobs import ProbeJob

_PROMPT_TOKENS = 256
"""Tokens allowed for a prompt, whose length no configuration tells."""


@dataclass(frozen=True)
class Cost:
    """Upper bounds, every completion as long as the cap; GB are 1e9 bytes.

    `weights_gb` of the model, `moments_gb` of the Adam metric (root and one gradient of the head), `cache_gb` of keys
    and values while sampling, `hidden_gb` of kept hidden states, `blocks_gb` of blocks of the vocabulary: with the
    random directions' among them. `passes_s` is for the forward passes of a pair and its sums over the vocabulary at
    this machine's rate of a large matrix product, `sampling_s` the least that sampling can take.
    """

    parameters: int
    vocabulary: int
    hidden: int
    tokens_per_pair: int
    weights_gb: float
    moments_gb: float
    cache_gb: float
    hidden_gb: float
    blocks_gb: float
    memory_gb: float
    free_gb: float
    passes_s: float
    sampling_s: float

    def check(self) -> None:
        """Raise UsageError where the probe does not fit into the free memory."""
        if self.memory_gb > self.free_gb:
            raise UsageError(
                f"the probe needs about {self.memory_gb:.0f} GB (weights {self.weights_gb:.1f}, Adam "
                f"{self.moments_gb:.1f}, sampling {self.cache_gb:.1f}) and {self.free_gb:.0f} GB are free: give "
                "--dtype bfloat16, --metric plain, --rollouts, or less --completions or --max-completion-length"
            )


def cost_of(job: ProbeJob) -> Cost:
    """The cost of a job at the head. Raises UsageError where the model's configuration is not available."""
    config = _config(job.policy)
    text, options, sampling = config.get_text_config(), job.load_options, job.settings.sampling
    device, dtype = choose_device(options.get("device", "auto")), options.get("dtype", "auto")
    size = 2 if dtype == "bfloat16" else 4
    parameters, (vocabulary, hidden) = _sizes(config)
    tokens = 2 * sampling.completions * sampling.max_completion_length
    passed = tokens + 2 * sampling.completions * _PROMPT_TOKENS
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or hidden // text.num_attention_heads
    cached = 0 if job.rollouts else passed // 2 * 2 * text.num_hidden_layers * heads * head_width
    parts = (
        parameters * size,
        2 * vocabulary * hidden * 4 if "adam" in job.settings.metrics else 0,
        cached * size,
        2 * min(tokens * hidden * size // 2, KEPT_BYTES),
        6 * BLOCK_NUMBERS[device.partition(":")[0]] * 4,
    )
    rate = _rate(device, torch_dtype("bfloat16" if size == 2 else "float32"))
    body = 2 * (parameters - vocabulary * hidden)
    gigabytes = [part / 1e9 for part in parts]
    return Cost(
        parameters, vocabulary, hidden, tokens, *gigabytes, memory_gb=sum(gigabytes), free_gb=free_bytes(device) / 1e9,
        passes_s=(passed * body + tokens * 3 * 2 * vocabulary * hidden) / rate,
        sampling_s=0.0 if job.rollouts else (passed * body + tokens * 2 * vocabulary * hidden) / rate,
    )  # fmt: skip


def _config(policy: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(resolve(policy, weights=False).folder, local_files_only=True)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"model '{policy}': its configuration cannot be read ({one_line(error)})") from error


def _sizes(config: Any) -> tuple[int, tuple[int, int]]:
    """Parameters, and (vocabulary, hidden) of the head, without memory for either."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    if head is None:
        raise UsageError("the policy has no output embedding, and --params head needs one: give --params all")
    return sum(p.numel() for p in model.parameters()), tuple(head.weight.shape)


def _rate(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a matrix product on the device, measured in a fraction of a second."""
    a, b = (torch.ones(1024, 1024, device=device, dtype=dtype) for _ in range(2))
    for _ in range(2):  # the second one: the first also loads the library
        began_s = time.perf_counter()
        found = a @ b
        float(found[0, 0])  # waits for the device
        spent_s = time.perf_counter() - began_s
    return 2 * 1024**3 / spent_s


def free_bytes(device: str) -> int:
    """Memory that is free on the device; on the CPU, what the system has free without swapping."""
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
