"""One record a step with lists: `{"step": 1, "rewards": [0.0, 1.0, …], "lens": [120, 88, …]}`, as JSON lines."""

from itertools import islice
from pathlib import Path
from typing import Any

from lossbench.ingest.base import Format, IngestedRun, Request, files_that, one_run
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
_NAMES = {name for usual in _USUAL.values() for name in usual}


def _lists(record: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: value for name, value in record.items() if isinstance(value, list)}


def _begins_so(file: Path) -> bool:
    some = [record for _, record in islice(records(file, Damage()), 3)] if is_lines(file) else []
    return bool(some) and all(whole(row.get("step")) is not None and _lists(row).keys() & _NAMES for row in some)


def _fill(path: Path, run: IngestedRun, request: Request) -> None:
    """Read the lists as completions, and the numbers beside them as metrics of the step."""
    metrics = []
    for line, record in records(path, run.damage):
        place, step, lists = f"{path}, line {line}", whole(record.get("step")), _lists(record)
        names = request.fields(_USUAL, lists, place)
        lengths = {len(lists[name]) for name in names.values()}
        if step is None:
            run.damage.add(place, f"step {record.get('step')!r} is no number")
        elif len(lengths) > 1:
            run.damage.add(place, "its lists differ in length")
        elif names:
            rows = lengths.pop()
            fields = {ours: lists[name] for ours, name in names.items()}
            request.staging.add({"step": [step] * rows, **fields}, [line] * rows, run.keys[0], path)
            run.saw(names, record)
            metrics.append((step, {name: value for name, value in record.items() if name not in lists}))
    add_logs(run, metrics, request)


FORMAT = Format(
    "step-lists",
    "JSON lines with one record a step and lists of rewards and lengths",
    files_that(_begins_so, in_folders=False),
    one_run(_fill),
)
