"""A report on ten million completions: 100 runs of 1,000 steps of 100 rows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.made_sweeps import Plan, run_labels, step_rows, sweep_spec

from lossbench.store.write import write_json, write_table

ARMS = ("grpo", "dr_grpo", "grpo@seq-mean-token-mean/none", "grpo@seq-mean-token-sum-norm/group", "dapo")
SEEDS, STEPS, ROWS = 20, 1000, 100
SECONDS, GIGABYTES = 14.0, 1.5

MEASURE = """
import resource, sys, time
from pathlib import Path
begin = time.perf_counter()
from lossbench.report.write import make_report
made = make_report(Path(sys.argv[1]))
assert made.complete
print(time.perf_counter() - begin, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def _write_run(folder: Path, run_id: str, labels: dict, rng: np.random.Generator) -> None:
    n = STEPS * ROWS
    row = np.arange(n)
    step, group = row // ROWS + 1, row % ROWS // 10
    correct = rng.random(n) < 0.5
    length = np.minimum(128, 2 + rng.geometric(1 / np.where(correct, 17.0, 25.0)))
    names = ("mode", "loss_type", "agg_mode", "scale_rewards")
    words = {"run_id": run_id, **{name: labels[name] for name in names}}
    zeros = pa.array(np.zeros(n, np.int32))
    columns = {name: pa.DictionaryArray.from_arrays(zeros, pa.array([word])) for name, word in words.items()}
    numbers = {
        "seed": np.full(n, labels["seed"]), "generation": step, "step": step, "prompt_id": rng.integers(0, 100, n),
        "group": group, "sample": row % 10, "length_tokens": length, "terminated": length < 128,
        "reward": (correct & (length < 128)).astype(float), "correct": correct, "advantage": correct - 0.5,
        "token_weight": 1 / (ROWS * length),
    }  # fmt: skip
    run_dir = folder / "runs" / run_id
    run_dir.mkdir(parents=True)
    table = pa.table({**columns, **{name: pa.array(values) for name, values in numbers.items()}})
    write_table(run_dir / "rollouts.parquet", "rollouts", table)
    write_table(run_dir / "steps.parquet", "steps", step_rows({"step": step, "length_tokens": length}, rng))
    write_json(run_dir / "run.json", {"status": "completed", "steps_done": STEPS})


@pytest.mark.benchmark
def test_ten_million_rows_in_seconds_and_in_little_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = dict(run_labels(arm, seed) for seed in range(SEEDS) for arm in ARMS)
    for run_id, labels in runs.items():
        labels["steps_planned"] = STEPS
        _write_run(tmp_path, run_id, labels, rng)
    write_json(tmp_path / "sweep.json", sweep_spec(Plan(ARMS, SEEDS, STEPS), runs))
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, cpu_seconds, gigabytes = map(float, printed.split())
    rows = SEEDS * len(ARMS) * STEPS * ROWS
    print(f"report on {rows:,} rows: {seconds:.1f} s ({cpu_seconds:.1f} s of CPU), {gigabytes:.2f} GB")
    assert seconds <= SECONDS
    assert gigabytes <= GIGABYTES
