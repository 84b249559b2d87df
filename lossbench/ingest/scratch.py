"""Scratch folder of an ingest: half-written runs stay in it until all are whole."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lossbench.locks import LOCK_FILE, exclusive
from lossbench.store.write import refuse_links

SCRATCH = ".ingest"


def only_left_over(out: Path) -> bool:
    """Whether the folder holds nothing but what an ingest that was killed leaves behind."""
    return out.is_dir() and all(file.name in (SCRATCH, LOCK_FILE) for file in out.iterdir())


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
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


def move_in(scratch: Path, out: Path, runs: Iterable[str]) -> None:
    """Move whole runs from the scratch folder to where a sweep keeps them, in place of those of the same id."""
    (out / "runs").mkdir(exist_ok=True)
    for run_id in runs:
        shutil.rmtree(out / "runs" / run_id, ignore_errors=True)
        (scratch / run_id).rename(out / "runs" / run_id)
