"""A sweep's folder as data: finished tables, or the parts of runs that are still going.

A damaged file is named in `Sweep.problems` and passed over; nothing else is silently left out.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lossbench.errors import UsageError, one_line
from lossbench.limits import refuse_beyond
from lossbench.locks import is_being_worked_on
from lossbench.store.schema import schema_for
from lossbench.store.write import FACTS, as_arrow, part_files
from lossbench.text import clean, clean_all, path_component

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

TEXT_COLUMNS = ("prompt", "completion")
SWEEP_FILE, RUN_FILE = "sweep.json", "run.json"
RUN_COLUMNS = [
    "run_id", "arm", "mode", "loss_type", "agg_mode", "scale_rewards", "seed", "policy", "policy_seed",
    "status", "steps_planned", "steps_done", "wall_s", "verifier_errors", "unjudged", "unrewarded", "reason", "log",
]  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that lossbench wrote. Raises UsageError naming a file that is missing, damaged or too large."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not a regular file")
    try:
        refuse_beyond(path.stat().st_size / 2**20, "megabytes", str(path))
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as JSON ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: holds {type(value).__name__}; valid: a JSON object")
    return value


def read_table(path: Path, table: str) -> pa.Table:
    """The rows of a file of `table`. Raises UsageError where it is missing, damaged or of another kind."""
    try:
        return as_arrow(table, pq.read_table(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UsageError(f"{path}: not a '{table}' file ({one_line(error)})") from None


def read_facts(path: Path) -> dict[str, Any]:
    """Facts that `table_file` stored about the file; empty if none."""
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata.get(FACTS, b"{}"))


def is_sweep(path: Path) -> bool:
    """Whether `path` is the folder of a sweep."""
    return (path / SWEEP_FILE).is_file()


def newest_sweep(root: Path) -> Path:
    """The sweep folder below `root` that changed last. Raises UsageError if none exists."""
    sweeps = [path.parent for path in root.glob(f"*/{SWEEP_FILE}")]
    if not sweeps:
        raise UsageError(f"no sweep below '{root}': run `lossbench sweep` first, or name its folder")

    def last_change(path: Path) -> float:
        return max(file.stat().st_mtime for file in [path / SWEEP_FILE, *path.glob(f"runs/*/{RUN_FILE}")])

    return max(sweeps, key=last_change)


def load(path: str | Path) -> "Sweep":
    """The sweep in folder `path`. Raises UsageError where the folder is not one."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is not a folder")
    if not is_sweep(folder):
        raise UsageError(f"'{folder}' is not a sweep: it has no {SWEEP_FILE}")
    spec = clean_all(read_json(folder / SWEEP_FILE))
    if not isinstance(spec.get("runs"), dict):
        raise UsageError(f"'{folder}' is not a sweep: its plan has no runs")
    refuse_beyond(len(spec["runs"]), "runs", str(folder))
    for run_id, run in spec["runs"].items():
        path_component(run_id, f"{folder / SWEEP_FILE}: run id")
        if not isinstance(run, dict):
            raise UsageError(f"{folder / SWEEP_FILE}: run '{run_id}' holds {type(run).__name__}; valid: a JSON object")
        _checked({"arm": None} | run, f"{folder / SWEEP_FILE}: run '{run_id}'")
    return Sweep(folder, _checked(spec, folder / SWEEP_FILE))


_TEXT, _NUMBER, _WHOLE = (str, type(None)), (int, float, type(None)), (int, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "recipe": (dict, type(None)), "shared": (dict,), "versions": (dict, type(None)),
    "claims": (list, type(None)), "calls": (list,), "contents": (dict,), "baseline": _TEXT, "name": _TEXT,
    "command": _TEXT, "claims_fingerprint": _TEXT, "arm": (str,), "mode": _TEXT, "loss_type": _TEXT,
    "agg_mode": _TEXT, "scale_rewards": _TEXT, "policy": _TEXT, "status": (str,), "reason": _TEXT, "seed": _WHOLE,
    "policy_seed": _WHOLE, "steps_planned": _WHOLE, "steps_done": _WHOLE, "verifier_errors": _WHOLE,
    "wall_s": _NUMBER, "tables": (dict,), "spec": (dict,),
}  # fmt: skip
"""What the fields of sweep.json, of its runs, and of run.json may hold."""


