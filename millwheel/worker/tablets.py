"""The timer index and the counters of one computation in one interval.

The index has one entry for each key and kind: its earliest watermark timer, wall timer, or hold. The
counters say which tablets have any, so that an interval without timers costs no look-up for them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from millwheel.model.codec import pack, unpack
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Snapshot
from millwheel.store.layout import (
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    TIMER_SUFFIX,
    TIMER_TIME,
    after,
    counters_key,
    time_bytes,
    time_of,
    timer_key,
    timer_prefix,
)

ROWS: Final = 0
BYTES: Final = 1
_FIRST_KIND: Final = 2  # then the timers of each clock and the holds, in the order of their kinds
WATERMARK_TIMERS: Final = _FIRST_KIND + KIND_WATERMARK
WALL_TIMERS: Final = _FIRST_KIND + KIND_WALL
HOLDS: Final = _FIRST_KIND + KIND_HOLD
_COUNTERS: Final = 5

Earliest = tuple[int | None, int | None, int | None]
"""A key's earliest watermark timer, wall timer and hold."""


class Tablets:
    """Reads the index of an interval, and collects this step's changes to it."""

    def __init__(self, computation: int, tablets: range, snapshot: Snapshot) -> None:
        self._computation = computation
        self._counters: dict[int, list[int]] = {}
        start = counters_key(computation, tablets.start)
        stop = counters_key(computation, tablets.stop - 1) + b"\x00"
        for key, value in snapshot.scan(start, stop):
            self._counters[key[3]] = unpack(value)
        self._stored = frozenset(self._counters)
        self._touched: set[int] = set()
        self._added: dict[bytes, None] = {}
        self._removed: set[bytes] = set()

    def due(self, snapshot: Snapshot, watermark: int, now: int, limit: int) -> tuple[list[bytes], bool]:
        """The row suffixes of keys with a due timer, ``limit`` at most, and whether there are more."""
        found: dict[bytes, None] = {}
        for kind, time in ((KIND_WATERMARK, watermark), (KIND_WALL, now)):
            for tablet, counters in self._counters.items():
                if not counters[_FIRST_KIND + kind]:
                    continue
                prefix = timer_prefix(self._computation, tablet, kind)
                stop = after(prefix) if time >= MAX_TIME else prefix + time_bytes(time + 1)
                for key, _ in snapshot.scan(prefix, stop):
                    if len(found) >= limit:
                        return list(found), True
                    found[key[TIMER_SUFFIX:]] = None
        return list(found), False

    def change(self, suffix: bytes, old: Earliest, new: Earliest) -> None:
        """A key's earliest timers and hold, before and after."""
        for kind in (KIND_WATERMARK, KIND_WALL, KIND_HOLD):
            was, is_now = old[kind], new[kind]
            if was == is_now:
                continue
            if was is not None:
                key = timer_key(self._computation, suffix, kind, was)
                self._added.pop(key, None)
                self._removed.add(key)
            if is_now is not None:
                key = timer_key(self._computation, suffix, kind, is_now)
                self._removed.discard(key)
                self._added[key] = None

    def counters(self, tablet: int) -> list[int]:
        """The counters of a tablet, to be changed."""
        counters = self._counters.get(tablet)
        if counters is None:
            counters = self._counters[tablet] = [0] * _COUNTERS
        self._touched.add(tablet)
        return counters

    def next_times(self, snapshot: Snapshot) -> tuple[int, int, int]:
        """The oldest watermark timer, wall timer and hold that are pending after this step."""
        oldest = [MAX_TIME, MAX_TIME, MAX_TIME]
        for tablet, counters in self._counters.items():
            for kind in (KIND_WATERMARK, KIND_WALL, KIND_HOLD):
                if tablet not in self._stored or not counters[_FIRST_KIND + kind]:
                    continue
                prefix = timer_prefix(self._computation, tablet, kind)
                for key, _ in snapshot.scan(prefix, after(prefix)):
                    if key not in self._removed:
                        oldest[kind] = min(oldest[kind], time_of(key[TIMER_TIME]))
                        break
        for key in self._added:
            kind = key[4]
            oldest[kind] = min(oldest[kind], time_of(key[TIMER_TIME]))
        return oldest[0], oldest[1], oldest[2]

    def percentile(self, snapshot: Snapshot, percentile: float) -> int:
        """The time that this share of the pending watermark timers and holds have not before them."""
        kinds = (KIND_WATERMARK, KIND_HOLD)
        entries: list[Iterable[int]] = [
            sorted(time_of(key[TIMER_TIME]) for key in self._added if key[4] in kinds)
        ]
        pending = 0
        for tablet, counters in self._counters.items():
            for kind in kinds:
                pending += counters[_FIRST_KIND + kind]
                if tablet in self._stored and counters[_FIRST_KIND + kind]:
                    entries.append(
                        self._stored_times(snapshot, timer_prefix(self._computation, tablet, kind))
                    )
        skipped = int(pending * (1 - percentile) + 1e-9)
        return next(itertools.islice(heapq.merge(*entries), skipped, None), MAX_TIME)

    def _stored_times(self, snapshot: Snapshot, prefix: bytes) -> Iterator[int]:
        for key, _ in snapshot.scan(prefix, after(prefix)):
            if key not in self._removed and key not in self._added:
                yield time_of(key[TIMER_TIME])

    def totals(self) -> list[int]:
        """The counters of the whole interval."""
        sums = [0] * _COUNTERS
        for counters in self._counters.values():
            for index, value in enumerate(counters):
                sums[index] += value
        return sums

    def writes(self) -> Iterator[tuple[bytes, bytes]]:
        """New index entries and changed counters."""
        for key in self._added:
            yield key, b""
        for tablet in self._touched:
            yield counters_key(self._computation, tablet), pack(self._counters[tablet])

    def deletes(self) -> Iterator[bytes]:
        """Index entries that are gone."""
        return iter(self._removed)
