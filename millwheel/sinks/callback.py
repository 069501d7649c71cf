"""Records passed to a user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.errors import MillWheelError
from millwheel.model.record import Record
from millwheel.model.sink import Sink


class Callback(Sink):
    """Calls ``function(epoch, shard, records)`` for each shard of an epoch.

    At least once: after a crash the same batch is passed again, with the same epoch, shard and
    records. A function that stores the newest epoch of each shard, atomically with its effect,
    makes that exactly once. One that raises is retried, and finally stops the pipeline.

    It runs in Spark's tasks, so it must pickle; with ``in_driver=True`` it runs in the driver, before the
    epoch is committed, and all records are sent there.
    """

    def __init__(
        self, function: Callable[[int, int, Sequence[Record]], object], *, in_driver: bool = False
    ) -> None:
        if not callable(function):
            raise MillWheelError(f"Callback takes a function of (epoch, shard, records), not {function!r}")
        self._function = function
        self.in_driver = in_driver

    def __repr__(self) -> str:
        return f"Callback({getattr(self._function, '__qualname__', type(self._function).__name__)})"

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        self._function(epoch, shard, records)
