"""From a log at a path to a sweep's folder: finds the format, reads its runs, writes them whole or not at all."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lossbench.errors import UsageError, one_line, unknown
from lossbench.ingest import FORMATS
from lossbench.ingest.base import Format, IngestedRun, Request, folded, mode_and_seed
from lossbench.ingest.fields import CHARACTERS, TOKENS, Damage, Reading
from lossbench.ingest.staging import Staging
from lossbench.ingest.writing import write_run
from lossbench.locks import LOCK_FILE, exclusive
from lossbench.loss.modes import Mode, folder_name, parse_mode
from lossbench.store.read import SWEEP_FILE, Sweep, is_sweep, load, read_json
from lossbench.store.schema import SCHEMA_VERSION
from lossbench.store.write import refuse_links, write_json
from lossbench.version import __version__

AUTO, KIND, SCRATCH = "auto", "ingested", ".ingest"
_FLAGS = {"mode": "; --mode sets it", "seed": "; --seed sets it"}


@dataclass
class Ingested:
    """Result of reading: one entry of `runs` per run (its run.json, with notes for the user), and what was damaged."""

    out: Path
    format: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)


@contextmanager
def opened(path: Path, request: Request, reading: Reading, kind: str = AUTO) -> Iterator[Sweep]:
    """The sweep in folder `path`, or the log there as one, ingested for as long as the context lasts."""
    if is_sweep(path):
        yield load(path)
        return
    with TemporaryDirectory() as folder:
        into = Path(folder) / path.resolve().stem
        ingest(path, into, kind, request, reading)
        yield load(into)


def ingest(path: Path, out: Path, kind: str, request: Request, reading: Reading) -> Ingested:
    """Read the log at `path` into the sweep folder `out`; runs of an ingested sweep already there are kept.

    Raises UsageError where the format, a mode or a column is unknown, nothing can be read, or the length units of the
    runs differ. Nothing is left behind then.
    """
    if kind != AUTO and kind not in FORMATS:
        raise UsageError(unknown("format", kind, [AUTO, *FORMATS]))
    if not path.exists():
        raise UsageError(f"'{path}': no such file or folder")
    found = _one_format(path, FORMATS) if kind == AUTO else _sources(path, {kind: FORMATS[kind]})
    _existing(out)
    result = Ingested(out, found[0].format.name if found else kind, damage=request.damage)
    with _scratch_folder(out) as scratch:
        spec = _existing(out)  # another call may have added to it until now
        taken = {(axes["mode"], axes["seed"]): (run_id, f"{run_id} in {out}") for run_id, axes in spec["runs"].items()}
        request.staging, request.top = Staging(scratch, reading), path
        for run, mode in _runs(found, request):
            digest = hashlib.sha256(f"{run.source.resolve()}|{mode.name}|{run.seed}".encode()).hexdigest()[:8]
            run_id = f"{folder_name(mode.name)}-s{run.seed}-{digest}"
            other, other_name = taken.get((run.mode, run.seed), (None, ""))
            # A run of the same id from an earlier call is this one, and is replaced.
            if other and (other != run_id or other in result.runs):
                raise UsageError(
                    f"'{path}': run {run.mode} seed {run.seed} is there twice, '{other_name}' and '{run.name}': ingest "
                    "each by itself with a --seed of its own, or say what each is by --mode NAME=MODE; in a table, "
                    "name runs <mode>-s<seed> or give a column seed"
                )
            if written := write_run(run, run_id, mode, scratch, request):
                taken[(run.mode, run.seed)] = run_id, run.name
                spec["runs"][run_id], result.runs[run_id] = written
        if not result.runs:
            raise UsageError(f"'{path}' holds no {result.format} log{request.damage.first_place()}")
        for unused in (name for name in request.columns if name not in request.used):
            nothing = f"names nothing that is read from this {result.format} log{_FLAGS.get(unused, '')}"
            raise UsageError(f"'{path}': --map {unused}={request.columns[unused]} {nothing}")
        spec["length_unit"] = _one_unit(spec, result.runs)
        spec["sources"] = sorted({*spec["sources"], str(path)})
        (out / "runs").mkdir(exist_ok=True)
        for folder in (out / "runs" / run_id for run_id in result.runs):  # in place of that of the same id
            shutil.rmtree(folder, ignore_errors=True)
            (scratch / folder.name).rename(folder)
        write_json(out / SWEEP_FILE, spec)
    return result


class _Source(NamedTuple):
    """A folder or file, the format that recognises it, and what it was recognised by."""

    format: Format
    path: Path
    clue: str


def _sources(path: Path, formats: Mapping[str, Format]) -> list[_Source]:
    """The sources at `path`, by name. A folder that a format recognises is one source, whatever lies below it."""
    found = _claims(path, formats, any_table=False)
    if found or path.is_file():
        return found or _claims(path, formats, any_table=True)
    # A checkpoint belongs to the run above it, whichever trainer wrote that.
    inside = [p for p in sorted(path.iterdir()) if not p.name.startswith((".", "checkpoint-"))]
    files = [source for p in inside if p.is_file() for source in _claims(p, formats, any_table=False)]
    folders = [source for p in inside if p.is_dir() and not p.is_symlink() for source in _sources(p, formats)]
    return [*(files or _claims(path, formats, any_table=True)), *folders]


def _claims(path: Path, formats: Mapping[str, Format], any_table: bool) -> list[_Source]:
    asked = [format for format in formats.values() if format.any_table is any_table]
    return [_Source(format, path, clue) for format in asked if (clue := format.found(path))]


def _one_format(path: Path, formats: Mapping[str, Format]) -> list[_Source]:
    """The sources at `path`, which are all of one format. Raises UsageError if it holds none, or another one."""
    found = _sources(path, formats)
    clues = {source.format.name: source.clue for source in reversed(found)}
    if not clues:
        raise UsageError(f"'{path}' looks like none of {', '.join(formats)}: name the format with --as, or its folder")
    if len(clues) > 1:
        both = " and ".join(f"{kind} ({clues[kind]})" for kind in formats if kind in clues)
        raise UsageError(f"'{path}' holds two formats, {both}: choose one with --as")
    return found


@contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    """A folder inside `out` for half-written runs; it goes in any case, and on an error every folder made for it.

    Raises UsageError where another call writes to `out`.
    """
    scratch = out / SCRATCH
    refuse_links(out, "runs", SCRATCH)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    refusal = f"'{out}' is being written to by another call: wait for it, or give another --out"
    with exclusive(out / LOCK_FILE, refusal):
        try:
            shutil.rmtree(scratch, ignore_errors=True)  # of a call that was killed
            scratch.mkdir()
            yield scratch
        except BaseException:
            shutil.rmtree(out if made else scratch, ignore_errors=True)
            for folder in made[1:]:
                with suppress(OSError):  # something else is in it by now
                    folder.rmdir()
            raise
        shutil.rmtree(scratch, ignore_errors=True)


def _runs(found: list[_Source], request: Request) -> Iterator[tuple[IngestedRun, Mode]]:
    """The runs that were asked for, and their modes. Raises UsageError on a mode that is none, or a name of no run."""
    seen: list[str] = []
    for source in found:
        runs = list(source.format.read(source.path, request))
        seen += [run.name for run in runs]
        runs = [run for run in runs if not request.runs or run.name in request.runs]
        yield from _identified(runs, request)
        request.staging.con.execute("TRUNCATE staged")
    for name in request.runs:
        if name not in seen:
            raise UsageError(unknown("run in --run", name, seen))


def _existing(out: Path) -> dict[str, Any]:
    if is_sweep(out):
        spec = read_json(out / SWEEP_FILE)
        if spec.get("kind") != KIND:
            raise UsageError(f"'{out}' is a sweep that lossbench ran: choose another --out for ingested runs")
        return spec
    left_over = (SCRATCH, LOCK_FILE)  # by an ingest that was killed
    if out.exists() and not (out.is_dir() and all(file.name in left_over for file in out.iterdir())):
        raise UsageError(f"'{out}' exists and is not a sweep: choose another --out")
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "recipe": {"name": out.name},
        "versions": {"lossbench": __version__},
        "length_unit": None,
        "sources": [],
        "runs": {},
    }


def _identified(runs: list[IngestedRun], request: Request) -> Iterator[tuple[IngestedRun, Mode]]:
    """Runs with their modes; their mode and seed are set to what the caller said, else what the log says."""
    known: list[tuple[IngestedRun, Mode]] = []
    refused: dict[str, str] = {}
    for run in runs:
        asked = request.modes.get(run.name, request.modes.get(run.mode or ""))
        name, seed = mode_and_seed(asked or "") or (request.mode or run.mode if asked is None else asked, request.seed)
        if name == "":
            continue
        if name is None:
            raise UsageError(
                f"'{run.source}': the log does not say which loss mode trained run '{run.name}': give --mode "
                f"(see `lossbench modes`; of several runs, --mode {run.name}=MODE), or name the run's folder "
                "<mode>-s<seed>"
            )
        try:
            mode = parse_mode(folded(name))
        except ValueError as error:
            refused.setdefault(name, one_line(error, 1000))
            continue
        seed = run.seed if seed is None else seed
        if seed is None:
            run.notes.append("seed 0 assumed: the log names none; --seed sets it")
        run.mode, run.seed = mode.name, seed or 0
        known.append((run, mode))
    if refused:
        (first, reason), *others = refused.items()
        more = f"; nor are {', '.join(name for name, _ in others)} modes" if others else ""
        ways = f"--mode {first}=MODE says what it is, --mode {first}= leaves it out"
        raise UsageError(f"'{runs[0].source}': {reason}{more}; {ways}")
    yield from known


def _one_unit(spec: Mapping[str, Any], runs: Mapping[str, dict[str, Any]]) -> str | None:
    units = {state["length_unit"]: run_id for run_id, state in runs.items() if state["length_unit"]}
    if spec["length_unit"] and spec["runs"].keys() - runs.keys():
        units.setdefault(spec["length_unit"], "the runs already there")
    if len(units) > 1:
        raise UsageError(
            f"mixed units: lengths of {units[TOKENS]} are in tokens, of {units[CHARACTERS]} in characters: "
            "give --tokenizer"
        )
    return next(iter(units), None)
