"""Collects records in the driver's memory: for tests and notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.model.record import Record
from millwheel.model.sink import Sink


class Collect(Sink):
    """Read it with `records`, in the driver; it is lost with the driver."""

    in_driver = True

    def __init__(self) -> None:
        self._shards: dict[tuple[int, int], list[Record]] = {}

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        self._shards[epoch, shard] = list(records)

    @property
    def records(self) -> list[Record]:
        """All records so far, epoch by epoch."""
        return [record for place in sorted(self._shards) for record in self._shards[place]]

    def __reduce__(self) -> tuple[type[Collect], tuple[()]]:
        return Collect, ()  # a task's copy is never written
