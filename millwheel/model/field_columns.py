"""Records read as columns of some fields, and convertible to whole records.

Window aggregates need keys, timestamps and a few numbers. If an injector can read these as columns, no
Python object is made for a record, or none but its key: see ``docs/mechanisms/columns.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from millwheel.model.batch import RecordBatch
from millwheel.model.keys import By

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Coded:
    """A text of each record, as an index into the distinct ones."""

    names: list[str]
    codes: Numbers


@dataclass(frozen=True, slots=True)
class Masked:
    """A field of each record: numbers, and where it is present (None: everywhere)."""

    numbers: Numbers | None
    """int64 or float64; None for another type, of which only the presence counts."""
    there: Numbers | None
    records: int


class FieldColumns(Protocol):
    """The records of one stream, in order, without IDs."""

    @property
    def timestamps(self) -> Numbers:
        """In microseconds, as int64."""
        ...

    def __len__(self) -> int: ...

    def keys(self, extractor: By) -> list[str] | Coded | None:
        """The key of each record; None if a whole record must be read."""
        ...

    def field(self, name: str) -> Sequence[Any] | Masked:
        """A field of each record, None if it is missing."""
        ...

    def records(self, limit: int | None = None) -> RecordBatch:
        """Return the same as whole records, or the first ones of them."""
        ...

    def join(self, others: Sequence[Any]) -> Sequence[FieldColumns]:
        """Return these and others of the injector as one, or as few as types allow."""
        ...
