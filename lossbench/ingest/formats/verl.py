"""verl: rollout and validation dumps (`trainer.rollout_data_dir`, `trainer.validation_data_dir`) and the file logger.

Written against verl's `ray_trainer.py` and `ppo/v1/trainer_base.py`: `<step>.jsonl`, a line per completion with
input, output, gts, score, step, what the reward function adds (often `acc`), and in the newer trainer `uid` as
`<prompt>_<session>_<index>`. The file logger writes `{"step": n, "data": {metrics}}` lines. Dumps of validation are
known by their folder's name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lossbench.ingest.base import (
    Block,
    Format,
    IngestedRun,
    Request,
    mode_and_seed,
    renamed_log,
    run_folders,
    whole,
    wholes,
)
from lossbench.ingest.jsonl import first_fields, first_record, records, tables

STEP_KEYS: dict[str, tuple[str, ...]] = {
    "reward_mean": ("critic/rewards/mean", "critic/score/mean"),
    "length_mean": ("response_length/mean",),
    "truncated_frac": ("response_length/clip_ratio",),
    "loss": ("actor/pg_loss",),
    "grad_norm": ("actor/grad_norm",),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "clip_frac": ("actor/pg_clipfrac",),
    "kl": ("actor/kl_loss",),
    "lr": ("actor/lr",),
    "wall_s": ("timing_s/step",),
}
_USUAL = {
    "step": ("step",),
    "prompt": ("input",),
    "completion": ("output",),
    "reward": ("score",),
    "correct": ("acc", "correct"),
    "group": ("uid",),
    "advantage": (),
    "length": (),
    "terminated": (),
}
_TEXT = ("prompt", "completion", "group")
_FLAGS = ("correct", "terminated")
_DUMP_KEYS = {"input", "output", "score"}
_DUMP_NAME = re.compile(r"\d+\.jsonl")
_VALIDATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation)(?![a-z])", re.IGNORECASE)
_ROLLOUT = re.compile(r"(?<![a-z])(rollout|train)", re.IGNORECASE)
_SESSION = r"_\d+_\d+$"


def found(path: Path) -> str | None:
    """What makes `path` a folder of verl's dumps, a folder of such folders, or one such file."""
    if path.is_file():
        return path.name if path.suffix == ".jsonl" and (_is_dump(path) or _is_metrics(path)) else None
    dump = next((file for file in _dumps(path) if _is_dump(file)), None)
    if dump is not None:
        return str(dump.relative_to(path))
    return next((file.name for file in sorted(path.glob("*.jsonl")) if _is_metrics(file)), None)


def _is_dump(file: Path) -> bool:
    return first_fields(file).keys() >= _DUMP_KEYS


def _is_metrics(file: Path) -> bool:
    record = first_record(file) or {}
    return set(record) == {"step", "data"} and isinstance(record["data"], dict)


def _dumps(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _is_dump(path) else []
    folders = [path, *(folder for folder in sorted(path.iterdir()) if _holds_dumps_of_parent(folder))]
    files = [file for folder in folders for file in folder.iterdir() if _DUMP_NAME.fullmatch(file.name)]
    files = [file for file in files if file.is_file()]
    return sorted(files, key=lambda file: (int(file.stem), str(file)))


def _holds_dumps_of_parent(folder: Path) -> bool:
    """Whether a folder is named for what its run dumped there; one named for a mode and a seed is a run itself."""
    named = _ROLLOUT.search(folder.name) or _VALIDATION.search(folder.name)
    return folder.is_dir() and named is not None and mode_and_seed(folder.name) is None


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run whose dumps lie in `path`, or one run per subfolder that is one."""
    for folder in run_folders(path, found):
        yield _run(folder, request)


def _run(path: Path, request: Request) -> IngestedRun:
    name = path.stem if path.is_file() else path.name
    named = mode_and_seed(name)
    run = IngestedRun(path, name, mode=named[0] if named else None, seed=named[1] if named else None)
    request = request.part()
    run.damage = request.damage
    for file in [path] if path.is_file() else sorted(path.glob("*.jsonl")):
        if _is_metrics(file):
            for _, row in records(file, request.damage):
                data, step = row.get("data"), whole(row.get("step"))
                if isinstance(data, dict) and step is not None:
                    run.logs.append(renamed_log(data, step, STEP_KEYS, request))
    run.blocks = _blocks(_dumps(path), request)
    return run


def _blocks(files: list[Path], request: Request) -> Iterator[Block]:
    for file in files:
        first = first_fields(file)
        if not first:
            request.damage.add(str(file), "holds no JSON object with fields")
            continue
        columns = {
            ours: column
            for ours, usual in _USUAL.items()
            if (column := request.column(ours, usual, first, str(file))) is not None
        }
        if not columns.keys() & {"completion", "reward", "length"}:
            request.damage.add(str(file), "holds no completions")
            continue
        kinds = {column: _kind(ours, first[column]) for ours, column in columns.items()}
        step = whole(file.stem) if file.stem.isdecimal() else None
        split = "evals" if _VALIDATION.search(file.parent.name) else "rollouts"
        for table in tables(file, kinds, request.damage):
            yield split, _fields(table, columns, step, file, request)


def _kind(ours: str, value: Any) -> pa.DataType:
    if ours in _TEXT:
        return pa.string()
    return pa.bool_() if ours in _FLAGS and isinstance(value, bool) else pa.float64()


def _fields(table: pa.Table, columns: dict[str, str], step: int | None, file: Path, request: Request) -> pa.Table:
    """The table's columns under our names; the file's name gives the step of a row that has none."""
    fields = {ours: table[column] for ours, column in columns.items()}
    if "group" in fields:
        fields["group"] = pc.call_function(
            "replace_substring_regex", [fields["group"]], pc.ReplaceSubstringOptions(_SESSION, "")
        )
    steps = fields["step"] if "step" in fields else pa.chunked_array([pa.nulls(table.num_rows, pa.float64())])
    if step is not None:
        steps = steps.fill_null(float(step))
    checked = pa.array(wholes(steps.to_pylist()), pa.int64())
    result = pa.table({**fields, "step": checked})
    for _ in range(checked.null_count):
        request.damage.add(str(file), "a row without a step")
    return result.filter(checked.is_valid()) if checked.null_count else result


FORMAT = Format("verl: <step>.jsonl dumps of rollouts and validation, and the file logger's metrics", found, read)
