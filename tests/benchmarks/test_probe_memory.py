"""Peak memory of a probe of half a billion parameters with completions of 512 tokens, in float32 on the CPU.

The model is random and the completions are made up: memory depends on sizes alone. One pair of batches, each of more
than one micro-batch, takes the memory of any number of pairs and of rows.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lossbench.probe.batches import ProbeBatch, Sampling, make_chunks
from lossbench.probe.local_engine import default_max_positions
from lossbench.probe.prober import Prober, ProbeSettings

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

SIZES = {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151_936, "tie_word_embeddings": True,
}  # fmt: skip
"""Those of Qwen2.5-0.5B."""
LENGTHS = (24, 8, 16, 12, 512, 512)
"""The long rows come last: the engine is checked on the first four, which takes less memory than a pair does."""
PROMPT_TOKENS = 24
LIMITS_GB = {"all": 24, "head": 8}


def batch(stream: int, number: int) -> ProbeBatch:
    """Three groups of two completions of random tokens, one right and one wrong in each."""
    rng = np.random.default_rng([stream, number])
    draw = [rng.integers(0, SIZES["vocab_size"], PROMPT_TOKENS + length).tolist() for length in LENGTHS]
    correct = [False, True, True, False, False, True]
    rows = range(len(LENGTHS))
    return ProbeBatch(
        prompt_ids=[ids[:PROMPT_TOKENS] for ids in draw], completion_ids=[ids[PROMPT_TOKENS:] for ids in draw],
        prompt_id=[i // 2 for i in rows], group=[i // 2 for i in rows], sample=[i % 2 for i in rows],
        terminated=[True] * len(rows), reward=[float(right) for right in correct], correct=correct,
    )  # fmt: skip


def measure(params: str) -> None:
    """Probe one pair and print what it took."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    settings = ProbeSettings(Sampling(len(LENGTHS), 2, max(LENGTHS)), pairs=1, moment_batches=1, params=(params,))
    chunks = make_chunks(batch(0, 0), default_max_positions(model), torch.device("cpu"))
    began_s = time.perf_counter()
    prober = Prober(model, batch, settings)
    columns = prober.pair(0)
    print(json.dumps({
        "parameters": sum(p.numel() for p in model.parameters()), "engine": prober.engine.name,
        "micro_batches": [list(chunk.ids_RS.shape) for chunk in chunks], "rows": len(columns["projection"]),
        "finite": bool(np.isfinite(columns["projection"]).all()),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "wall_s": time.perf_counter() - began_s,
    }))  # fmt: skip


@pytest.mark.parametrize("params", LIMITS_GB)
def test_half_a_billion_parameters_and_512_tokens_fit(params):
    child = subprocess.run([sys.executable, __file__, params], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout)
    print(f"\n{found}")
    assert found["parameters"] == 494_032_768 and found["finite"]
    assert found["engine"] == {"all": "local"}.get(params, params)
    assert len(found["micro_batches"]) > 1
    assert found["peak_gb"] < LIMITS_GB[params]


if __name__ == "__main__":
    measure(sys.argv[1])
