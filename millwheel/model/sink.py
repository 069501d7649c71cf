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

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        """Writes the records of one shard of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no write()")

    def write_columns(
        self, epoch: int, shard: int, keys: Sequence[str], timestamps: Sequence[int], values: Sequence[Any]
    ) -> bool:
        """What `write` does, without an object for each record; False: `write` is asked."""
        return False
