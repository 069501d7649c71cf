"""Many records sorted by the place they go to: a column at a time, by NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millwheel.model.batch import RecordBatch


class Dealt:
    """Records in the order of their places, and in their own order within one.

    ``places`` are numbers from 0 on, of each record; those from ``count`` on are nobody's. What `cut` gives
    can be sent, and nothing else.
    """

    def __init__(self, batch: RecordBatch, places: Iterable[int], count: int) -> None:
        kind = np.uint16 if count < 1 << 16 else np.uint32  # NumPy sorts the short ones without comparing
        numbers = np.fromiter(places, dtype=kind, count=len(batch))
        order = numbers.argsort(kind="stable")
        self._sizes = np.bincount(numbers, minlength=count)[:count]
        self._starts = np.concatenate(([0], np.cumsum(self._sizes))).tolist()
        self._times: NDArray[np.int64] = np.array(batch.timestamps, dtype=np.int64)[order]
        self._batch = batch
        self._pick = itemgetter(*order.tolist()) if len(order) > 1 else None
        self._values = self._picked(batch.values) if batch.json is None else ()
        self._json = self._picked(batch.json)
        self._ids = self._picked(batch.ids)

    def _picked(self, column: Sequence[Any] | None) -> Sequence[Any] | None:
        if column is None:
            return None
        return column if self._pick is None else self._pick(column)

    def keys(self) -> Sequence[Any]:
        """The key of each record."""
        found = self._picked(self._batch.keys)
        assert found is not None
        return found

    def sizes(self, first: int, last: int) -> list[int]:
        """How many records there are at each of these places."""
        found: list[int] = self._sizes[first:last].tolist()
        return found

    def span(self, first: int, last: int) -> slice:
        """Where the records of these places are."""
        return slice(self._starts[first], self._starts[last])

    def cut(self, first: int, last: int, keys: Sequence[str]) -> RecordBatch:
        """The records of some places, with their keys."""
        mine = self.span(first, last)
        json, ids, values = self._json, self._ids, self._values
        times: Any = self._times[mine]  # an array, which travels as it is
        return RecordBatch(
            times,
            [] if json is not None or values is None else list(values[mine]),
            None if ids is None else list(ids[mine]),
            list(keys),
            json=None if json is None else list(json[mine]),
            packed=self._batch.packed,
        )
