"""The demo's data: counts by key and bucket, and the anomalies so far."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from millwheel.apps.zeitgeist.synthetic import START, Traffic
from millwheel.model.record import Record
from millwheel.model.sink import Sink


class Counts(Sink):
    """Complete buckets, in the driver's memory: two bytes for a key and bucket."""

    in_driver = True

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._written: set[tuple[int, int]] = set()
        self.windows = 0
        self.by_key: dict[str, array[int]] = {}

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        if (epoch, shard) in self._written:
            return
        self._written.add((epoch, shard))
        self.windows += len(records)
        first = START // self._traffic.width
        for record in records:
            bucket, count = record.value
            self.series(record.key)[bucket - first] = min(count, 65_535)

    def series(self, key: str) -> array[int]:
        """The counts of a key, bucket by bucket."""
        counts = self.by_key.get(key)
        if counts is None:
            counts = self.by_key[key] = array("H", bytes(2 * self._traffic.buckets))
        return counts

    def __reduce__(self) -> tuple[type[Counts], tuple[Any, ...]]:
        return Counts, (self._traffic,)  # a task's copy is never written to
