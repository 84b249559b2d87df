"""Logs as the frameworks write them, and one call to read them."""

import json

import pandas as pd
import pytest

from lossbench.errors import UsageError
from lossbench.ingest.base import Request
from lossbench.ingest.fields import Reading
from lossbench.ingest.sweep_folder import ingest


def words(texts):
    return [len(text.split()) for text in texts]


def read(path, out, kind="auto", *, columns=None, mode="grpo", seed=0, generations=None, **reading):
    request = Request(columns or {}, mode, seed, generations)
    return ingest(path, out, kind, request, Reading(**reading))


def verl_lines(step, prompts, samples=2, **extra):
    """What verl's `_dump_generations` writes: row k is sample k % samples of prompt k // samples."""
    return "".join(
        json.dumps(
            {"input": f"q{p}", "output": "x " * (step + s), "gts": str(p), "score": float(s), "step": step}
            | {name: make(p, s) for name, make in extra.items()}
        )
        + "\n"
        for p in range(prompts)
        for s in range(samples)
    )


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(path, text):
    """`path`, with `text` (or bytes) in it and the folders above it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def notes(result):
    return " | ".join(note for run in result.runs.values() for note in run["notes"])


def refusal(path, out, **options):
    """What is said where the log is refused: one line, and nothing written."""
    with pytest.raises(UsageError) as caught:
        read(path, out, **options)
    assert "\n" not in str(caught.value) and not out.exists()
    return str(caught.value)


def completions(folder, number, **columns):
    """A completions file as TRL writes it, of two rows; `columns` replace or add (None: leave out)."""
    usual = {
        "step": [number] * 2,
        "prompt": ["q"] * 2,
        "completion": [f"a{number}", f"b{number}"],
        "advantage": [0.5, -0.5],
    }
    table = {name: values for name, values in {**usual, **columns}.items() if values is not None}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"completions_{number:05d}.parquet"
    pd.DataFrame(table).to_parquet(file)
    return file


def state(*history, **rest):
    """The text of a trainer state."""
    return json.dumps({"log_history": [*history], "max_steps": 50, "logging_steps": 1, **rest})


def completion(step=1, **extra):
    """A line of a verl dump."""
    return {"input": "q", "output": "a b", "score": 1.0, "step": step, **extra}


def verl_log(tmp_path):
    """A run of verl: dumps of rollouts and of validation, and the file logger's metrics."""
    folder = tmp_path / "dapo-s1"
    (folder / "rollout").mkdir(parents=True)
    (folder / "validation").mkdir()
    for step in (1, 2, 10):
        text = verl_lines(step, 2, acc=lambda p, s: s == 1, uid=lambda p, s: f"aa-{p}_{s}_0")
        (folder / "rollout" / f"{step}.jsonl").write_text(text)
    (folder / "validation" / "0.jsonl").write_text(verl_lines(0, 3, 1, reward=lambda p, s: 0.0))
    metrics = {"response_length/mean": 7.0, "critic/rewards/mean": 0.5, "actor/grad_norm": 2.0, "timing_s/step": 3.0}
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "data": metrics}) + "\n")
    return folder
