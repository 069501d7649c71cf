"""Records from memory: for tests, notebooks and small backfills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millwheel.errors import InputError
from millwheel.model.injector import Errors, Injector, Offset
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME

_PARTITION = "records"


class Records(Injector):
    """Injects a list of records, in order.

    ``watermarks``: entry i is the low watermark once record i was read; by default it is the oldest
    timestamp unread. ``per_epoch`` limits the number of records of an epoch, so that watermarks
    move between them.

    >>> injector = Records([Record(value=1, timestamp=5), Record(value=2, timestamp=3)])
    >>> injector.poll()
    {'records': 2}
    >>> injector.low_watermark("records", 1)
    3
    """

    def __init__(
        self,
        records: Iterable[Record],
        watermarks: Sequence[int] | None = None,
        *,
        per_epoch: int | None = None,
        errors: Errors = "stop",
    ) -> None:
        self.errors = errors
        self._records = list(records)
        self._per_epoch = per_epoch
        if watermarks is not None and len(watermarks) != len(self._records):
            raise InputError(
                f"Records has {len(self._records)} records and {len(watermarks)} watermarks: "
                "entry i is the low watermark once record i was read"
            )
        if watermarks is not None:
            self._watermarks = [MIN_TIME, *watermarks]
        else:
            oldest = MAX_TIME
            self._watermarks = [oldest]
            for record in reversed(self._records):
                time = getattr(record, "timestamp", None)
                if isinstance(time, int):
                    oldest = min(oldest, time)
                self._watermarks.append(oldest)
            self._watermarks.reverse()
        self._watermarks[-1] = MAX_TIME

    def poll(self) -> Mapping[str, Offset]:
        return {_PARTITION: len(self._records)}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        return self._records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self._watermarks[min(offset or 0, len(self._records))]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        if self._per_epoch is not None:
            records = min(records, self._per_epoch)
        return min(end, (start or 0) + records)
