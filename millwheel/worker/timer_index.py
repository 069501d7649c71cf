"""The timer index and the counters of one computation in one interval.

The index has one entry for each key and kind: its earliest watermark timer, wall timer, or hold. The
counters of a tablet say how many it has and when the first is due, so that an epoch looks at the index
of no tablet but those where something is due or changes, however many timers are pending.
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
WAITING: Final = _FIRST_TIME + len(_KINDS)  # records that wait for the watermark
FIRST_WAITING: Final = WAITING + 1
WAITING_TOTAL: Final = _SUMMED  # where `Tablets.totals` has them
NO_COUNTS: Final = [0] * _SUMMED + [MAX_TIME] * len(_KINDS) + [0, MAX_TIME]
"""The counters of a tablet that has nothing."""


class Tablets:
    """Reads the index of an interval, and collects this step's changes to it."""

    def __init__(self, computation: int, tablets: range, snapshot: Snapshot) -> None:
        self._computation = computation
        self._counters: dict[int, list[int]] = {}
        for key, value in snapshot.scan(*counters_range(computation, tablets)[:2]):
            self._counters[key[3]] = counters_of(value)
        self._touched: set[int] = set()
        self._added: list[bytes] = []
        self._removed: set[bytes] = set()
        self._first_added: dict[tuple[int, int], int] = {}
        self._first_removed: set[tuple[int, int]] = set()
        self._prefixes: dict[tuple[int, int], bytes] = {}

    def due(self, snapshot: Snapshot, watermark: int, now: int, limit: int) -> tuple[list[bytes], bool]:
        """The row suffixes of keys with a due timer, ``limit`` at most, and whether there are more."""
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
        """The row suffixes of all keys with a due watermark timer, as `due` has them."""
        for start, stop, _ in self._due_ranges(KIND_WATERMARK, watermark):
            yield from (key[TIMER_SUFFIX:] for key, _ in snapshot.scan(start, stop))

    def _due_ranges(self, kind: int, time: int) -> list[Range]:
        """Where the index has what is due, and at most how much."""
        ranges: list[Range] = []
        for tablet, counters in self._counters.items():
            if not counters[FIRST_KIND + kind] or counters[_FIRST_TIME + kind] > time:
                continue
            prefix = timer_prefix(self._computation, tablet, kind)
            stop = after(prefix) if time >= MAX_TIME else prefix + time_bytes(time + 1)
            ranges.append((prefix, stop, counters[FIRST_KIND + kind] + 1))
        return ranges

    def pending(self, snapshot: Snapshot, kind: int) -> list[tuple[bytes, int]]:
        """The row suffix of every key that has something of a kind, and when its first is."""
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
        """A key's earliest timer or hold of a kind, before and after: once for each key and step."""
        tablet = suffix[0] >> 2
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
        """The counters of a tablet, to be changed."""
        counters = self._counters.get(tablet)
        if counters is None:
            counters = self._counters[tablet] = list(NO_COUNTS)
        self._touched.add(tablet)
        return counters

    def each(self) -> Iterable[tuple[int, list[int]]]:
        """The counters of every tablet that has some, not to be changed."""
        return self._counters.items()

    def first_waiting(self) -> int:
        """The timestamp of the first record that waits for the watermark; `MAX_TIME` where none does."""
        waiting = (counters[FIRST_WAITING] for counters in self._counters.values() if counters[WAITING])
        return min(waiting, default=MAX_TIME)

    @property
    def has_waiting(self) -> bool:
        """Whether records wait for the watermark."""
        return any(counters[WAITING] for counters in self._counters.values())

    def next_times(self, snapshot: Snapshot) -> tuple[int, int, int]:
        """The oldest watermark timer, wall timer and hold that are pending after this step."""
        prefixes = [timer_prefix(self._computation, tablet, kind) for tablet, kind in self._first_removed]
        share = _share(len(self._removed), len(prefixes))  # behind those that are gone is the first
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
        """Each key's earliest of these kinds after this step, in order: time, kind, row suffix.

        ``few``: so many of them will be read, as a rule.
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
        """The counters of the whole interval: those that are sums."""
        sums = [0] * (_SUMMED + 1)
        for counters in self._counters.values():
            for index in range(_SUMMED):
                sums[index] += counters[index]
            sums[WAITING_TOTAL] += counters[WAITING]
        return sums

    def weights(self, keys: Iterable[str]) -> dict[int, list[int]]:
        """By tablet: how many of these keys' records there are, and the bytes of its rows."""
        counts = Counter(keys)
        found = {tablet: [0, counters[BYTES]] for tablet, counters in self._counters.items()}
        for count, tablet in zip(counts.values(), tablets_of(list(counts)), strict=True):
            found.setdefault(tablet, [0, 0])[0] += count
        return found

    def writes(self) -> Iterator[tuple[bytes, bytes]]:
        """New index entries and changed counters."""
        for key in self._added:
            yield key, b""
        for tablet in self._touched:
            yield counters_key(self._computation, tablet), pack_plain(self._counters[tablet])

    def deletes(self) -> Iterator[bytes]:
        """Index entries that are gone."""
        return iter(self._removed)


def counters_of(value: bytes) -> list[int]:
    """A tablet's counters; those of an earlier version have fewer."""
    found: list[int] = unpack(value)
    return found + NO_COUNTS[len(found) :]


def _entry(key: bytes) -> tuple[int, int, bytes]:
    return time_of(key[TIMER_TIME]), key[4], key[TIMER_SUFFIX:]


def counters_range(computation: int, tablets: range) -> Range:
    """Where the counters of tablets stand."""
    last = counters_key(computation, tablets.stop - 1)
    return counters_key(computation, tablets.start), last + b"\x00", len(tablets) + 1


def _share(entries: int, ranges: int) -> int:
    """Of entries that spread evenly over ranges, as many as one of them has, and room for chance."""
    return 2 * entries // max(ranges, 1) + 16
