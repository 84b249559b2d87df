"""Shared by tasks: parameters, and the number of prompts held out for evaluation."""

from collections.abc import Mapping
from typing import Any

from lossbench.errors import UsageError, unknown


def read_params(task: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`defaults` overridden by `given`.

    A default of None takes any text. Raises UsageError on an unknown name and on a value of another type than the
    default's; a whole number is accepted where a fraction is expected, and text that spells the type is converted.
    """
    values = dict(defaults)
    for name, value in given.items():
        if name not in defaults:
            raise UsageError(unknown(f"parameter of task '{task}'", name, defaults))
        values[name] = _converted(task, name, value, type(defaults[name]))
    return values


def _converted(task: str, name: str, value: Any, kind: type) -> Any:
    if kind is type(None):
        return value if value is None else str(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (int, float) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            return kind(value)
        except ValueError:
            pass
    raise UsageError(f"task '{task}': {name}={value!r}; valid: a value of type {kind.__name__}")


def held_out(count: int, train_size: int, eval_size: int) -> int:
    """Number of evaluation prompts among `count`: `eval_size`, or a fifth if too few for both sizes.

    >>> held_out(1100, 1000, 100), held_out(100, 1000, 100), held_out(3, 2, 100)
    (100, 20, 1)
    """
    return eval_size if count >= train_size + eval_size else min(eval_size, max(1, count // 5))
