"""Collections of named entries: one style for aggregations, surrogates, tasks, formats and their like."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from lossbench.errors import unknown


class Named(Protocol):
    """Anything with a name, which may be read only."""

    @property
    def name(self) -> str: ...  # noqa: D102


Entry = TypeVar("Entry", bound=Named)


class Registry(dict[str, Entry]):
    """Entries by name, in the order in which they were added. `kind` is what messages call one of them."""

    def __init__(self, kind: str, entries: Iterable[Entry] = ()) -> None:
        super().__init__()
        self.kind = kind
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> Entry:
        """Register `entry` under its name. Raises ValueError where the name is taken."""
        if entry.name in self:
            raise ValueError(f"{self.kind} name '{entry.name}' is taken; valid: a name not in {', '.join(self)}")
        self[entry.name] = entry
        return entry

    def __missing__(self, name: str) -> Entry:
        """Raises ValueError with the nearest name and all valid ones."""
        raise ValueError(unknown(self.kind, str(name), self))
