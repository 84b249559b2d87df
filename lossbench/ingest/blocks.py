"""Columns of Python values -> a block of completions; a value of the wrong type damages its row, not the file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lossbench.ingest.base import Damage, number, whole, wholes

_NUMBERS = ("reward", "advantage", "length")
_FALSE, _TRUE = ("false", "no", ""), ("true", "yes")
_USUAL_KINDS = {
    "step": (pa.int64(),),
    "reward": (pa.float64(),),
    "advantage": (pa.float64(),),
    "length": (pa.float64(),),
    "correct": (pa.bool_(), pa.float64()),
    "terminated": (pa.bool_(),),
}


def block(
    columns: Mapping[str, Sequence[Any]], place: str, damage: Damage, lines: Sequence[int] | None = None
) -> pa.Table:
    """A block from columns named as in `ROW_FIELDS`, all of one length; rows without a usable step are damaged.

    `lines` are the rows' numbers in the file, where they are not those of the block.
    """
    table = pa.table({name: _column(name, values) for name, values in columns.items()})
    for name in _NUMBERS:
        if name in columns and table[name].null_count:
            _name_what_is_no_number(name, columns[name], table[name], place, damage, lines)
    stepped = table["step"].is_valid()
    if table["step"].null_count == 0:
        return table
    for i, known in enumerate(stepped.to_pylist()):
        if not known:
            damage.add(f"{place}, {_row(i, lines)}", f"step {columns['step'][i]!r} is no number")
    return table.filter(stepped)


def _row(i: int, lines: Sequence[int] | None) -> str:
    return f"row {i + 1}" if lines is None else f"line {lines[i]}"


def _name_what_is_no_number(
    name: str, values: Sequence[Any], column: pa.ChunkedArray, place: str, damage: Damage, lines: Sequence[int] | None
) -> None:
    """Count cells that hold something, and no number; their rows are read without them."""
    for i in np.flatnonzero(np.asarray(column.is_null())).tolist():
        value = values[i]
        if value is not None and value == value and value != "":
            damage.add(f"{place}, {_row(i, lines)}", f"{name} {value!r} is no number")


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    for kind in _usual_kinds(name):
        column = _of_kind(values, kind)
        if column is not None and (name != "step" or _countable(column)):
            return column
    checked = _values(name, values)
    return storable(checked, _kind(name, checked))


def _of_kind(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """The column where every value is null (or NaN) or of a type that `kind` takes as it is; else None."""
    try:
        return pa.array(values, kind, from_pandas=True)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        return None


def _countable(steps: pa.Array) -> bool:
    extremes = pc.call_function("min_max", [steps]).as_py()
    return all(step is None or whole(step) is not None for step in extremes.values())


def storable(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An arrow column; half a character (a lone surrogate), which UTF-8 cannot hold, becomes a question mark."""
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        whole_texts = [None if text is None else text.encode("utf-8", "replace").decode() for text in values]
        return pa.array(whole_texts, kind)


def _values(name: str, values: Sequence[Any]) -> list[Any]:
    if name == "step":
        return wholes(values)
    if name in _NUMBERS:
        return [number(value) for value in values]
    if name in ("correct", "terminated"):
        return [_flag(value, name) for value in values]
    return [None if value is None or value != value else str(value) for value in values]  # NaN is no text


def _flag(value: Any, name: str) -> bool | float | None:
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        value = None if not value.strip() else value.strip().lower() in _TRUE
    if value is None or isinstance(value, bool):
        return value
    known = number(value)
    return bool(known) if name == "terminated" and known is not None else known


def _kind(name: str, values: Sequence[Any]) -> pa.DataType:
    """The kind for checked values: the first usual one, but a verdict is a flag only where every one is."""
    kinds = _usual_kinds(name)
    return kinds[0] if all(value is None or isinstance(value, bool) for value in values) else kinds[-1]


def _usual_kinds(name: str) -> tuple[pa.DataType, ...]:
    return _USUAL_KINDS.get(name, (pa.string(),))
