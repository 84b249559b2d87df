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

from lossbench.ingest.base import Format, IngestedRun, Request, one_run
from lossbench.ingest.fields import listed, number, whole
from lossbench.ingest.reading import json_object, records
from lossbench.ingest.trainer_logs import TrainerTables, evaluated_steps

COMPLETIONS, LOGGING, ARGS = "completions.jsonl", "logging.jsonl", "args.json"
_USUAL = {"step": ("step", "gen_step"), "completion": ("completion",), "prompt": ("prompt",)}


def _files(path: Path) -> list[Path]:
    return [file for name in (COMPLETIONS, LOGGING) if (file := _inside(path, name)).is_file()]


def _inside(path: Path, name: str) -> Path:
    return path if path.name == name else path / name


def _fill(folder: Path, run: IngestedRun, request: Request) -> None:
    completions, logging, args_file = (_inside(folder, name) for name in (COMPLETIONS, LOGGING, ARGS))
    args = json_object(args_file, run.damage) if args_file.is_file() else {}
    history = list(_history(logging, run)) if logging.is_file() else []
    run.num_generations = whole(args.get("num_generations"))
    run.steps_planned = next((planned for _, planned, _ in history[::-1]), None)
    logged = [(step, row) for step, _, row in history]
    tables = TrainerTables(run, request, weights=_reward_weights(args))
    trained = tables.read_log(logged)
    if completions.is_file():
        _stage(completions, tables, evaluated_steps(logged) - trained)


def _reward_weights(args: dict[str, Any]) -> list[float] | None:
    """`--reward_weights`, none at all where it was not given; None where the arguments do not hold it."""
    given = args.get("reward_weights", "absent") or []
    weights = [number(value) for value in given] if isinstance(given, list) else [None]
    return [weight for weight in weights if weight is not None] if None not in weights else None


def _history(file: Path, run: IngestedRun) -> Iterator[tuple[int, int | None, dict[str, Any]]]:
    """(step, planned steps, metrics) of every training line."""
    for line, row in records(file, run.damage):
        progress = row.get("global_step/max_steps", row.get("iteration"))
        at, _, planned = str(progress).partition("/")
        if (step := whole(at)) is not None:
            yield step, whole(planned), row
        elif progress is not None:
            run.damage.add(f"{file}, line {line}", f"no step in '{progress}'")


def _stage(file: Path, tables: TrainerTables, only_evaluated: set[int]) -> None:
    """Stage the rows of training that are new in a file of tables, or rows by themselves.

    A table may repeat the one before, or begin with it and go on. One that begins afresh at a step that has one already
    is no training's, nor is one of a step that was evaluated and not trained.
    """
    seen: set[int] = set()
    left_out: set[int] = set()
    training, first = True, None  # of the table that goes on: whether it is read, and at which step
    for line, record in _checked(file, tables.run, tables.request):
        if not isinstance(record["completion"], list):
            tables.stage({name: [value] for name, value in record.items()}, [line], file)
            continue
        known, rows = tables.known_rows(record), len(record["completion"])
        steps = {step for step in map(whole, set(map(str, record["step"]))) if step is not None}
        if known == 0 and rows:
            training, first = not steps & seen and not (steps and steps <= only_evaluated), record["step"][0]
            left_out |= set() if training else steps
        elif known:  # one generation, at the step that it began with
            record = {name: values[known:] for name, values in record.items()} | {"step": [first] * (rows - known)}
        seen |= steps
        if training and known < rows:
            tables.stage(record, [line] * (rows - known), file)
    if left_out:
        tables.run.notes.append(
            f"tables of step {listed(left_out)} left out: an evaluation's, or logged again by a resumed run"
        )


def _checked(file: Path, run: IngestedRun, request: Request) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of the lines that hold completions; step, prompt and completion are under these names."""
    for line, record in records(file, run.damage):
        place = f"{file}, line {line}"
        named = request.fields(_USUAL, record, place)
        if not {"step", "completion"} <= named.keys():
            run.damage.add(place, "has no completion, or neither step nor gen_step")
            continue
        record |= {ours: record[name] for ours, name in named.items()}
        if named["step"] == "gen_step":  # Megatron counts sampling rounds from 0
            record["step"] = _from_one(record["step"])
        lists = {name: value for name, value in record.items() if isinstance(value, list)}
        if "completion" not in lists:
            yield line, record
        elif "step" not in lists:
            run.damage.add(place, "its completion is a list, its step is none")
        elif len(set(map(len, lists.values()))) > 1:
            run.damage.add(place, "its lists differ in length")
        else:
            yield line, lists


def _from_one(step: Any) -> Any:
    """A step, or a list of steps, counted from 1; what is no number stays as it is."""
    if isinstance(step, list):
        return list(map(_from_one, step))
    known = whole(step)
    return step if known is None else known + 1


FORMAT = Format("swift", "ms-swift: completions.jsonl, logging.jsonl and args.json", _files, one_run(_fill))
