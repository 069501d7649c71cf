"""The fields of a record's value that a computation reads by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class FieldsRead:
    """Names of fields, plain or nested, of a value or a (key, value) pair."""

    names: tuple[str, ...] = ()
    paired: bool = False


NO_FIELDS: Final = FieldsRead()


def fields_read(computation: Any) -> FieldsRead:
    """The fields that a computation reads by name; none if it reads values itself."""
    found = getattr(computation, "_fields_read", None)
    return found if isinstance(found, FieldsRead) else NO_FIELDS  # it may be a user's attribute
