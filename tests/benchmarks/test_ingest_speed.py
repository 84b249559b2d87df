"""Reading a JSONL log: not much slower than pandas reads the file, and memory that does not grow with it."""

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from lossbench.store.ingest.base import Request
from lossbench.store.ingest.folder import ingest
from lossbench.store.ingest.sink import Reading

MEGABYTE = 1_000_000
# (time against pandas, memory on 1 GB against 100 MB): a framework's dump; a table of anyone's, read row by row
LIMITS = {"verl": (1.5, 1.1), "csv": (1.7, 1.1)}
_MEASURE = """
import re, sys
from pathlib import Path
from lossbench.store.ingest.base import Request
from lossbench.store.ingest.folder import ingest
from lossbench.store.ingest.sink import Reading
ingest(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Request(mode="grpo", seed=0), Reading())
# Of this program alone: ru_maxrss begins with what the parent had when it started this one.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def write_log(path, size_bytes, kind="verl"):
    """A dump of many steps: 64 prompts x 8 completions a step, 1.6 kB a line on average; verl names each sample."""
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(3000)]
    prompts = [" ".join(generator.choice(words, 40)) for _ in range(500)]
    texts = [" ".join(generator.choice(words, int(generator.integers(50, 400)))) for _ in range(2000)]
    sample = "_{}_0" if kind == "verl" else ""
    written = row = 0
    with path.open("w") as file:
        while written < size_bytes:
            line = {
                "input": prompts[row // 8 % 500], "output": f"{texts[generator.integers(2000)]} {row}", "gts": "12",
                "score": float(row % 2), "step": 1 + row // 512, "acc": row % 2 == 1,
                "uid": f"u{row // 8}" + sample.format(row % 8),
            }  # fmt: skip
            written += file.write(json.dumps(line) + "\n")
            row += 1
    return path


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
    log = write_log(tmp_path / "log.jsonl", 50 * MEGABYTE, kind)
    plain_s, ours_s = fastest(
        lambda: pd.read_json(log, lines=True),
        lambda: ingest(log, tmp_path / "out", kind, Request(mode="grpo", seed=0), Reading()),
    )
    with capsys.disabled():
        print(f"\n{kind}: ingest {ours_s:.2f} s, pandas.read_json {plain_s:.2f} s, ratio {ours_s / plain_s:.2f}")
    assert ours_s <= LIMITS[kind][0] * plain_s


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", LIMITS)
def test_memory_stays_flat(kind, tmp_path, capsys):
    peaks = []
    for name, size in (("small", 100 * MEGABYTE), ("large", 1000 * MEGABYTE)):
        log = write_log(tmp_path / f"{name}.jsonl", size, kind)
        command = [sys.executable, "-c", _MEASURE, str(log), str(tmp_path / name), kind]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        log.unlink()
    small, large = peaks
    with capsys.disabled():
        both = f"{small / 1024:.0f} MiB on 100 MB, {large / 1024:.0f} MiB on 1 GB"
        print(f"\n{kind}: peak memory {both}, ratio {large / small:.3f}")
    assert large <= LIMITS[kind][1] * small
