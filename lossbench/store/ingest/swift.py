"""ms-swift's GRPO trainer: `completions.jsonl` (`--log_completions true`), `logging.jsonl` and `args.json`.

Written against ms-swift 4 (`rlhf_trainers/grpo_trainer.py`, `megatron/trainers`, `utils/io_utils.py`). A line of
`completions.jsonl` is one table: step (as text; `gen_step` from Megatron), prompt, completion, one column per reward
function, advantages, each a list. Objects with one completion each are read as well. A line of `logging.jsonl` is one
step of metrics, numbered by `global_step/max_steps` (Megatron: `iteration`) as "3/200".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossbench.loss.modes import PRESETS, make_mode
from lossbench.store.ingest.base import Block, Format, IngestedRun, Request, mode_and_seed, renamed_log, run_folders
from lossbench.store.ingest.blocks import block
from lossbench.store.ingest.jsonl import records
from lossbench.store.ingest.trainer_logs import (
    CORRECT_COLUMNS,
    STEP_KEYS,
    RepeatedTable,
    message_text,
    reward_columns,
    reward_names,
    summed,
)

COMPLETIONS, LOGGING, ARGS = "completions.jsonl", "logging.jsonl", "args.json"
_PROGRESS = ("global_step/max_steps", "iteration")
_SINGLE_ROWS = 2000  # completions per block where a line holds one


def found(path: Path) -> str | None:
    """What makes `path` the output folder (or one of the log files) of ms-swift."""
    if path.is_file():
        return path.name if path.name in (COMPLETIONS, LOGGING) else None
    return next((name for name in (COMPLETIONS, LOGGING) if (path / name).is_file()), None)


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run in folder `path`, or one run per subfolder that is one (ms-swift names them v0-<time>, v1-<time>,
    ...)."""
    for folder in run_folders(path, found):
        yield _run(folder, request)


def _run(folder: Path, request: Request) -> IngestedRun:
    inside = {name: folder if folder.name == name else folder / name for name in (COMPLETIONS, LOGGING, ARGS)}
    args = _args(inside[ARGS], request)
    history = list(_history(inside[LOGGING], request))
    name = folder.stem if folder.is_file() else folder.name
    named = mode_and_seed(name)
    run = IngestedRun(folder, name, mode=mode_of_args(args) or (named[0] if named else None))
    run.seed = args.get("seed", named[1] if named else None)
    run.num_generations = args.get("num_generations")
    run.steps_planned = next((planned for _, planned, _ in history[::-1]), None)
    rows = [(step, row) for step, _, row in history if "loss" in row or "reward" in row]
    run.logs = [renamed_log(row, step, STEP_KEYS, request.columns) for step, row in rows]
    if inside[COMPLETIONS].is_file():
        run.blocks = _blocks(inside[COMPLETIONS], reward_names(row for _, row in rows), run, request)
    return run


def _args(file: Path, request: Request) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        args = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        request.damage.add(str(file), f"not valid JSON ({error})")
        return {}
    return args if isinstance(args, dict) else {}


def mode_of_args(args: dict[str, Any]) -> str | None:
    """The mode that ms-swift's arguments set, None where they name none that lossbench knows.

    ms-swift's `dr_grpo` is the divisor alone: its advantages keep the std unless `scale_rewards` says otherwise.
    """
    preset = PRESETS.get(args.get("loss_type", ""))
    if preset is None or args.get("advantage_estimator", "grpo") != "grpo":
        return None
    surrogate, aggregation, _ = preset
    if surrogate == "gspo":  # ms-swift's luspo and gspo are sequence-level by importance_sampling_level
        surrogate = "grpo"
    if surrogate == "grpo" and args.get("importance_sampling_level") in ("sequence", "sequence_token"):
        surrogate = "gspo"
    scale = args.get("scale_rewards", "group")
    scale = {True: "group", False: "none"}.get(scale, scale) if isinstance(scale, bool) else scale
    return make_mode(surrogate, aggregation, scale).name if scale in ("group", "batch", "none") else None


def _history(file: Path, request: Request) -> Iterator[tuple[int, int | None, dict[str, Any]]]:
    """(step, planned steps, metrics) of every training line."""
    if not file.is_file():
        return
    for number, row in records(file, request.damage):
        progress = next((str(row[key]) for key in _PROGRESS if key in row), None)
        if progress is None:
            continue
        step, _, planned = progress.partition("/")
        if step.isdigit():
            yield int(step), int(planned) if planned.isdigit() else None, row
        else:
            request.damage.add(f"{file}, line {number}", f"no step in '{progress}'")


def _blocks(file: Path, rewards: list[str], run: IngestedRun, request: Request) -> Iterator[Block]:
    repeated, singles = RepeatedTable(), []
    for number, record in records(file, request.damage):
        place = f"{file}, line {number}"
        if "completion" not in record or not ("step" in record or "gen_step" in record):
            request.damage.add(place, "has no completion, or neither step nor gen_step")
        elif not isinstance(record["completion"], list):
            singles.append(record)
            if len(singles) == _SINGLE_ROWS:
                yield _block(_transposed(singles), rewards, run, place, request)
                singles = []
        elif len({len(value) for value in record.values() if isinstance(value, list)}) != 1:
            request.damage.add(place, "its lists differ in length")
        elif not repeated(record.get("prompt", ()), record["completion"]):
            yield _block(record, rewards, run, place, request)
    if singles:
        yield _block(_transposed(singles), rewards, run, str(file), request)


def _transposed(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


def _block(record: dict[str, Any], rewards: list[str], run: IngestedRun, place: str, request: Request) -> Block:
    columns = {name: values for name, values in record.items() if isinstance(values, list)}
    if "step" not in columns:  # Megatron counts sampling rounds from 0
        columns["step"] = [step if step is None else int(step) + 1 for step in columns["gen_step"]]
    fields: dict[str, list[Any]] = {"step": columns["step"]}
    for name in ("prompt", "completion"):
        if name in columns:
            fields[name] = [message_text(value) for value in columns[name]]
    summands = reward_columns(columns, rewards, request.column("reward", (), columns, place))
    note = f"reward is the plain sum of {', '.join(summands)}: the log does not hold their weights"
    if len(summands) > 1 and note not in run.notes:
        run.notes.append(note)
    if summands:
        fields["reward"] = summed(columns, summands)
    usual = {"correct": CORRECT_COLUMNS, "advantage": ("advantages", "advantage")}
    for name in ("correct", "advantage", "length", "terminated", "group"):
        column = request.column(name, usual.get(name, ()), columns, place)
        if column:
            fields[name] = columns[column]
    return "rollouts", block(fields, place, request.damage)


FORMAT = Format("ms-swift: completions.jsonl, logging.jsonl and args.json", found, read)
