"""Foldings: windows whose aggregates can be kept as columns, as the engine sees them.

A computation that has a `Folding` says that its state is, for each window, a few numbers for each key, and
that these can be merged in any grouping. The engine then keeps a row of the store for each tablet and window,
and no row and no timer for a key. What the aggregates mean is theirs; the engine knows five kinds of them as
arrays, and leaves all else to their own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FoldKind = Literal["count", "sum", "min", "max", "mean"]


class Fold(Protocol):
    """An aggregate: how a value is added to what is so far, and how two of those are merged."""

    def create(self) -> Any: ...
    def fold(self, so_far: Any, value: Any, timestamp: int) -> Any: ...
    def merge(self, a: Any, b: Any) -> Any: ...
    def result(self, so_far: Any) -> Any: ...


@dataclass(frozen=True)
class Folded:
    """One aggregate of a window: its name in the result, what it reads, and how it folds."""

    name: str
    kind: FoldKind
    read: Callable[[Any], Any] | None
    """Reads a field of a value; None where whole records are counted."""
    field: str | None
    """The name of that field, where it is one of the value itself: then a column of it will do."""
    fold: Fold


@dataclass(frozen=True)
class Folding:
    """Windows of one size that begin every so often, and what is computed of each."""

    stream: str
    size: int
    every: int
    offset: int
    folds: tuple[Folded, ...]
    signature: str
    """Changes with the windows, the kinds of the aggregates and their fields: state of another is refused."""

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a value that are read; None where whole values are needed."""
        read = [folded for folded in self.folds if folded.read is not None]
        if any(folded.field is None for folded in read):
            return None
        return tuple(dict.fromkeys(folded.field for folded in read if folded.field is not None))

    def starts(self, timestamp: int) -> list[int]:
        """The starts of the windows that a timestamp is in, in order."""
        into = (timestamp - self.offset) % self.every
        last = timestamp - into
        first = last - (self.size - 1 - into) // self.every * self.every
        return list(range(first, last + 1, self.every))


def folding_of(computation: object) -> Folding | None:
    """The folding of a computation, where its state is kept by window."""
    found = getattr(computation, "_folding", None)
    return found if isinstance(found, Folding) else None  # a user's own attribute of that name is not ours
