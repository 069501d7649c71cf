"""Buffered records in the store (``in_order=True``, semantics 14).

They are stored by tablet in pieces: some records in order of time, under the time of the first. A step
reads the pieces that begin before its watermark, and no others. The rest of a piece is written again
under its new beginning; it keeps its arrival, by which records of equal timestamps are ordered.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millwheel.model.keys import PARTS
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import (
    WAITING_ARRIVAL,
    WAITING_TIME,
    after,
    part_with,
    tablets_of,
    time_bytes,
    time_of,
    waiting_key,
    waiting_prefix,
)
from millwheel.store.reorder_rows import Waiters
from millwheel.worker.inbox import Arrivals
from millwheel.worker.timer_index import FIRST_WAITING, WAITING, Tablets

_PIECE = 256  # records: few enough that rewriting the rest of one is cheap


@dataclass
class Loaded:
    """A piece that a step has read: its key in the store, its range in the arrivals."""

    key: bytes
    tablet: int
    """The tablet of its records."""
    waiters: Waiters
    start: int = 0

    @property
    def arrival(self) -> bytes:
        """Its arrival: the order among equal timestamps, and its stream."""
        return self.key[WAITING_ARRIVAL]


class Waiting:
    """The buffered records of a computation in an interval."""

    def __init__(self, computation: int, tablets: Tablets) -> None:
        self._computation = computation
        self._tablets = tablets
        self.loaded: list[Loaded] = []
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self._bound = 0

    def load(self, snapshot: Snapshot, watermark: int, limit: int) -> int:
        """Reads due records, about ``limit``; returns the watermark they reach to.

        That is the given one, or an earlier one: so that the end of time, when all are due, does not need
        memory for all of them.
        """
        due = [
            tablet
            for tablet, counters in self._tablets.each()
            if counters[WAITING] and is_due(counters[FIRST_WAITING], watermark)
        ]
        ranges = [self._range(tablet, watermark) for tablet in due]
        most = 2 * (limit // _PIECE) // max(len(ranges), 1) + 16
        snapshot.prefetch([(start, stop, most) for start, stop in ranges])
        scans = [
            ((time_of(key[WAITING_TIME]), key, value) for key, value in snapshot.scan(start, stop))
            for start, stop in ranges
        ]
        count, bound, last = 0, watermark, None
        for time, key, value in heapq.merge(*scans):
            if count >= limit and time != last:
                bound = time
                break
            waiters = Waiters.from_bytes(value)
            count, last = count + len(waiters.keys), time
            self.loaded.append(Loaded(key, self._tablets.of_key(key), waiters))
        self._bound = bound
        self.loaded.sort(key=lambda piece: (piece.tablet, piece.arrival))
        return bound

    def add_to(self, arrivals: Arrivals, part: int | None = None) -> None:
        """Adds what was read to the arrivals, before all others; or what is of one part."""
        for piece in self.loaded:
            if part is None or part_with(piece.tablet, self._tablets.among) == part:
                piece.start = len(arrivals.keys)
                arrivals.add_waiting(piece.waiters)

    def spans(self) -> list[range]:
        """The ranges of the arrivals that were read from the buffer."""
        return [range(piece.start, piece.start + len(piece.waiters.keys)) for piece in self.loaded]

    def keep(
        self, snapshot: Snapshot, arrivals: Arrivals, positions: Sequence[int], late: set[int], epoch: int
    ) -> None:
        """Collects the changes of the store; arrivals at these positions stay buffered."""
        old: list[tuple[int, int]] = []
        touched: set[int] = set()
        firsts: dict[int, int] = {}

        def put(tablet: int, arrival: bytes, mine: Sequence[int]) -> None:
            first = arrivals.timestamps[mine[0]]
            data = _waiters(arrivals, mine, late).to_bytes()
            self.puts.append((waiting_key(self._computation, tablet, first, arrival), data))
            firsts[tablet] = min(firsts.get(tablet, MAX_TIME), first)
            self._tablets.counters(tablet)[WAITING] += len(mine)

        for piece in self.loaded:
            self.deletes.append(piece.key)
            size = len(piece.waiters.keys)
            self._tablets.counters(piece.tablet)[WAITING] -= size
            touched.add(piece.tablet)
            low, high = (bisect_left(positions, piece.start + n) for n in (0, size))
            old.append((low, high))
            if low < high:
                put(piece.tablet, piece.arrival, positions[low:high])
        fresh = _without(positions, old)
        for tablet, mine in _by_tablet(arrivals, fresh, self._tablets.among).items():
            mine.sort(key=arrivals.timestamps.__getitem__)
            for number, start in enumerate(range(0, len(mine), _PIECE)):
                arrival = epoch.to_bytes(8, "big") + number.to_bytes(4, "big")
                put(tablet, arrival, mine[start : start + _PIECE])
        self._move_firsts(snapshot, touched, firsts)

    def _move_firsts(self, snapshot: Snapshot, touched: set[int], firsts: dict[int, int]) -> None:
        """Updates the counters with the first record that each tablet still has."""
        behind: list[Range] = []
        for tablet in touched:
            prefix = waiting_prefix(self._computation, tablet)
            start = prefix + time_bytes(self._bound) if self._bound < MAX_TIME else after(prefix)
            behind.append((start, after(prefix), 1))
        snapshot.prefetch([part for part in behind if part[0] < part[1]])
        for tablet, (start, stop, _) in zip(touched, behind, strict=True):
            found = next(iter(snapshot.scan(start, stop)), None) if start < stop else None
            first = MAX_TIME if found is None else time_of(found[0][WAITING_TIME])
            self._tablets.counters(tablet)[FIRST_WAITING] = first
        for tablet, first in firsts.items():
            counters = self._tablets.counters(tablet)
            counters[FIRST_WAITING] = min(counters[FIRST_WAITING], first)

    def _range(self, tablet: int, watermark: int) -> tuple[bytes, bytes]:
        prefix = waiting_prefix(self._computation, tablet)
        return prefix, after(prefix) if watermark >= MAX_TIME else prefix + time_bytes(watermark)


def take_up(
    computation: int,
    snapshot: Snapshot,
    tablets: Tablets,
    watermark: int,
    limit: int | None,
    *,
    in_order: bool,
) -> tuple[Waiting | None, int]:
    """Reads the buffered records that are due; returns the watermark they reach to.

    A computation that is no longer in order reads all of its buffered records. Without a limit nothing
    is taken up.
    """
    if limit is None or not (in_order or tablets.has_waiting):
        return None, watermark
    waiting = Waiting(computation, tablets)
    if in_order:
        return waiting, waiting.load(snapshot, watermark, limit)
    waiting.load(snapshot, MAX_TIME, sys.maxsize)
    return waiting, watermark


def waiting_times(
    computation: int, tablets: Tablets, snapshot: Snapshot, waiting: Waiting | None
) -> Iterator[int]:
    """The timestamp of each record that is buffered after a step, in order."""
    gone, added = (set(waiting.deletes), waiting.puts) if waiting is not None else (set[bytes](), [])
    prefixes = [waiting_prefix(computation, tablet) for tablet, found in tablets.each() if found[WAITING]]
    stored = (
        (item for item in snapshot.scan(prefix, after(prefix)) if item[0] not in gone) for prefix in prefixes
    )
    read: list[int] = []
    for key, value in heapq.merge(sorted(added, key=_begins), *stored, key=_begins):
        while read and read[0] < time_of(key[WAITING_TIME]):  # no later piece begins before it
            yield heapq.heappop(read)
        for time in Waiters.from_bytes(value).timestamps:
            heapq.heappush(read, time)
    while read:
        yield heapq.heappop(read)


def _begins(item: tuple[bytes, bytes]) -> bytes:
    return item[0][WAITING_TIME]


def is_due(timestamp: int, watermark: int) -> bool:
    """Whether the watermark has passed a record; `MAX_TIME` has passed every one."""
    return timestamp < watermark or watermark >= MAX_TIME


def _waiters(arrivals: Arrivals, positions: Sequence[int], late: set[int]) -> Waiters:
    with_ids = arrivals.ids is not None or bool(arrivals.old_ids)
    ids = [arrivals.id(i) for i in positions] if with_ids else []
    mine = arrivals.batch.take(positions)
    return Waiters(
        [arrivals.streams[i] for i in positions],
        mine.key_column(),
        mine.timestamps,
        ids if any(id is not None for id in ids) else None,
        [place for place, i in enumerate(positions) if i in late] if late else [],
        None if mine.json is not None else mine.values,
        mine.json,
    )


def _without(positions: Sequence[int], spans: Iterable[tuple[int, int]]) -> list[int]:
    """The positions outside of the spans."""
    found: list[int] = []
    end = 0
    for low, high in sorted(spans):
        found += positions[end:low]
        end = max(end, high)
    return found + list(positions[end:])


def _by_tablet(arrivals: Arrivals, positions: Sequence[int], tablets: int) -> dict[int, list[int]]:
    parts = arrivals.parts()
    if len(parts) > 1 and tablets == PARTS:  # arranged by tablet
        cuts = {
            t: (bisect_left(positions, p.start), bisect_left(positions, p.stop)) for t, p in parts.items()
        }
        return {
            t: list(positions[low:high]) for t, (low, high) in cuts.items() if t is not None and low < high
        }
    found: dict[int, list[int]] = {}
    keys = list(map(arrivals.keys.__getitem__, positions))
    for position, tablet in zip(positions, tablets_of(keys, tablets), strict=True):
        found.setdefault(tablet, []).append(position)
    return found
