"""One record a step with lists: `{"step": 1, "rewards": [0.0, 1.0, …], "lens": [120, 88, …]}`, as JSON lines."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lossbench.ingest.base import Format, IngestedRun, Request, named_run
from lossbench.ingest.curves import add_logs
from lossbench.ingest.fields import Damage, whole
from lossbench.ingest.reading import is_lines, records

_USUAL: dict[str, tuple[str, ...]] = {
    "reward": ("rewards", "reward", "scores"),
    "length": ("lens", "lengths", "completion_lengths", "response_lengths", "completion_tokens", "num_tokens"),
    "prompt": ("prompts",),
    "completion": ("completions", "responses", "outputs"),
    "correct": ("correct", "corrects", "accs"),
    "advantage": ("advantages",),
    "terminated": ("terminated", "finished"),
    "group": ("groups", "group_ids", "prompt_ids"),
}


def found(path: Path) -> str | None:
    """Name of the file that makes `path` such a file."""
    if not path.is_file() or not is_lines(path):
        return None
    some = [record for _, record in islice(records(path, Damage()), 3)]
    named = {name for usual in _USUAL.values() for name in usual}
    fits = [whole(row.get("step")) is not None and bool(_lists(row).keys() & named) for row in some]
    return path.name if fits and all(fits) else None


def _lists(record: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: value for name, value in record.items() if isinstance(value, list)}


def read(path: Path, request: Request) -> Iterator[IngestedRun]:
    """The run in a file. Numbers of a record that are no lists are metrics of its step."""
    run = named_run(path, request := request.part())
    metrics = []
    for line, record in records(path, request.damage):
        place, step, lists = f"{path}, line {line}", whole(record.get("step")), _lists(record)
        columns = {ours: request.column(ours, usual, lists, place) for ours, usual in _USUAL.items()}
        fields = {ours: lists[name] for ours, name in columns.items() if name}
        if step is None:
            request.damage.add(place, f"step {record.get('step')!r} is no number")
        elif len({len(values) for values in fields.values()}) > 1:
            request.damage.add(place, "its lists differ in length")
        elif fields:
            rows = len(next(iter(fields.values())))
            request.staging.add({"step": [step] * rows, **fields}, [line] * rows, run.keys[0], path)
            run.read |= {ours: name for ours, name in columns.items() if name}
            run.seen.update(dict.fromkeys(record))
            metrics.append((step, {name: value for name, value in record.items() if name not in lists}))
    add_logs(run, metrics, request)
    yield run


FORMAT = Format("JSON lines with one record a step and lists of rewards and lengths", found, read)
