"""Records made by a function: for demos, benchmarks and load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from millwheel.errors import InputError
from millwheel.model.injector import Errors, Injector, Offset
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME


class Generator(Injector):
    """Injects ``make(i)`` for i = 0, 1, 2, ...: unlimited, or ``rate`` a second.

    ``make`` must return the same record for the same i, as an epoch that failed reads it again. The low
    watermark stays ``slack`` behind the newest timestamp, and goes to the end with the last of ``count``.

    >>> injector = Generator(lambda i: Record(value=i, timestamp=i), count=10)
    >>> [record.value for record in injector.read("0", None, 3)]
    [0, 1, 2]
    """

    def __init__(
        self,
        make: Callable[[int], Record],
        *,
        count: int | None = None,
        rate: float | None = None,
        partitions: int = 1,
        slack: int = 0,
        errors: Errors = "stop",
    ) -> None:
        if not callable(make):
            raise InputError(f"Generator takes a function of a number that returns a Record, not {make!r}")
        if rate is not None and rate <= 0:
            raise InputError(f"Generator: rate is a number of records in a second, not {rate!r}")
        if partitions < 1:
            raise InputError(f"Generator: partitions is 1 or more, not {partitions!r}")
        self.errors = errors
        self.slack = slack
        self.bounded = count is not None
        self._make = make
        self._count = count
        self._rate = rate
        self._partitions = partitions
        self._committed: dict[str, int] = {}
        self._started: tuple[float, int] | None = None

    def poll(self) -> Mapping[str, Offset]:
        return {str(number): self._end(number) for number in range(self._partitions)}

    def _end(self, number: int) -> int:
        """The end offset: partition p of n has records p, p + n, p + 2n, ..."""
        last = self._count
        if self._rate is not None:
            if self._started is None:
                self._started = (time.monotonic(), sum(self._committed.values()))
            since, already = self._started
            made = already + int((time.monotonic() - since) * self._rate)
            last = made if last is None else min(last, made)
        if last is None:
            return self._committed.get(str(number), 0) + READY_AT_ONCE
        return max((last - number + self._partitions - 1) // self._partitions, 0)

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        first, step, make = int(partition), self._partitions, self._make
        return (make(first + index * step) for index in range(start or 0, end))

    def low_watermark(self, partition: str, offset: Offset) -> int:
        if self._count is None:
            return MIN_TIME
        total = max((self._count - int(partition) + self._partitions - 1) // self._partitions, 0)
        return MAX_TIME if (offset or 0) >= total else MIN_TIME

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return min(end, (start or 0) + records)

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return None

    def commit(self, offsets: Mapping[str, Offset]) -> None:
        self._committed.update(offsets)


READY_AT_ONCE = 10_000_000  # of an endless generator: more than any epoch reads
