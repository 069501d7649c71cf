"""Sinks write a stream's records to the outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.model.emitted import Emitted
from millwheel.model.record import Record


class Sink:
    """Writes the records of a stream, idempotent in (epoch, shard).

    Tasks call `write` on a copy of the sink, after the records are durable in the store.
    """

    in_driver: bool = False
    """True for a sink in the driver's memory, for tests and notebooks."""

    def open(self) -> None:
        """Called on the driver before the first epoch; raises if it cannot be written."""

    def begin(self, origin: str, epoch: int) -> None:
        """Called on the driver after `open`, before the sink is sent to the tasks.

        ``origin`` names the store: a new store counts its epochs from 1 again. ``epoch`` is the last one
        that is committed; the one after it may have been written before, and will be written again.
        """

    def commit(self, epoch: int) -> None:
        """Called on the driver after an epoch's commit: it is not written again."""

    def close(self) -> None:
        """Called on the driver when the pipeline ends, also after a failure."""

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        """Writes the records of one shard of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no write()")

    def write_columns(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]
    ) -> bool:
        """The work of `write` without an object for each record; False: use `write`."""
        return False

    def _write_windows(self, epoch: int, shard: int, windows: Emitted) -> bool:
        """`write_columns` for the output of closed windows; False: use that."""
        return False
