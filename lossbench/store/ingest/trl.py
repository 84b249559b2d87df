"""TRL's GRPOTrainer: `completions/completions_<step>.parquet` (`log_completions=True`) and `trainer_state.json`.

Written against TRL 1.16 (`GRPOTrainer.log`); the completions hold step, prompt, completion, one column per reward
function, extra columns of the user, and advantage. Prompts and completions are text, or lists of messages. A file
holds the latest generation, so the same one is written again at each optimizer step that uses it: it is read once, at
the first.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lossbench.errors import one_line
from lossbench.store.ingest.base import Block, Format, IngestedRun, Request, mode_and_seed, renamed_log, run_folders
from lossbench.store.ingest.blocks import block
from lossbench.store.ingest.trainer_logs import (
    CORRECT_COLUMNS,
    STEP_KEYS,
    RepeatedTable,
    message_text,
    reward_columns,
    reward_names,
    summed,
)

_COMPLETIONS = re.compile(r"completions_(\d+)\.parquet")
STATE_FILE = "trainer_state.json"


def found(path: Path) -> str | None:
    """What makes `path` the output folder (or a completions file) of TRL's trainer."""
    if path.is_file():
        return path.name if _COMPLETIONS.fullmatch(path.name) or path.name == STATE_FILE else None
    completions = _completion_files(path)
    if completions:
        return str(completions[0].relative_to(path))
    if any((path / name).exists() for name in ("completions.jsonl", "logging.jsonl")):
        return None  # ms-swift's trainer leaves a trainer_state.json too
    state = _state_file(path)
    return str(state.relative_to(path)) if state else None


def _completion_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _COMPLETIONS.fullmatch(path.name) else []
    files = [*path.glob("completions/completions_*.parquet"), *path.glob("completions_*.parquet")]
    return sorted((file for file in files if _COMPLETIONS.fullmatch(file.name)), key=_step_of)


def _step_of(file: Path) -> int:
    match = _COMPLETIONS.fullmatch(file.name)
    return int(match[1]) if match else 0


def _state_file(path: Path) -> Path | None:
    """The trainer state that saw most steps: the folder's own, else that of its last checkpoint."""
    if path.is_file():
        return path if path.name == STATE_FILE else None
    if (path / STATE_FILE).exists():
        return path / STATE_FILE
    states = [file for file in path.glob(f"checkpoint-*/{STATE_FILE}") if file.parent.name[11:].isdigit()]
    return max(states, key=lambda file: int(file.parent.name[11:]), default=None)


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run in folder `path`, or one run per subfolder that is one."""
    for folder in run_folders(path, found):
        yield _run(folder, request)


def _run(folder: Path, request: Request) -> IngestedRun:
    state_file = _state_file(folder)
    state = _state(state_file, request) if state_file else {}
    history = [row for row in state.get("log_history", []) if "step" in row and ("loss" in row or "reward" in row)]
    name = folder.stem if folder.is_file() else folder.name
    named = mode_and_seed(name)
    run = IngestedRun(folder, name, mode=named[0] if named else None, seed=named[1] if named else None)
    run.logs = [renamed_log(row, int(row["step"]), STEP_KEYS, request.columns) for row in history]
    run.steps_planned = state.get("max_steps")
    if (state.get("logging_steps") or 1) > 1:
        run.notes.append(f"step metrics are means over {state['logging_steps']:g} steps (logging_steps)")
    run.blocks = _blocks(_completion_files(folder), reward_names(history), run, request)
    return run


def _state(file: Path, request: Request) -> dict[str, Any]:
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        request.damage.add(str(file), f"not valid JSON ({error})")
        return {}
    return state if isinstance(state, dict) else {}


def _blocks(files: list[Path], rewards: list[str], run: IngestedRun, request: Request) -> Iterator[Block]:
    repeated = RepeatedTable()
    for file in files:
        try:
            columns = pq.read_table(file).to_pydict()
        except (pa.ArrowException, OSError) as error:
            request.damage.add(str(file), f"not a readable parquet file ({one_line(error, 100)})")
            continue
        if not columns.get("step") or "completion" not in columns:
            request.damage.add(str(file), "has no rows, or no columns step and completion")
            continue
        if not repeated(columns["prompt"], columns["completion"], columns.get("advantage", ())):
            yield "rollouts", block(_fields(columns, rewards, run, str(file), request), str(file), request.damage)


def _fields(
    columns: dict[str, list[Any]], rewards: list[str], run: IngestedRun, place: str, request: Request
) -> dict[str, list[Any]]:
    mapped = request.column("reward", (), columns, place)
    summands = reward_columns(columns, rewards, mapped)
    note = f"reward is the plain sum of {', '.join(summands)}: the log does not hold their weights"
    if len(summands) > 1 and note not in run.notes:
        run.notes.append(note)
    fields = {
        "step": columns["step"],
        "prompt": [message_text(value) for value in columns["prompt"]],
        "completion": [message_text(value) for value in columns["completion"]],
    }
    if summands:
        fields["reward"] = summed(columns, summands)
    usual = {"correct": CORRECT_COLUMNS, "advantage": ("advantage", "advantages")}
    for name in ("correct", "advantage", "length", "terminated", "group"):
        column = request.column(name, usual.get(name, ()), columns, place)
        if column:
            fields[name] = columns[column]
    return fields


FORMAT = Format("TRL: completions_*.parquet and trainer_state.json", found, read)
