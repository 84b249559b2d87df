"""TRL's GRPOTrainer: `completions/completions_<step>.parquet` (`log_completions=True`) and `trainer_state.json`.

Written against TRL 1.16 (`GRPOTrainer.log`); the completions hold step, prompt, completion, one column per reward
function, extra columns of the user, and advantage. Prompts and completions are text, or lists of messages. A file
holds the latest generation, so the same one is written again at each optimizer step that uses it: it is read once, at
the first. An evaluation writes the file of its step once more, with its own completions among or instead of the
training's: that file is left out.
"""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lossbench.errors import one_line
from lossbench.ingest.base import Format, IngestedRun, Request, one_run
from lossbench.ingest.fields import listed, number, whole
from lossbench.ingest.reading import json_object
from lossbench.ingest.trainer_logs import Logged, TrainerTables, evaluated_steps

_COMPLETIONS = re.compile(r"completions_(\d+)\.parquet")
STATE_FILE = "trainer_state.json"


def _files(path: Path) -> list[Path]:
    """The completions files of TRL's trainer at a path, else its state."""
    state = _state_file(path)
    if path.is_dir() and any((path / name).exists() for name in ("completions.jsonl", "logging.jsonl")):
        state = None  # ms-swift's trainer leaves a trainer_state.json too
    return _completion_files(path) or ([state] if state else [])


def _is_state(file: Path) -> bool:
    """Whether a file is a trainer's state, whatever its name."""
    if file.suffix != ".json":
        return False
    with file.open("rb") as stream:
        return file.name == STATE_FILE or b'"log_history"' in stream.read(1 << 16)


def _completion_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _COMPLETIONS.fullmatch(path.name) else []
    files = [*path.glob("completions/completions_*.parquet"), *path.glob("completions_*.parquet")]
    return sorted((file for file in files if _COMPLETIONS.fullmatch(file.name)), key=_step_of)


def _step_of(file: Path) -> int:
    return int(file.stem.removeprefix("completions_"))


def _state_file(path: Path) -> Path | None:
    """The trainer state that saw most steps: the folder's own, else that of its last checkpoint."""
    if path.is_file():
        return path if _is_state(path) else None
    if (path / STATE_FILE).exists():
        return path / STATE_FILE
    states = [file for file in path.glob(f"checkpoint-*/{STATE_FILE}") if file.parent.name[11:].isdigit()]
    return max(states, key=lambda file: int(file.parent.name[11:]), default=None)


def _fill(folder: Path, run: IngestedRun, request: Request) -> None:
    state_file = _state_file(folder)
    state = json_object(state_file, run.damage) if state_file else {}
    tables = TrainerTables(run, request)
    tables.read_log(_history(state))
    run.steps_planned = whole(state.get("max_steps"))
    if (every := number(state.get("logging_steps")) or 1) > 1:
        run.notes.append(f"step metrics are means over {every:g} steps (logging_steps)")
    files = _completion_files(folder)
    # The trainer state that belongs to a completions file named alone.
    beside = (folder.parent, folder.parent.parent) if _COMPLETIONS.fullmatch(folder.name) else ()
    alone = next((found for above in beside if (found := _state_file(above))), None)
    saved = json_object(alone, run.damage) if alone else state
    if files and not saved:
        run.notes.append(
            f"no {STATE_FILE} to read: completions of an evaluation, if there was one, are taken for training's"
        )
    _stage(files, _evaluated(saved, files), tables)


def _history(state: dict[str, Any]) -> Logged:
    """(step, row) of the trainer's log, in its order."""
    history = state.get("log_history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    return [(step, row) for row in rows if (step := whole(row.get("step"))) is not None]


def _evaluated(state: dict[str, Any], files: list[Path]) -> set[int]:
    """Steps whose completions file an evaluation wrote again.

    A state is saved with a checkpoint, so a run that was killed evaluated after its last one too: by the same period.
    """
    steps = evaluated_steps(_history(state))
    period, last = whole(state.get("eval_steps")), whole(state.get("global_step"))
    if steps and last is not None and period and all(step % period == 0 for step in steps):
        steps |= {step for step in map(_step_of, files) if step > last and step % period == 0}
    return steps


def _stage(files: list[Path], evaluated: set[int], tables: TrainerTables) -> None:
    left_out = []
    for file in files:
        columns = _columns(file, tables.run, tables.request)
        if columns is None:
            continue
        # An evaluation's rows are written again too, until new ones are drawn.
        known, rows = tables.known_rows(columns, ("prompt", "completion", "advantage")), len(columns["completion"])
        if _step_of(file) in evaluated:
            left_out.append(_step_of(file))
        elif known < rows:
            tables.stage(columns, range(1, rows + 1), file)
    if left_out:
        tables.run.notes.append(f"completions of step {listed(left_out)} left out: an evaluation wrote over their file")


def _columns(file: Path, run: IngestedRun, request: Request) -> dict[str, list[Any]] | None:
    """The columns of a completions file, with `step` and `completion` under these names; None where it is damaged."""
    try:
        columns = pq.read_table(file).to_pydict()
    except (pa.ArrowException, OSError, ValueError) as error:
        run.damage.add(str(file), f"not a readable parquet file ({one_line(error, 100)})")
        return None
    named = request.fields({name: (name,) for name in ("step", "prompt", "completion")}, columns, str(file))
    columns |= {ours: columns[name] for ours, name in named.items()}
    if not columns.get("step") or "completion" not in columns:
        run.damage.add(str(file), "has no rows, or no columns step and completion")
        return None
    return columns


FORMAT = Format("trl", "TRL: completions_*.parquet and trainer_state.json", _files, one_run(_fill))
