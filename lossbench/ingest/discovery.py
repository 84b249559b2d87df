"""Search for the sources of runs at a path: folders and files that some format recognises, at any depth."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lossbench.errors import UsageError
from lossbench.ingest.base import Format


class Source(NamedTuple):
    """A folder or file, the format that recognises it, and what it was recognised by."""

    format: Format
    path: Path
    clue: str


def sources(path: Path, formats: Mapping[str, Format]) -> list[Source]:
    """The sources at `path`, by name. A folder that a format recognises is one source, whatever lies below it."""
    found = _claims(path, formats, any_table=False)
    if found or path.is_file():
        return found or _claims(path, formats, any_table=True)
    # A checkpoint belongs to the run above it, whichever trainer wrote that.
    inside = [p for p in sorted(path.iterdir()) if not p.name.startswith((".", "checkpoint-"))]
    files = [source for p in inside if p.is_file() for source in _claims(p, formats, any_table=False)]
    folders = [source for p in inside if p.is_dir() and not p.is_symlink() for source in sources(p, formats)]
    return [*(files or _claims(path, formats, any_table=True)), *folders]


def _claims(path: Path, formats: Mapping[str, Format], any_table: bool) -> list[Source]:
    asked = [format for format in formats.values() if format.any_table is any_table]
    return [Source(format, path, clue) for format in asked if (clue := format.found(path))]


def one_format(path: Path, formats: Mapping[str, Format]) -> list[Source]:
    """The sources at `path`, which are all of one format. Raises UsageError if it holds none, or another one."""
    found = sources(path, formats)
    clues = {source.format.name: source.clue for source in reversed(found)}
    if not clues:
        raise UsageError(f"'{path}' looks like none of {', '.join(formats)}: name the format with --as, or its folder")
    if len(clues) > 1:
        both = " and ".join(f"{kind} ({clues[kind]})" for kind in formats if kind in clues)
        raise UsageError(f"'{path}' holds two formats, {both}: choose one with --as")
    return found
