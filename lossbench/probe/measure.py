"""Measuring: jobs in, one file of the `probe` table out, kept pair by pair so that a stopped probe goes on."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lossbench.errors import UsageError
from lossbench.extras import TRAIN, require
from lossbench.policies.hub import resolve
from lossbench.policies.prepare import built_in_policy, prepare_policies
from lossbench.probe.jobs import ProbeJob, run_job
from lossbench.probe.projections import Projections, projections_of
from lossbench.probe.recorded import recorded_batches
from lossbench.processes import cores
from lossbench.store.read import read_facts, read_table
from lossbench.store.write import as_arrow, table_file

_SAVE_EVERY_S = 10.0


@dataclass(frozen=True)
class Progress:
    """Progress of a probe: pairs kept of those wanted for the policy at `step`, seconds since this call began, pairs
    measured by it, and the policy's projections so far."""

    step: int
    done: int
    pairs: int
    wall_s: float
    measured: int
    so_far: Callable[[], Projections]


def probe_path(folder: Path, job: ProbeJob) -> Path:
    """The file of the job's projections: in the folder `probe`, by the policy's name and warm start."""
    warm_start = f"-s{job.policy_seed}" if job.built_in else ""
    return folder / "probe" / f"{file_name(job.name)}{warm_start}.parquet"


def file_name(text: str) -> str:
    """A policy's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "policy"


def measure(
    jobs: Sequence[ProbeJob], path: Path, *, workers: int | None = None,
    on_pair: Callable[[Progress], None] = lambda progress: None,
) -> Path:  # fmt: skip
    """Probe the jobs, one policy at several training steps, into one file; returns its path.

    Pairs that the file holds already are kept where they were measured on the same policy with the same settings, so
    the same call goes on where one was stopped, and more pairs extend it; otherwise it is begun again. `workers`
    defaults to one per core for built-in policies, else to 1. What is measured before an exception or a Ctrl-C stays,
    in whole pairs. Raises UsageError for whatever the user can fix; then, without a pair, nothing is written.
    """
    require("a probe", "train", *TRAIN)
    job = jobs[0]
    if job.rollouts is not None:
        recorded_batches(job.rollouts, job.settings.sampling, job.settings.pairs, job.columns)
    if job.built_in:
        params = job.load_options.get("policy_params")
        prepare_policies([built_in_policy(job.policy, job.policy_seed, params)], workers=1)
    kept, began_s, measured = _Kept(path, jobs), time.perf_counter(), 0
    try:
        for job in jobs:
            missing = [number for number in range(job.settings.pairs) if (job.step, number) not in kept.done]
            for columns in run_job(job, workers or (cores() if job.built_in else 1), missing):
                kept.add(columns)
                measured += 1
                done = sum(step == job.step for step, _ in kept.done)
                on_pair(Progress(
                    job.step, done, job.settings.pairs, time.perf_counter() - began_s, measured,
                    lambda job=job: kept.projections(job),
                ))  # fmt: skip
    finally:
        kept.save()
    return path


def is_complete(path: Path) -> bool:
    """Whether the file is there and holds as many pairs as it was meant to, at each of its steps."""
    if not path.is_file():
        return False
    wanted = read_facts(path).get("settings", {}).get("pairs", 0)
    steps = Counter(step for step, _ in _pairs_in(read_table(path, "probe")))
    return all(count >= wanted for count in steps.values())


def _pairs_in(table: pa.Table) -> set[tuple[int, int]]:
    """(step, pair) of every pair in the table."""
    return set(zip(table["step"].to_pylist(), table["pair"].to_pylist(), strict=True))


class _Kept:
    """The pairs of a file, those that it held and those that are added."""

    def __init__(self, path: Path, jobs: Sequence[ProbeJob]) -> None:
        self.path, self.facts = path, _facts(jobs)
        self._tables: list[pa.Table] = []
        self.done: set[tuple[int, int]] = set()
        self._saved_s, self._unsaved = time.perf_counter(), False
        if path.is_file() and _same(found := read_facts(path), self.facts):
            stamps, table = self.facts["stamps"], read_table(path, "probe")
            same = [stamps.get(str(step)) == found["stamps"].get(str(step)) for step in table["step"].to_pylist()]
            self._hold(table.filter(pa.array(same, pa.bool_())))

    def _hold(self, table: pa.Table) -> None:
        self._tables.append(table)
        self.done |= _pairs_in(table)

    def add(self, columns: dict[str, list[Any]]) -> None:
        """Keep one more pair; the file is written now and then, since a process may also be killed."""
        self._hold(as_arrow("probe", columns))
        self._unsaved = True
        if time.perf_counter() - self._saved_s > _SAVE_EVERY_S:
            self.save()

    def projections(self, job: ProbeJob) -> Projections:
        """The job's projections so far."""
        frame = pa.concat_tables(self._tables).to_pandas()
        return projections_of(frame[frame["step"] == job.step], self.facts)[0]

    def save(self) -> None:
        """Write the file where pairs were added."""
        if self._unsaved:
            with table_file(self.path, "probe", self.facts) as append:
                for table in self._tables:
                    append(table)
        self._saved_s, self._unsaved = time.perf_counter(), False


def _facts(jobs: Sequence[ProbeJob]) -> dict[str, Any]:
    """Metadata of a file: all that decides its numbers; `draws` tells probes apart that share prompts and draws."""
    job = jobs[0]
    draws = job.own_settings().sampling.seed
    found = {
        "settings": {**job.settings.as_dict(), "params": job.params}, "tied": _is_tied(job),
        "horizon": job.settings.sampling.max_completion_length, "task": job.task, "task_params": job.task_params,
        "policy_seed": job.policy_seed, "rollouts": job.rollouts and str(job.rollouts),
        "columns": job.columns, "load_options": job.load_options,
        "draws": draws if job.rollouts is None else None, "stamps": {str(one.step): _stamp(one) for one in jobs},
    }  # fmt: skip
    return json.loads(json.dumps(found))  # as it will be read back


def _is_tied(job: ProbeJob) -> bool:
    """Whether the policy's head is its embedding too, of which a probe of the head moves the head's use alone."""
    if job.built_in:
        return False
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(resolve(job.policy, weights=False).folder, local_files_only=True)
    except (OSError, ValueError):  # an adapter's folder, or a model with code of its own: loading it says what is wrong
        return False
    return bool(getattr(config.get_text_config(), "tie_word_embeddings", False))


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether two probes differ in nothing but how many pairs and training steps they have."""
    return _but_size(found) == _but_size(wanted)


def _but_size(facts: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in facts.items() if name != "stamps"}
    return {**rest, "settings": {**facts.get("settings", {}), "pairs": None, "max_positions": None}}


def _stamp(job: ProbeJob) -> list[Any]:
    """Sizes and times of the local files that the job reads: the model's, the task's, the rollouts'."""
    named = [job.policy, job.task.partition(":")[0], job.rollouts or "", *map(str, job.task_params.values())]
    paths = [Path(name) for name in named if name and Path(name).exists()]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]


def check_writable(path: Path) -> None:
    """Raise UsageError where a file at `path` could not be written. Makes no folder."""
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"--out: cannot write to '{there}'")
