"""verl: rollout and validation dumps (`trainer.rollout_data_dir`, `trainer.validation_data_dir`) and the file logger.

Written against verl's `ray_trainer.py` and `ppo/v1/trainer_base.py`: `<step>.jsonl`, a line per completion with
input, output, gts, score, step, what the reward function adds (often `acc`), and in the newer trainer `uid` as
`<prompt>_<session>_<index>`. The file logger writes `{"step": n, "data": {metrics}}` lines. Dumps of validation are
known by their folder's name.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from lossbench.ingest.base import Format, IngestedRun, Request, mode_and_seed, one_run
from lossbench.ingest.curves import add_logs
from lossbench.ingest.fields import Damage, whole
from lossbench.ingest.reading import documents, first_fields, records

_USUAL: dict[str, tuple[str, ...]] = {
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
_DUMP_KEYS = {"input", "output", "score"}
_DUMP_NAME = re.compile(r"\d+\.jsonl")
_VALIDATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation)(?![a-z])", re.IGNORECASE)
_ROLLOUT = re.compile(r"(?<![a-z])(rollout|train)", re.IGNORECASE)
_WITHOUT_SESSION = r"regexp_replace({}, '_\d+_\d+$', '')"


def _files(path: Path) -> Iterator[Path]:
    """A file of verl's, or those of a folder of its dumps or of such folders."""
    if path.is_dir():
        yield from (file for file in _dumps(path) if _is_dump(file))
        yield from filter(_is_metrics, sorted(path.glob("*.jsonl")))
    elif path.suffix == ".jsonl" and (_is_dump(path) or _is_metrics(path)):
        yield path


def _is_dump(file: Path) -> bool:
    return first_fields(file).keys() >= _DUMP_KEYS


def _is_metrics(file: Path) -> bool:
    _, record = next(islice(records(file, Damage()), 1), (0, {}))
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


def _fill(path: Path, run: IngestedRun, request: Request) -> None:
    logged = [
        (step, row["data"])
        for file in ([path] if path.is_file() else sorted(path.glob("*.jsonl")))
        if _is_metrics(file)
        for _, row in records(file, run.damage)
        if isinstance(row.get("data"), dict) and (step := whole(row.get("step"))) is not None
    ]
    add_logs(run, logged, request)
    for file in _dumps(path):
        first = first_fields(file)
        columns = request.fields(_USUAL, first, str(file)) if first else {}
        if not columns.keys() & {"completion", "reward", "length"}:
            run.damage.add(str(file), "holds no completions" if first else "holds no JSON object with fields")
            continue
        run.saw(columns, first)
        named = whole(file.stem) if file.stem.isdecimal() else None
        request.staging.add_documents(
            documents(file, run.damage, request.staging.con),
            {ours: [name] for ours, name in columns.items()},
            file,
            run.keys[0],
            split="evals" if _VALIDATION.search(file.parent.name) else "rollouts",
            changed={"group": _WITHOUT_SESSION, "step": "{}" if named is None else f"coalesce({{}}, '{named}')"},
        )


FORMAT = Format(
    "verl", "verl: <step>.jsonl dumps of rollouts and validation, and the file logger's metrics", _files, one_run(_fill)
)
