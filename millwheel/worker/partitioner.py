"""Partitions many records by destination: a column at a time, with NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millwheel.model.batch import RecordBatch


class Dealt:
    """Records sorted by destination, in their own order within one.

    ``places`` are numbers from 0 on, by record; those from ``count`` on have no destination. Only what
    `cut` returns can be sent.
    """

    def __init__(self, batch: RecordBatch, places: Iterable[int], count: int) -> None:
        kind = np.uint16 if count < 1 << 16 else np.uint32  # NumPy uses radix sort for 16 bits
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
        """The number of records at each of these destinations."""
        found: list[int] = self._sizes[first:last].tolist()
        return found

    def span(self, first: int, last: int) -> slice:
        """The slice of the records of these destinations."""
        return slice(self._starts[first], self._starts[last])

    def cut(self, first: int, last: int, keys: Sequence[str]) -> RecordBatch:
        """The records of some destinations, with their keys."""
        mine = self.span(first, last)
        json, ids, values = self._json, self._ids, self._values
        times: Any = self._times[mine]  # an array, which is sent as it is
        return RecordBatch(
            times,
            [] if json is not None or values is None else list(values[mine]),
            None if ids is None else list(ids[mine]),
            list(keys),
            json=None if json is None else list(json[mine]),
            packed=self._batch.packed,
        )
