"""The Window Counter (Fig. 1, 9): the records of a key, by bucket."""

from __future__ import annotations

import math

from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.computation import Computation
from millwheel.model.keys import field_of
from millwheel.model.record import Record
from millwheel.model.timer import Timer


def early_counts(fewest: int, most: int = 1_000_000) -> frozenset[int]:
    """Counts at which an incomplete bucket is reported: each 1.5 times the last.

    >>> sorted(early_counts(8, most=50))
    [8, 12, 18, 27, 40]
    """
    counts, count = [], max(fewest, 2)
    while count <= most:
        counts.append(count)
        count += count // 2
    return frozenset(counts)


class WindowCounter(Computation):
    """Counts a key's records per bucket; produces complete and growing buckets.

    A bucket is complete once the low watermark has passed its end.

    ``windows`` gets [bucket, count] of complete buckets, ``partial`` the same of a bucket that is growing.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.early = early_counts(settings.fewest)

    def initial_state(self) -> dict[int, int]:
        return {}

    def process_record(self, record: Record) -> None:
        bucket = record.timestamp // self.settings.width
        count = self.state.get(bucket, 0) + 1
        self.state[bucket] = count
        if count == 1:
            self.set_timer(str(bucket), (bucket + 1) * self.settings.width)
        elif count in self.early:
            self.produce("partial", [bucket, count])

    def process_timer(self, timer: Timer) -> None:
        bucket = int(timer.tag)
        count = self.state.pop(bucket)
        self.produce("windows", [bucket, count], timestamp=timer.timestamp - 1)
        if not self.state:
            del self.state


class WindowMean(Computation):
    """Averages a key's values per bucket; produces the bucket once it is complete."""

    def __init__(self, settings: Settings, field: str) -> None:
        self.settings = settings
        self.field = field

    def initial_state(self) -> dict[int, list[float]]:
        return {}

    def process_record(self, record: Record) -> None:
        measured = field_of(record.value, self.field)
        if measured is None:
            raise ValueError(f"the record has no field {self.field!r}: leave it out, or divert it")
        value = float(measured)
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be compared with other values: leave it out, or divert it")
        bucket = record.timestamp // self.settings.width
        total = self.state.get(bucket)
        if total is None:
            total = self.state[bucket] = [0, 0.0]
            self.set_timer(str(bucket), (bucket + 1) * self.settings.width)
        total[0] += 1
        total[1] += value

    def process_timer(self, timer: Timer) -> None:
        bucket = int(timer.tag)
        records, total = self.state.pop(bucket)
        self.produce("windows", [bucket, total / records], timestamp=timer.timestamp - 1)
        if not self.state:
            del self.state
