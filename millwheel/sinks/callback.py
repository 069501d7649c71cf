"""Records handed to a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.errors import MillWheelError
from millwheel.model.record import Record
from millwheel.model.sink import Sink


class Callback(Sink):
    """Calls ``function(epoch, shard, records)`` for what each shard of an epoch has for the sink.

    At least once: after a crash the same batch comes again, under the same epoch and shard and with the
    same records. A function that remembers the newest epoch of each shard, together with what it does,
    makes that exactly once. One that raises is called again, and stops the pipeline in the end.

    It runs in Spark's tasks, so it must pickle; with ``in_driver=True`` it runs in the driver, before the
    epoch is committed, and all records travel there.
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
