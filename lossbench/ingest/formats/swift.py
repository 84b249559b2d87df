"""ms-swift's GRPO trainer: `completions.jsonl` (`--log_completions true`), `logging.jsonl` and `args.json`.

Written against ms-swift 4 (`rlhf_trainers/grpo_trainer.py`, `megatron/trainers`, `utils/io_utils.py`). A line of
`completions.jsonl` is one table: step (as text; `gen_step` from Megatron), prompt, completion, one column per reward
function, advantages, each a list. Objects with one completion each are read as well. A line of `logging.jsonl` is one
step of metrics, numbered by `global_step/max_steps` (Megatron: `iteration`) as "3/200".

A generation is logged again at each step that uses it, with `--log_entropy` only as far as it has been trained on; and
an evaluation logs its table after the training's of the same step.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossbench.ingest.base import Format, IngestedRun, Request, named_run
from lossbench.ingest.curves import add_logs
from lossbench.ingest.fields import listed, number, whole
from lossbench.ingest.reading import json_object, records
from lossbench.ingest.trainer_logs import (
    Rewards,
    TrainingTables,
    evaluated_steps,
    reward_names,
    rewards_by_step,
    stage_table,
    training_rows,
)

COMPLETIONS, LOGGING, ARGS = "completions.jsonl", "logging.jsonl", "args.json"
_PROGRESS = ("global_step/max_steps", "iteration")


def found(path: Path) -> str | None:
    """Name of the file that makes `path` the output folder (or one of the log files) of ms-swift."""
    if path.is_file():
        return path.name if path.name in (COMPLETIONS, LOGGING) else None
    return next((name for name in (COMPLETIONS, LOGGING) if (path / name).is_file()), None)


def read(folder: Path, request: Request) -> Iterator[IngestedRun]:
    """The run in a folder."""
    request = request.part()
    run = named_run(folder, request)
    inside = {name: folder if folder.name == name else folder / name for name in (COMPLETIONS, LOGGING, ARGS)}
    args = json_object(inside[ARGS], request.damage) if inside[ARGS].is_file() else {}
    history = list(_history(inside[LOGGING], request))
    run.num_generations = whole(args.get("num_generations"))
    run.steps_planned = next((planned for _, planned, _ in history[::-1]), None)
    logged = [(step, row) for step, _, row in history]
    rows = training_rows(logged)
    add_logs(run, rows, request)
    run.logged_rewards = rewards_by_step(rows)
    if inside[COMPLETIONS].is_file():
        only_evaluated = evaluated_steps(logged) - {step for step, _ in rows}
        rewards = Rewards(reward_names(row for _, row in rows), _reward_weights(args), run.notes)
        _stage(inside[COMPLETIONS], only_evaluated, rewards, run, request)
    yield run


def _reward_weights(args: dict[str, Any]) -> tuple[float, ...] | None:
    """`--reward_weights`, none at all where it was not given; None where the arguments do not hold it."""
    given = args.get("reward_weights")
    if "reward_weights" not in args or not isinstance(given, list | None):
        return None
    weights = [weight for value in given or () if (weight := number(value)) is not None]
    return tuple(weights) if len(weights) == len(given or ()) else None


def _history(file: Path, request: Request) -> Iterator[tuple[int, int | None, dict[str, Any]]]:
    """(step, planned steps, metrics) of every training line."""
    if not file.is_file():
        return
    for line, row in records(file, request.damage):
        progress = next((str(row[key]) for key in _PROGRESS if key in row), None)
        if progress is None:
            continue
        at, _, planned = progress.partition("/")
        if (step := whole(at)) is not None:
            yield step, whole(planned), row
        else:
            request.damage.add(f"{file}, line {line}", f"no step in '{progress}'")


def _stage(file: Path, only_evaluated: set[int], rewards: Rewards, run: IngestedRun, request: Request) -> None:
    tables = TrainingTables(only_evaluated)
    for line, record in _checked(file, request):
        is_table = isinstance(record["completion"], list)
        table = tables.new_rows(record) if is_table else {name: [value] for name, value in record.items()}
        if table is not None and table["completion"]:
            stage_table(table, [line] * len(table["completion"]), file, rewards, run, request)
    if tables.left_out:
        run.notes.append(
            f"tables of step {listed(tables.left_out)} left out: an evaluation's, or logged again by a resumed run"
        )


def _checked(file: Path, request: Request) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of the lines that hold completions; step, prompt and completion are under these names."""
    for line, record in records(file, request.damage):
        place = f"{file}, line {line}"
        step = request.column("step", ("step", "gen_step"), record, place)
        completion = request.column("completion", ("completion",), record, place)
        prompt = request.column("prompt", ("prompt",), record, place)
        if step is None or completion is None:
            request.damage.add(place, "has no completion, or neither step nor gen_step")
            continue
        record["step"], record["completion"] = _from_one(record[step], step), record[completion]
        if prompt is not None:
            record["prompt"] = record[prompt]
        if not isinstance(record["completion"], list):
            yield line, record
        elif not isinstance(record["step"], list):
            request.damage.add(place, "its completion is a list, its step is none")
        elif len({len(value) for value in record.values() if isinstance(value, list)}) != 1:
            request.damage.add(place, "its lists differ in length")
        else:
            yield line, {name: value for name, value in record.items() if isinstance(value, list)}


def _from_one(step: Any, column: str) -> Any:
    """A step, or a list of steps, counted from 1; what is no number stays as it is."""
    if column != "gen_step":  # Megatron counts sampling rounds from 0
        return step
    if isinstance(step, list):
        return [_from_one(value, column) for value in step]
    known = whole(step)
    return step if known is None else known + 1


FORMAT = Format("ms-swift: completions.jsonl, logging.jsonl and args.json", found, read)
