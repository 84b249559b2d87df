"""What people run today: one GRPO run as a plain TRL script. Arguments: policy folder, loss type, seed, steps, output.

Writes the mean completion length of every step to the output file.
"""

import os
import re
import sys
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

policy, loss_type, seed, steps, output = sys.argv[1:]


def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: object) -> list[float]:
    """1 for the right digits before an EOS."""
    eos = trainer.processing_class.eos_token_id
    found = [re.match(r"\d+", text) for text in completions]
    return [
        float(match is not None and match[0] == right and ids[-1] == eos)
        for match, right, ids in zip(found, answer, completion_ids, strict=True)
    ]


sums = [(a, b) for a in range(10) for b in range(10)]
trainer = GRPOTrainer(
    model=policy,
    reward_funcs=reward,
    train_dataset=Dataset.from_dict(
        {"prompt": [f"{a}+{b}=" for a, b in sums], "answer": [f"{a + b:02d}"[::-1] for a, b in sums]}
    ),
    args=GRPOConfig(
        output_dir=f"{output}.trl",
        loss_type=loss_type,
        scale_rewards="none" if loss_type == "dr_grpo" else "group",
        seed=int(seed),
        max_steps=int(steps),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=128,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    ),
)
trainer.train()
history = trainer.state.log_history
lengths = [str(entry["completions/mean_length"]) for entry in history if "completions/mean_length" in entry]
Path(output).write_text(" ".join(lengths))
