"""Fields of values: a name, a nested name, or a function of a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.errors import PipelineError

Field = str | Callable[[Any], Any]


class FieldOf:
    """Reads a field of a value; None where the value does not have it.

    >>> FieldOf("user.id")({"user": {"id": 7}}), FieldOf("user.id")({"user.id": 8}), FieldOf("x")({})
    (7, 8, None)
    """

    __slots__ = ("name", "path")

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = name.split(".") if "." in name else None

    def __repr__(self) -> str:
        return repr(self.name)

    def __call__(self, value: Any) -> Any:
        found = _entry(value, self.name)
        if found is None and self.path is not None:
            found = value
            for name in self.path:
                found = _entry(found, name)
        return found


def _entry(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None) if hasattr(value, "__dataclass_fields__") else None


def reader(field: object, where: str) -> Callable[[Any], Any]:
    """A function that reads a field; a `PipelineError` where it is none."""
    if isinstance(field, str) and field:
        return FieldOf(field)
    if callable(field) and not isinstance(field, type):
        return field
    raise PipelineError(
        f"{where}: a field is its name, a nested name or a function of a value, not {field!r}"
    )
