"""Reading a JSONL log: within three times pandas' reading of the file, and 1 GB of log within 1 GB of memory."""

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.sweep_folder import ingest

MEGABYTE = 1_000_000
TIMES_PANDAS, PEAK_MIB = 3.0, 1000
FORMAT = {"table": "csv", "runs": "csv"}
_MEASURE = """
import re, sys
from pathlib import Path
from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.sweep_folder import ingest
ingest(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Request(mode="grpo"), Reading())
# Of this program alone: ru_maxrss begins with what the parent had when it started this one.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def write_log(path, size_bytes, kind="verl"):
    """Write a log of many steps, 1.6 kB a completion on average, 8 to a prompt; the number of its completions."""
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(3000)]
    prompts = [" ".join(generator.choice(words, 40)) for _ in range(500)]
    texts = [" ".join(generator.choice(words, int(generator.integers(50, 400)))) for _ in range(2000)]
    written = row = 0
    with path.open("w") as file:
        while written < size_bytes:
            rows = [
                (prompts[i // 8 % 500], f"{texts[generator.integers(2000)]} {i}", i % 2) for i in range(row, row + 64)
            ]
            written += sum(file.write(json.dumps(line) + "\n") for line in LINES[kind](rows, row))
            row += 64
    return row


def verl_lines(rows, first):
    """A line per completion, each named as a sample of its prompt."""
    for i, (prompt, text, right) in enumerate(rows, start=first):
        yield {
            "input": prompt, "output": text, "gts": "12", "score": float(right), "step": 1 + i // 512,
            "acc": right == 1, "uid": f"u{i // 8}_{i % 8}_0",
        }  # fmt: skip


def swift_lines(rows, first):
    """A line per step, with a table of its completions."""
    prompts, texts, right = map(list, zip(*rows, strict=True))
    yield {
        "step": [str(1 + first // 64)] * len(rows), "prompt": prompts, "completion": texts,
        "MathAccuracy": list(map(float, right)), "advantages": [r - 0.5 for r in right],
    }  # fmt: skip


def table_lines(rows, first):
    """A line per completion, as someone might write it."""
    for i, (prompt, text, right) in enumerate(rows, start=first):
        yield {
            "step": 1 + i // 512, "prompt": prompt, "completion": text, "reward": float(right), "correct": right == 1,
            "group": i // 8,
        }  # fmt: skip


def lines_of_runs(rows, first):
    """Four runs that were logged side by side."""
    for i, line in enumerate(table_lines(rows, first)):
        yield {"mode": "grpo", "seed": i % 4, **line}


LINES = {"verl": verl_lines, "swift": swift_lines, "table": table_lines, "runs": lines_of_runs}


def log_at(folder, size_bytes, kind):
    """A log's file, under the name by which its format is known, and its completions."""
    folder.mkdir()
    path = folder / ("completions.jsonl" if kind == "swift" else "grpo-s0.jsonl")
    return path, write_log(path, size_bytes, kind)


def fastest(*calls, repeats=8):
    """Least wall-clock seconds of each call, made in turn: the one least disturbed by others."""
    times = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times]


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", LINES)
def test_speed_against_pandas(kind, tmp_path, capsys):
    log, rows = log_at(tmp_path / "log", 50 * MEGABYTE, kind)

    def ours():
        return ingest(log, tmp_path / "out", FORMAT.get(kind) or kind, Request(mode="grpo"), Reading())

    assert sum(run["rollouts"] for run in ours().runs.values()) == rows
    plain_s, ours_s = fastest(lambda: pd.read_json(log, lines=True), ours)
    with capsys.disabled():
        print(f"\n{kind}: ingest {ours_s:.2f} s, pandas.read_json {plain_s:.2f} s, ratio {ours_s / plain_s:.2f}")
    assert ours_s <= TIMES_PANDAS * plain_s


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", LINES)
def test_memory_of_a_large_log(kind, tmp_path, capsys):
    log, rows = log_at(tmp_path / "log", 1000 * MEGABYTE, kind)
    command = [sys.executable, "-c", _MEASURE, str(log), str(tmp_path / "out"), FORMAT.get(kind, kind)]
    peak_mib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
    with capsys.disabled():
        print(f"\n{kind}: peak memory {peak_mib:.0f} MiB on 1 GB of {rows} completions")
    assert peak_mib <= PEAK_MIB
