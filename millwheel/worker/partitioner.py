"""Many records sorted by the place they go to: a column at a time, by NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millwheel.worker.envelope import Columns


class Dealt:
    """Records in the order of their places, and in their own order within one.

    ``places`` are numbers from 0 on, of each record; those from ``count`` on are nobody's. What `cut` gives
    can be sent, and nothing else.
    """

    def __init__(self, columns: Columns, places: Iterable[int], count: int) -> None:
        kind = np.uint16 if count < 1 << 16 else np.uint32  # NumPy sorts the short ones without comparing
        numbers = np.fromiter(places, dtype=kind, count=len(columns.timestamps))
        order = numbers.argsort(kind="stable")
        self._sizes = np.bincount(numbers, minlength=count)[:count]
        self._starts = np.concatenate(([0], np.cumsum(self._sizes))).tolist()
        self._times: NDArray[np.int64] = np.array(columns.timestamps, dtype=np.int64)[order]
        self._columns = columns
        self._pick = itemgetter(*order.tolist()) if len(order) > 1 else None
        self._values = self._picked(columns.values) if columns.json is None else ()
        self._json = self._picked(columns.json)
        self._ids = self._picked(columns.ids)

    def _picked(self, column: Sequence[Any] | None) -> Sequence[Any] | None:
        if column is None:
            return None
        return column if self._pick is None else self._pick(column)

    def keys(self) -> Sequence[Any]:
        """The key of each record."""
        found = self._picked(self._columns.keys)
        assert found is not None
        return found

    def sizes(self, first: int, last: int) -> list[int]:
        """How many records there are at each of these places."""
        found: list[int] = self._sizes[first:last].tolist()
        return found

    def span(self, first: int, last: int) -> slice:
        """Where the records of these places are."""
        return slice(self._starts[first], self._starts[last])

    def cut(self, first: int, last: int, keys: Sequence[str], counts: list[int] | None = None) -> Columns:
        """The records of some places, with their keys."""
        mine = self.span(first, last)
        json, ids, values = self._json, self._ids, self._values
        return Columns(
            list(keys),
            [],
            [] if json is not None or values is None else list(values[mine]),
            None if ids is None else list(ids[mine]),
            self._columns.packed,
            None if json is None else list(json[mine]),
            None,
            counts,
            self._times[mine].tobytes(),
        )
