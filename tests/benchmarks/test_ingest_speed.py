"""Reading a JSONL log: not much slower than pandas reads the file, and memory that does not grow with it."""

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from lossbench.ingest.base import Request
from lossbench.ingest.folder import ingest
from lossbench.ingest.sink import Reading

MEGABYTE = 1_000_000
# (time against pandas, memory on 1 GB against 100 MB): frameworks' dumps; a table of anyone's, of one run and of four
LIMITS = {"verl": (1.5, 1.1), "swift": (1.5, 1.1), "table": (1.5, 1.1), "runs": (1.5, 1.1)}
FORMAT = {"table": "csv", "runs": "csv"}
_MEASURE = """
import re, sys
from pathlib import Path
from lossbench.ingest.base import Request
from lossbench.ingest.folder import ingest
from lossbench.ingest.sink import Reading
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
@pytest.mark.parametrize("kind", LIMITS)
def test_speed_against_pandas(kind, tmp_path, capsys):
    log, rows = log_at(tmp_path / "log", 50 * MEGABYTE, kind)

    def ours():
        return ingest(log, tmp_path / "out", FORMAT.get(kind, kind), Request(mode="grpo"), Reading())

    assert sum(run["rollouts"] for run in ours().runs.values()) == rows
    plain_s, ours_s = fastest(lambda: pd.read_json(log, lines=True), ours)
    with capsys.disabled():
        print(f"\n{kind}: ingest {ours_s:.2f} s, pandas.read_json {plain_s:.2f} s, ratio {ours_s / plain_s:.2f}")
    assert ours_s <= LIMITS[kind][0] * plain_s


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", LIMITS)
def test_memory_stays_flat(kind, tmp_path, capsys):
    peaks = []
    for name, size in (("small", 100 * MEGABYTE), ("large", 1000 * MEGABYTE)):
        log, _ = log_at(tmp_path / name, size, kind)
        command = [sys.executable, "-c", _MEASURE, str(log), str(tmp_path / f"out-{name}"), FORMAT.get(kind, kind)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        log.unlink()
    small, large = peaks
    with capsys.disabled():
        both = f"{small / 1024:.0f} MiB on 100 MB, {large / 1024:.0f} MiB on 1 GB"
        print(f"\n{kind}: peak memory {both}, ratio {large / small:.3f}")
    assert large <= LIMITS[kind][1] * small
