"""A table that was looked into: its columns, its step, and what says whose rows it holds."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.ingest.base import Damage, Request, mode_and_seed, whole
from lossbench.ingest.table_rows import Numbered, Row, raw_rows, step_column, tidier

AXES = ("mode", "seed", "run")


class Key(NamedTuple):
    """Whose row it is, as far as the table says."""

    mode: str | None
    seed: int | None
    run: str | None


@dataclass(frozen=True)
class Table:
    """A file that was looked into: its columns, and what says whose row it is. `only` where all rows are one run's."""

    file: Path
    header: list[str]
    step: str
    tidied: Callable[[Row], list[Row]]
    key: Callable[[Row], Key | None]
    only: Key | None

    def rows(self, damage: Damage, nameless: Damage) -> Iterator[tuple[int, Row, Key]]:
        """Its rows in wide form, numbered, and whose they are.

        Damaged lines are counted in `damage`; rows whose seed is no number, which are left out too, in `nameless`.
        """
        for number, raw in raw_rows(self.file, damage):
            for row in self.tidied(raw):
                key = self.only or self.key(row)
                if key is None:
                    nameless.add(f"{self.file}, line {number}", "its seed is no number")
                else:
                    yield number, row, key


def look_into(file: Path, rows: Iterable[Numbered], request: Request) -> Table | None:
    """The table in a file by those of its rows that are given, None where there is none."""
    tidied: Callable[[Row], list[Row]] | None = None
    header: dict[str, None] = {}
    for _, raw in rows:
        tidied = tidied or tidier(file, list(raw), request)
        for row in tidied(raw):
            header.update(dict.fromkeys(row))
    if tidied is None:
        return None
    columns = list(header)
    key, only = _key_of(file, columns, request)
    return Table(file, columns, step_column(columns, file, request), tidied, key, only)


def axes_in(header: Iterable[str], file: Path, request: Request) -> list[str | None]:
    """The columns that hold mode, seed and run, each None where the table has none."""
    columns = list(header)
    return [request.column(name, (name,), columns, str(file)) for name in AXES]


def _key_of(file: Path, header: list[str], request: Request) -> tuple[Callable[[Row], Key | None], Key | None]:
    """Whose row it is: by its columns, else by the run's name in it, else by the file's name; and whose all are.

    Nobody's (None) where its seed is not a number.
    """
    mode, seed, run = axes_in(header, file, request)
    of_file = mode_and_seed(file.stem)

    axes = [column for column in (mode, seed, run) if column]
    known: dict[tuple[Any, ...], Key | None] = {}

    def key(row: Row) -> Key | None:
        values = tuple(map(row.get, axes))
        try:
            if values not in known:
                known[values] = worked_out(row)
            return known[values]
        except TypeError:  # a list is no key
            return worked_out(row)

    def worked_out(row: Row) -> Key | None:
        name = str(row[run]) if run and row.get(run) is not None else None
        named = mode_and_seed(name) if name else of_file
        own_mode = row.get(mode) if mode else named[0] if named else None
        own_seed = whole(row.get(seed)) if seed else named[1] if named else None
        if seed and own_seed is None and row.get(seed) is not None:
            return None
        return Key(None if own_mode is None else str(own_mode), own_seed, name)

    return key, None if axes else key({})
