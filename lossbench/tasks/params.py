"""Shared by tasks: parameters, and the number of prompts held out for evaluation."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from lossbench.errors import UsageError, unknown

Size = Annotated[int, Field(ge=1)]


class TaskParams(BaseModel):
    """Base of a task's parameters. Text that spells a number or truth value is taken for it, as commands give it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


P = TypeVar("P", bound=TaskParams)


def read_params(task: str, given: Mapping[str, Any], kind: type[P]) -> P:
    """The parameters `given`, and the defaults of `kind` for the others. Raises UsageError for a name or value."""
    if given and not kind.model_fields:
        raise UsageError(f"task '{task}' takes no parameters, got {', '.join(sorted(given))}")
    for name in given:
        if name not in kind.model_fields:
            raise UsageError(unknown(f"parameter of task '{task}'", name, kind.model_fields))
    try:
        return kind(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        if not wrong["loc"]:
            raise UsageError(f"task '{task}': {wrong['msg'].removeprefix('Value error, ')}") from None
        name = str(wrong["loc"][0])
        raise UsageError(
            f"task '{task}': {name}={wrong['input']!r}; valid: {_valid(name, kind, wrong['type'])}"
        ) from None


def _valid(name: str, kind: type[TaskParams], error: str) -> str:
    """The values that a parameter takes, in words: its bounds, where its type was right."""
    field: FieldInfo = kind.model_fields[name]
    if get_origin(field.annotation) is Literal:
        return ", ".join(map(str, get_args(field.annotation)))
    low = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    high = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    if low is not None and error.endswith("than_equal"):
        return f"{low} <= {name} <= {high}" if high is not None else f"{name} >= {low}"
    return f"a value of type {getattr(field.annotation, '__name__', field.annotation)}"


def held_out(count: int, train_size: int, eval_size: int) -> int:
    """Number of evaluation prompts among `count`: `eval_size`, or a fifth if too few for both sizes.

    >>> held_out(1100, 1000, 100), held_out(100, 1000, 100), held_out(3, 2, 100)
    (100, 20, 1)
    """
    return eval_size if count >= train_size + eval_size else min(eval_size, max(1, count // 5))
