"""Sinks take a stream's records out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.model.record import Record


class Sink:
    """Writes the records of a stream, idempotent in (epoch, shard): a retry writes the same again.

    Tasks call `write` on a copy of the sink, after the records are durable in the store.
    """

    in_driver: bool = False
    """True for a sink in the driver's memory: records travel to it, so keep it to tests and notebooks."""

    def open(self) -> None:
        """Called on the driver before the first epoch; a place that cannot be written says so here."""

    def begin(self, origin: str, epoch: int) -> None:
        """Called on the driver after `open`, before the sink is shipped to the tasks.

        ``origin`` names the store: a new store counts its epochs from 1 again. ``epoch`` is the last one
        that is committed; the one after it may have been written before, and will be written again.
        """

    def commit(self, epoch: int) -> None:
        """Called on the driver after an epoch has committed: it will not be written again."""

    def close(self) -> None:
        """Called on the driver when the pipeline ends, whether it failed or not."""

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        """Writes the records of one shard of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no write()")

    def write_columns(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]
    ) -> bool:
        """What `write` does, without an object for each record; False: `write` is asked."""
        return False

    def _write_json(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], lines: Sequence[bytes]
    ) -> bool:
        """What `write_columns` does, of values as JSON of our own; False: that is asked."""
        return False
