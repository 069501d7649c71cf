"""Fields of values: a name, a nested name, or a function of a value."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from millwheel.errors import PipelineError
from millwheel.model.keys import field_of

Field = str | Callable[[Any], Any]


class FieldOf:
    """Reads a field of a value; None if the value does not have it.

    >>> FieldOf("user.id")({"user": {"id": 7}}), FieldOf("user.id")({"user.id": 8}), FieldOf("x")({})
    (7, 8, None)
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return repr(self.name)

    def __call__(self, value: Any) -> Any:
        return field_of(value, self.name)


def reader(field: object, where: str) -> Callable[[Any], Any]:
    """A function that reads a field; raises a `PipelineError` if it is invalid."""
    if isinstance(field, str) and field:
        return FieldOf(field)
    if callable(field):
        if iscoroutinefunction(field):
            raise PipelineError(f"{where}: {field!r} is async; operators call plain functions")
        return field
    raise PipelineError(
        f"{where}: a field is its name, a nested name or a function of a value, not {field!r}"
    )
