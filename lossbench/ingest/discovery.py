"""Search for the sources of runs at a path: folders and files that some format recognises, at any depth."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lossbench.errors import UsageError
from lossbench.ingest.base import Format


class Source(NamedTuple):
    """A folder or file, the format that recognises it, and what it was recognised by."""

    kind: str
    path: Path
    clue: str


def sources(path: Path, formats: Mapping[str, Format]) -> list[Source]:
    """The sources at `path`, by name. A folder that a format recognises is one source, whatever lies below it."""
    return list(_at_file(path, formats) if path.is_file() else _below(path, formats))


def one_format(path: Path, formats: Mapping[str, Format]) -> list[Source]:
    """The sources at `path`, which are all of one format. Raises UsageError if it holds none, or another one."""
    if not path.exists():
        raise UsageError(f"'{path}': no such file or folder")
    found = sources(path, formats)
    clues = {source.kind: source.clue for source in reversed(found)}
    if not clues:
        raise UsageError(f"'{path}' looks like none of {', '.join(formats)}: name the format with --as, or its folder")
    if len(clues) > 1:
        both = " and ".join(f"{kind} ({clues[kind]})" for kind in formats if kind in clues)
        raise UsageError(f"'{path}' holds two formats, {both}: choose one with --as")
    return found


def _below(folder: Path, formats: Mapping[str, Format]) -> Iterator[Source]:
    exact = {kind: format for kind, format in formats.items() if not format.any_table}
    if claims := list(_claims(folder, exact)):
        yield from claims
        return
    # A checkpoint belongs to the run above it, whichever trainer wrote that.
    inside = [p for p in sorted(folder.iterdir()) if not p.name.startswith((".", "checkpoint-"))]
    files = [source for path in inside if path.is_file() for source in _claims(path, exact)]
    yield from files or _claims(folder, {kind: formats[kind] for kind in formats if kind not in exact})
    for path in inside:
        if path.is_dir() and not path.is_symlink():
            yield from _below(path, formats)


def _at_file(file: Path, formats: Mapping[str, Format]) -> list[Source]:
    claims = list(_claims(file, formats))
    return [claim for claim in claims if not formats[claim.kind].any_table] or claims


def _claims(path: Path, formats: Mapping[str, Format]) -> Iterator[Source]:
    for kind, format in formats.items():
        if clue := format.found(path):
            yield Source(kind, path, clue)
