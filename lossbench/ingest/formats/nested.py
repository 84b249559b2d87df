"""Curves inside other JSON: `{"runs": [{"algo", "seed", "step_log": [{…}]}]}`, `{"<run>": {"history": [{…}]}}`, and
the HTML tables of a notebook's outputs (Step, Training Loss, reward, …)."""

import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

from lossbench.ingest.base import Format, IngestedRun, Request, files_that, named_run
from lossbench.ingest.curves import METRICS, add_logs, plain
from lossbench.ingest.fields import Damage, whole
from lossbench.ingest.reading import json_object

_STEPS = ("step", "Step", "global_step", "iteration", "_step")
_METRICS = {name for ours, usual in METRICS.items() for name in (ours, *usual)}
_MODES, _NAMES = ("mode", "algo", "algorithm", "loss_type"), ("name", "run", "run_name")
_DEEP = 6

Curve = tuple[str, Mapping[str, Any], list[Mapping[str, Any]]]
"""(key above it, what stands beside it, rows)"""


def _has_curves(file: Path) -> bool:
    content = json_object(file, Damage()) if file.suffix in (".json", ".ipynb") else {}
    return "log_history" not in content and any(_curves(content, ""))


def _curves(value: Any, key: str, deep: int = 0) -> Iterator[Curve]:
    if not isinstance(value, Mapping) or deep > _DEEP:
        return
    for name, inside in value.items():
        if isinstance(inside, list) and (rows := [row for row in inside if isinstance(row, Mapping)]):
            if "text/html" not in value and any(map(rows[0].get, _STEPS)) and _METRICS & set(map(plain, rows[0])):
                yield key, value, rows
            else:
                for i, row in enumerate(rows):
                    yield from _curves(row, key or f"{name}-{i}", deep + 1)
        elif name == "text/html" and isinstance(inside, list | str) and (rows := _html("".join(inside))):
            yield key, {}, rows
        else:
            yield from _curves(inside, key if name in ("data", "outputs") else str(name), deep + 1)


def _html(text: str) -> list[Mapping[str, Any]]:
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr.*?</tr>", text, re.S)]
    header, *rows = [[unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in row] for row in cells] or [[]]
    return [dict(zip(header, row, strict=False)) for row in rows] if set(header) & set(_STEPS) else []


def _read(path: Path, request: Request) -> Iterator[IngestedRun]:
    curves = list(_curves(json_object(path, request.damage), ""))
    for key, beside, rows in curves:
        run = named_run(path, request)
        if len(curves) > 1 or any(map(beside.get, (*_MODES, *_NAMES))):
            run.name = str(next((beside[name] for name in (*_NAMES, *_MODES) if beside.get(name)), key))
            run.mode = next((str(beside[name]) for name in _MODES if beside.get(name)), None) or run.mode
            run.seed = run.seed if (seed := whole(beside.get("seed"))) is None else seed
        step = next(name for name in _STEPS if rows[0].get(name) is not None)
        add_logs(run, [(at, row) for row in rows if (at := whole(row.get(step))) is not None], request)
        yield run


FORMAT = Format(
    "nested",
    "curves nested in JSON (runs, histories), or in a notebook's outputs",
    files_that(_has_curves, in_folders=False),
    _read,
)
