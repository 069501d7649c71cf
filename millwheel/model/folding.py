"""Foldings: windows whose aggregates can be kept as columns.

A computation with a `Folding` declares that its state is, for each window, a few numbers for each key, and
that these can be merged in any grouping. The engine then keeps a row of the store for each tablet and window,
and no row and no timer for a key. The engine has five kinds of aggregates as
arrays, and uses the aggregates' own functions for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FoldKind = Literal["count", "sum", "min", "max", "mean"]


class Fold(Protocol):
    """An aggregate: adds a value to an accumulator, and merges two accumulators."""

    def create(self) -> Any: ...
    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any: ...
    def merge(self, a: Any, b: Any) -> Any: ...
    def result(self, so_far: Any) -> Any: ...


@dataclass(frozen=True)
class Folded:
    """One aggregate of a window: its name in the result, field and functions."""

    name: str
    kind: FoldKind
    read: Callable[[Any], Any] | None
    """Reads a field of a value; None if whole records are counted."""
    field: str | None
    """The name of a plain field, of which a column is sufficient."""
    fold: Fold


@dataclass(frozen=True)
class Folding:
    """Windows of one size at a fixed interval, and their aggregates."""

    stream: str
    size: int
    every: int
    offset: int
    folds: tuple[Folded, ...]
    signature: str
    """Changes with the windows, aggregates and fields: other state is refused."""

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a value that are read; None if whole values are needed."""
        read = [folded for folded in self.folds if folded.read is not None]
        if any(folded.field is None for folded in read):
            return None
        return tuple(dict.fromkeys(folded.field for folded in read if folded.field is not None))

    def starts(self, timestamp: int) -> list[int]:
        """The starts of a timestamp's windows, in order."""
        into = (timestamp - self.offset) % self.every
        last = timestamp - into
        first = last - (self.size - 1 - into) // self.every * self.every
        return list(range(first, last + 1, self.every))


def folding_of(computation: object) -> Folding | None:
    """The folding of a computation, if its state is kept by window."""
    found = getattr(computation, "_folding", None)
    return found if isinstance(found, Folding) else None  # it may be a user's attribute