def _checked(fields: dict[str, Any], where: object) -> dict[str, Any]:
    """`fields` as they are. Raises UsageError where one holds what lossbench never writes there."""
    for name, value in fields.items():
        kinds = _KINDS.get(name)
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise UsageError(f"{where}: {name} holds {clean(repr(value))[:60]}, which lossbench never writes there")
    return fields


@dataclass
class Sweep:
    """One sweep's folder: `spec` is its sweep.json, `runs` a row per planned run, the tables as data frames.

    `problems` names every file that could not be read, so far; tables are read when first asked for.
    """

    path: Path
    spec: dict[str, Any]
    problems: list[str] = field(default_factory=list)

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """A row per planned run, in plan order, with `RUN_COLUMNS`; runs not begun are `pending`.

        A run whose sweep was killed still says `running` in its file; here it is what it is, `interrupted`.
        """
        import pandas as pd

        rows = [self._run_row(run_id) for run_id in self.spec["runs"]]
        if any(row["status"] == "running" for row in rows) and not is_being_worked_on(self.path):
            gone = {"status": "interrupted", "reason": "its sweep is gone"}
            rows = [{**row, **gone} if row["status"] == "running" else row for row in rows]
        return pd.DataFrame(rows, columns=RUN_COLUMNS)

    def _run_row(self, run_id: str) -> dict[str, Any]:
        folder = self.run_dir(run_id)
        state: dict[str, Any] = {"status": "pending"}
        if (folder / RUN_FILE).exists():
            with self._damage_named(folder / RUN_FILE):
                state = _checked(clean_all(read_json(folder / RUN_FILE)), folder / RUN_FILE)
            for name, rows in state.get("tables", {}).items():
                file = folder / f"{name}.parquet"
                if rows and state.get("status") == "completed" and not file.exists():
                    self._problem(f"{file}: missing, though the run is completed")
        return {**state, **self.spec["runs"][run_id], "run_id": run_id, "log": str(folder / "log.txt")}

    def run_dir(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.path / "runs" / run_id

    @property
    def run_ids(self) -> list[str]:
        """All planned runs, in plan order."""
        return list(self.spec["runs"])

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row per optimizer step of every run."""
        return self.table("steps")

    @cached_property
    def rollouts(self) -> "pd.DataFrame":
        """One row per completion, without its text (see `table`)."""
        return self.table("rollouts", [c for c in schema_for("rollouts").names if c not in TEXT_COLUMNS])

    @cached_property
    def evals(self) -> "pd.DataFrame":
        """One row per evaluation completion, without its text."""
        return self.table("evals", [c for c in schema_for("evals").names if c not in TEXT_COLUMNS])

    def table(self, name: str, columns: list[str] | None = None) -> "pd.DataFrame":
        """Table `name` of all runs as one data frame; only `columns` are read."""
        tables = [self.run_table(run_id, name, columns) for run_id in self.run_ids]
        return _joined(tables, name, columns).to_pandas()

    def run_table(
        self, run_id: str, name: str, columns: list[str] | None = None, rows: pc.Expression | None = None
    ) -> pa.Table:
        """Table `name` of one run, in the schema's types; without rows where the run has none yet.

        `rows` keeps the rows for which the expression holds, without reading the others' texts into memory.
        """
        paths = self._files(run_id, name)
        tables = [table for path in paths if (table := self._read(path, name, columns, rows)) is not None]
        return _joined(tables, name, columns)

    def forced_tokens(self, run_id: str) -> int:
        """Tokens that the run's task dictates at the start of a completion, as the run recorded them; else 0."""
        path = self.run_dir(run_id) / RUN_FILE
        with suppress(UsageError):  # not begun, or damaged, which `runs` names
            return int(read_json(path).get("forced_tokens") or 0)
        return 0

    def query(self, run_id: str, name: str, columns: Sequence[str], sql: Callable[[str], str]) -> pa.Table | None:
        """The result of `sql` over table `name` of one run; None where the run has no readable file of that table.

        `sql` is given a source to select from: it has `columns`, in the schema's types, null where a file lacks them.
        The query runs on one thread, so that the same files give the same bits.
        """
        import duckdb

        database, paths = _database(threading.get_ident()), self._files(run_id, name)
        for only_readable in (False, True):
            if only_readable:
                paths = [path for path in paths if self._read(path, name, list(columns), None) is not None]
            try:
                return database.sql(sql(_source(name, columns, paths))).to_arrow_table() if paths else None
            except duckdb.Error as error:
                reason = one_line(error)
        for path in paths:
            self._problem(f"{path}: damaged, passed over ({reason})")
        return None

    def _files(self, run_id: str, name: str) -> list[Path]:
        folder = self.run_dir(run_id)
        whole = folder / f"{name}.parquet"
        found = [whole] if whole.exists() else part_files(folder).get(name, [])
        return [path for path in found if self._fits(path)]

    def _fits(self, path: Path) -> bool:
        """Whether the file is a regular one whose rows are within the limit: a few bytes can claim billions of them."""
        with self._damage_named(path):
            if not path.is_file():
                raise UsageError(f"{path}: not a regular file, passed over")
            refuse_beyond(pq.read_metadata(path).num_rows, "rows", str(path))
            return True
        return False

    def _read(self, path: Path, name: str, columns: list[str] | None, rows: pc.Expression | None) -> pa.Table | None:
        with self._damage_named(path):
            there = None if columns is None else [c for c in columns if c in pq.read_schema(path).names]
            table = pq.read_table(path, columns=there, filters=rows)
            return as_arrow(name, table).select(columns or schema_for(name).names)
        return None

    @contextmanager
    def _damage_named(self, path: Path) -> Iterator[None]:
        """Name the file in `problems` where the block cannot read it, and pass over the rest of the block."""
        try:
            yield
        except UsageError as error:
            self._problem(str(error))
        except (pa.ArrowException, OSError, KeyError) as error:
            self._problem(f"{path}: damaged, passed over ({one_line(error)})")

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def _joined(tables: list[pa.Table], name: str, columns: list[str] | None) -> pa.Table:
    """The tables as one; without any, one in the schema's types that has no rows."""
    if tables:
        return pa.concat_tables(tables).unify_dictionaries()
    return schema_for(name).empty_table().select(columns or schema_for(name).names)


@cache
def _database(thread: int) -> "duckdb.DuckDBPyConnection":
    """A thread's database in memory, which works on one thread and prints no progress: stdout is for results."""
    import duckdb

    return duckdb.connect(config={"threads": 1}).execute("SET enable_progress_bar_print = false")


_SQL_TYPES = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}


def _source(name: str, columns: Sequence[str], paths: Sequence[Path]) -> str:
    """SQL for `columns` of the files: NaN is null, and so is what a file of an older schema does not have."""
    kinds = {column: _SQL_TYPES.get(schema_for(name).field(column).type, "VARCHAR") for column in columns}
    typed = (
        f"nullif({column}, 'NaN') AS {column}" if kind == "DOUBLE" else f'"{column}"::{kind} AS "{column}"'
        for column, kind in kinds.items()
    )
    absent = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in kinds.items())
    files = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"""(SELECT {", ".join(typed)} FROM (SELECT {absent} WHERE false UNION ALL BY NAME
        SELECT COLUMNS(lambda c: c IN {list(columns)}) FROM read_parquet([{files}], union_by_name = true)))"""
