"""The timer index and the counters of one computation in one interval.

The index has one entry for each key and kind: its earliest watermark timer, wall timer, or hold. The
counters of a tablet have their number and the time of the first, so that an epoch reads the index only
of tablets in which something is due or changes, however many timers are pending.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from millwheel.model.codec import pack_plain, unpack
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import (
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    TIMER_SUFFIX,
    TIMER_TIME,
    after,
    counters_key,
    tablet_near,
    tablets_of,
    time_bytes,
    time_of,
    timer_prefix,
)

ROWS: Final = 0
BYTES: Final = 1
FIRST_KIND: Final = 2  # then the timers of each clock and the holds, in the order of their kinds
WATERMARK_TIMERS: Final = FIRST_KIND + KIND_WATERMARK
WALL_TIMERS: Final = FIRST_KIND + KIND_WALL
HOLDS: Final = FIRST_KIND + KIND_HOLD
_SUMMED: Final = 5
_FIRST_TIME: Final = _SUMMED  # then the first timer of each clock and the first hold
_KINDS: Final = (KIND_WATERMARK, KIND_WALL, KIND_HOLD)
WAITING: Final = _FIRST_TIME + len(_KINDS)  # buffered records (in_order)
FIRST_WAITING: Final = WAITING + 1
WAITING_TOTAL: Final = _SUMMED  # their position in `Tablets.totals`
NO_COUNTS: Final = [0] * _SUMMED + [MAX_TIME] * len(_KINDS) + [0, MAX_TIME]
"""The counters of an empty tablet."""


class Tablets:
    """Reads the index of an interval, and collects the step's changes to it."""

    def __init__(self, computation: int, tablets: range, snapshot: Snapshot, among: int) -> None:
        """``tablets`` are those of the interval, ``among`` all of the key space."""
        self._computation = computation
        self._first = tablets.start
        self.among = among
        self._behind = 17 - among.bit_length()  # bits of two bytes of a fingerprint, behind the tablet
        self._counters: dict[int, list[int]] = {}
        for key, value in snapshot.scan(*counters_range(computation, tablets)[:2]):
            self._counters[self.of_key(key)] = counters_of(value)
        self._touched: set[int] = set()
        self._added: list[bytes] = []
        self._removed: set[bytes] = set()
        self._first_added: dict[tuple[int, int], int] = {}
        self._first_removed: set[tuple[int, int]] = set()
        self._prefixes: dict[tuple[int, int], bytes] = {}

    def due(self, snapshot: Snapshot, watermark: int, now: int, limit: int) -> tuple[list[bytes], bool]:
        """The row suffixes of at most ``limit`` due keys; whether there are more."""
        found: dict[bytes, None] = {}
        ranges = self._due_ranges(KIND_WATERMARK, watermark) + self._due_ranges(KIND_WALL, now)
        share = _share(limit, len(ranges))
        snapshot.prefetch([(start, stop, min(most, share)) for start, stop, most in ranges])
        for start, stop, _ in ranges:
            for key, _ in snapshot.scan(start, stop):
                if len(found) >= limit:
                    return list(found), True
                found[key[TIMER_SUFFIX:]] = None
        return list(found), False

    def each_due(self, snapshot: Snapshot, watermark: int) -> Iterator[bytes]:
        """The row suffixes of all keys with a due watermark timer, as in `due`."""
        for start, stop, _ in self._due_ranges(KIND_WATERMARK, watermark):
            yield from (key[TIMER_SUFFIX:] for key, _ in snapshot.scan(start, stop))

    def _due_ranges(self, kind: int, time: int) -> list[Range]:
        """The ranges of the index with due entries, and their largest sizes."""
        ranges: list[Range] = []
        for tablet, counters in self._counters.items():
            if not counters[FIRST_KIND + kind] or counters[_FIRST_TIME + kind] > time:
                continue
            prefix = timer_prefix(self._computation, tablet, kind)
            stop = after(prefix) if time >= MAX_TIME else prefix + time_bytes(time + 1)
            ranges.append((prefix, stop, counters[FIRST_KIND + kind] + 1))
        return ranges

    def pending(self, snapshot: Snapshot, kind: int) -> list[tuple[bytes, int]]:
        """The row suffix of every key with an entry of a kind, and its first time."""
        prefixes = [
            timer_prefix(self._computation, tablet, kind)
            for tablet, counters in self._counters.items()
            if counters[FIRST_KIND + kind]
        ]
        return [
            (key[TIMER_SUFFIX:], time_of(key[TIMER_TIME]))
            for prefix in prefixes
            for key, _ in snapshot.scan(prefix, after(prefix))
        ]

    def change(self, kind: int, suffix: bytes, was: int | None, is_now: int | None) -> None:
        """Records a key's earliest timer or hold before and after, once a step."""
        tablet = (suffix[0] << 8 | suffix[1]) >> self._behind
        place = (tablet, kind)
        prefix = self._prefixes.get(place)
        if prefix is None:
            prefix = self._prefixes[place] = timer_prefix(self._computation, tablet, kind)
        if was is not None:
            self._removed.add(prefix + time_bytes(was) + suffix)
            if was == self.counters(tablet)[_FIRST_TIME + kind]:
                self._first_removed.add(place)
        if is_now is not None:
            self._added.append(prefix + time_bytes(is_now) + suffix)
            if is_now < self._first_added.get(place, MAX_TIME):
                self._first_added[place] = is_now

    def counters(self, tablet: int) -> list[int]:
        """The counters of a tablet, for changing."""
        counters = self._counters.get(tablet)
        if counters is None:
            counters = self._counters[tablet] = list(NO_COUNTS)
        self._touched.add(tablet)
        return counters

    def of_key(self, key: bytes) -> int:
        """The tablet of an entry by computation and tablet."""
        return tablet_near(key[3], self._first)

    def of_row(self, suffix: bytes) -> list[int]:
        """The counters of a row's tablet, for changing."""
        return self.counters((suffix[0] << 8 | suffix[1]) >> self._behind)

    def each(self) -> Iterable[tuple[int, list[int]]]:
        """The counters of every tablet that has any, read-only."""
        return self._counters.items()

    def first_waiting(self) -> int:
        """The timestamp of the first buffered record; `MAX_TIME` if there is none."""
        waiting = (counters[FIRST_WAITING] for counters in self._counters.values() if counters[WAITING])
        return min(waiting, default=MAX_TIME)

    @property
    def has_waiting(self) -> bool:
        """Whether there are buffered records."""
        return any(counters[WAITING] for counters in self._counters.values())

    def next_times(self, snapshot: Snapshot) -> tuple[int, int, int]:
        """The oldest pending watermark timer, wall timer and hold after this step."""
        prefixes = [timer_prefix(self._computation, tablet, kind) for tablet, kind in self._first_removed]
        share = _share(len(self._removed), len(prefixes))  # the first is after the removed ones
        snapshot.prefetch([(prefix, after(prefix), share) for prefix in prefixes])
        for tablet, kind in self._first_removed:
            prefix = timer_prefix(self._computation, tablet, kind)
            left = (key for key, _ in snapshot.scan(prefix, after(prefix)) if key not in self._removed)
            first = next(left, None)
            self.counters(tablet)[_FIRST_TIME + kind] = (
                MAX_TIME if first is None else time_of(first[TIMER_TIME])
            )
        for (tablet, kind), time in self._first_added.items():
            counters = self.counters(tablet)
            counters[_FIRST_TIME + kind] = min(counters[_FIRST_TIME + kind], time)
        oldest = [
            min((counters[_FIRST_TIME + kind] for counters in self._counters.values()), default=MAX_TIME)
            for kind in _KINDS
        ]
        return oldest[0], oldest[1], oldest[2]

    def entries(
        self, snapshot: Snapshot, kinds: Collection[int], few: int
    ) -> Iterator[tuple[int, int, bytes]]:
        """Each key's earliest of these kinds after this step: time, kind, suffix.

        ``few``: the expected number of entries that will be read.
        """
        added = sorted(_entry(key) for key in self._added if key[4] in kinds)
        prefixes = [
            timer_prefix(self._computation, tablet, kind)
            for tablet, counters in self._counters.items()
            for kind in kinds
            if counters[FIRST_KIND + kind]
        ]
        share = _share(few + len(self._removed), len(prefixes))
        snapshot.prefetch([(prefix, after(prefix), share) for prefix in prefixes])
        return heapq.merge(added, *(self._stored(snapshot, prefix) for prefix in prefixes))

    def _stored(self, snapshot: Snapshot, prefix: bytes) -> Iterator[tuple[int, int, bytes]]:
        for key, _ in snapshot.scan(prefix, after(prefix)):
            if key not in self._removed:
                yield _entry(key)

    def totals(self) -> list[int]:
        """The summed counters of the whole interval."""
        sums = [0] * (_SUMMED + 1)
        for counters in self._counters.values():
            for index in range(_SUMMED):
                sums[index] += counters[index]
            sums[WAITING_TOTAL] += counters[WAITING]
        return sums

    def weights(self, keys: Iterable[str]) -> dict[int, list[int]]:
        """By tablet: the number of these keys' records, and the bytes of its rows."""
        counts = Counter(keys)
        found = {tablet: [0, counters[BYTES]] for tablet, counters in self._counters.items()}
        for count, tablet in zip(counts.values(), tablets_of(list(counts), self.among), strict=True):
            found.setdefault(tablet, [0, 0])[0] += count
        return found

    def writes(self) -> Iterator[tuple[bytes, bytes]]:
        """New index entries and changed counters."""
        for key in self._added:
            yield key, b""
        for tablet in self._touched:
            yield counters_key(self._computation, tablet), pack_plain(self._counters[tablet])

    def deletes(self) -> Iterator[bytes]:
        """Index entries to delete."""
        return iter(self._removed)


def counters_of(value: bytes) -> list[int]:
    """A tablet's counters; those of an earlier version are fewer."""
    found: list[int] = unpack(value)
    return found + NO_COUNTS[len(found) :]


def _entry(key: bytes) -> tuple[int, int, bytes]:
    return time_of(key[TIMER_TIME]), key[4], key[TIMER_SUFFIX:]


def counters_range(computation: int, tablets: range) -> Range:
    """The range of the store with the counters of tablets."""
    last = counters_key(computation, tablets.stop - 1)
    return counters_key(computation, tablets.start), last + b"\x00", len(tablets) + 1


def _share(entries: int, ranges: int) -> int:
    """The expected number of entries in one of several ranges, with a margin."""
    return 2 * entries // max(ranges, 1) + 16
