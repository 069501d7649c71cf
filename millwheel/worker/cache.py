"""The framework-level cache (8.3): entries of an interval, kept between epochs.

Entries are used only if they are proven to equal the store's: they carry the `Token` of their
interval, which changes with every write. They are kept as the bytes of the store, in an ordered map that
the Python workers of an executor share. See ``docs/mechanisms/cache.md``.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.store.base import Get, Range, Shard, Snapshot
from millwheel.store.keyspace import BACKLOG, COUNTERS, ROW, TIMER, WAITING, after, tablet_byte
from millwheel.worker.cache_room import (
    BOUND,
    COMPUTATION,
    ENTRY,
    HEADER,
    INDEX_START,
    USED,
    Header,
    Token,
    make_room,
)
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.timer_index import FIRST_KIND, NO_COUNTS, ROWS

logger = logging.getLogger("millwheel")

_ROW, _INDEX, _COUNTERS, _BACKLOG, _WAITING = ROW[0], TIMER[0], COUNTERS[0], BACKLOG[0], WAITING[0]
_WHOLE = (_COUNTERS, _BACKLOG)  # ranges that a step always reads as a whole
_RANGES = (*_WHOLE, _INDEX)

_AHEAD = 256  # entries of the timer index in the first read
_CROWDED = 0.6  # fill level below which every row is admitted again
_TRIED = 16  # a crowded cache admits one in 16 new rows, at random: the rows in use change
_NOTED = 4  # one in 4 uses of a row is recorded: a record costs a write
_FINGERPRINT = 3  # a byte of a row's key that is spread evenly


class _Changed(Exception):
    """Another process has written the cache since it was read."""


class Cache:
    """The cache of an executor: a database for each shard, a size limit by interval."""

    def __init__(self, shelf: Callable[[int], Shard], limit: int) -> None:
        self._open = shelf
        self._shelves: dict[int, Shard] = {}
        self._refused: set[int] = set()
        self._limit = limit

    def _shelf(self, shard: int) -> Shard:
        if shard not in self._shelves:
            self._shelves[shard] = self._open(shard)
        return self._shelves[shard]

    def usable(self, shard: int) -> bool:
        """Whether a shard's cache can be opened; the store is used alone if it cannot."""
        try:
            self._shelf(shard)
        except StoreError as error:
            if shard not in self._refused:
                logger.warning("there is no cache for shard %d: %s", shard, error)
            self._refused.add(shard)
        return shard not in self._refused

    @contextmanager
    def reading(
        self, snapshot: Snapshot, plan: Plan, level: int, interval: Interval, state: Token
    ) -> Iterator[Reading]:
        """Starts a read of the store, in which the interval is found in a state."""
        shelf = self._shelf(interval.shard)
        place = bytes((level, interval.first & 255, interval.last - 1 & 255))
        share = self._limit // sum(map(len, plan.intervals))
        with shelf.snapshot() as kept:
            yield Reading(shelf, kept, snapshot, place, interval.first, state, plan.epoch, share)


@contextmanager
def before(
    cache: Cache | None, snapshot: Snapshot, plan: Plan, level: int, interval: Interval, state: Token
) -> Iterator[Reading | None]:
    """The cache's `Reading` of an interval; None without a cache."""
    if cache is None or not cache.usable(interval.shard):
        yield None
        return
    with cache.reading(snapshot, plan, level, interval, state) as reading:
        yield reading


def not_kept(cache: Cache | None, ranges: list[Range]) -> list[Range]:
    """The ranges to fetch with the interval's state, whatever the cache has."""
    return ranges if cache is None else [part for part in ranges if part[0][0] not in _RANGES]


class Reading:
    """A snapshot behind the cache, of one interval in one step, and its changes."""

    def __init__(
        self,
        shelf: Shard,
        kept: Snapshot,
        snapshot: Snapshot,
        place: bytes,
        first: int,
        state: Token,
        epoch: int,
        limit: int,
    ) -> None:
        self._shelf = shelf
        self._kept = kept
        self._snapshot = snapshot
        self._place = place
        self._first = tablet_byte(first)
        self._epoch = epoch
        self._limit = limit
        self._found = Header.from_bytes(kept.get(place + HEADER))
        # An entry of the epoch before the last may remain from an interval of another layout.
        self.trusted = proves(self._found.token, state, epoch)
        self._header = self._found if self.trusted else Header()
        self._hits: dict[bytes, bytes] = {}
        self._fetched: dict[bytes, bytes] = {}
        self._index_read: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._bounds: dict[bytes, bytes] = {}
        self._counters: dict[bytes, dict[int, list[int]]] = {}
        self._counts: dict[int, list[int]] = {}

    def counts(self, computation: int) -> list[int]:
        """Of a computation: the number of rows from the cache, and from the store."""
        return self._counts.setdefault(computation, [0, 0])

    def get(self, key: bytes) -> bytes | None:
        """Reads the store."""
        return self._snapshot.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Reads rows from the cache, and the missing ones from the store."""
        if not keys or keys[0][0] != _ROW:
            return self._snapshot.get_each(keys)
        place, hits = self._place, self._hits
        found: list[bytes | None] = [None] * len(keys)
        missing = list(range(len(keys)))
        if self.trusted:
            missing = []
            for number, entry in enumerate(self._kept.get_each([place + key for key in keys])):
                if entry is None:
                    missing.append(number)
                else:
                    hits[keys[number]] = entry
                    found[number] = entry[USED.size :]
        computation = int.from_bytes(keys[0][COMPUTATION], "big")
        counts = self.counts(computation)
        counters = self._counters.get(keys[0][COMPUTATION])
        if counters is not None and self._header.rows.get(computation, 0) == sum(
            counted[ROWS] for counted in counters.values()
        ):
            missing = []  # all existing rows are cached
        counts[0] += len(keys) - len(missing)
        counts[1] += len(missing)
        if missing:
            wanted = [keys[number] for number in missing]
            for number, key, row in zip(missing, wanted, self._snapshot.get_each(wanted), strict=True):
                if row is not None:
                    found[number] = self._fetched[key] = row
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Scans counters, backlog and the first timer index entries from the cache."""
        if start[0] in _WHOLE:
            return iter(self._whole(start, stop))
        if start[0] == _INDEX and len(start) == INDEX_START:
            return self._index(start, stop)
        return self._snapshot.scan(start, stop)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Announces the next reads of ranges that may be cached and are not."""
        self._snapshot.prefetch(
            [
                part
                for part in ranges
                if part[0][0] == _WAITING or (part[0][0] in _RANGES and not self._knows(part[0]))
            ]
        )

    def _knows(self, start: bytes) -> bool:
        """Whether a part of a range is cached."""
        return self._bound(start) != start

    def _bound(self, start: bytes) -> bytes:
        """How far a range is cached: all of the store's entries before that are here."""
        bound = self._bounds.get(start)
        if bound is None:
            bound = self._kept.get(self._place + BOUND + start) if self.trusted else None
            if bound is None:
                bound = after(start) if start[0] == _INDEX and self._has_none(start) else start
            self._bounds[start] = bound
        return bound

    def _has_none(self, start: bytes) -> bool:
        """Whether a tablet is known to have no timer or hold of a kind."""
        counters = self._counters.get(start[COMPUTATION])
        tablet, kind = start[3:INDEX_START]
        return counters is not None and not counters.get(tablet, NO_COUNTS)[FIRST_KIND + kind]

    def _whole(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        if self._knows(start):
            entries = list(self._stored(start, stop))
        else:
            entries = list(self._snapshot.scan(start, stop))
            self._bounds[start] = stop
            self._fetched.update(entries)
        if start[0] == _COUNTERS:
            self._counters[start[COMPUTATION]] = {key[3]: unpack(value) for key, value in entries}
        return entries

    def _stored(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        place = self._place
        for key, value in self._kept.scan(place + start, place + stop):
            yield key[len(place) :], value

    def _index(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        bound = self._bound(start)
        if self.trusted:
            yield from self._stored(start, min(stop, bound))
        read = self._index_read.setdefault(start, [])
        yield from list(itertools.takewhile(lambda entry: entry[0] < stop, read))
        ahead = _AHEAD
        while bound < stop:
            entries = list(itertools.islice(self._snapshot.scan(bound, stop), ahead))
            bound = stop if len(entries) < ahead else entries[-1][0] + b"\x00"
            self._bounds[start] = bound
            read += entries
            ahead *= 4
            yield from entries

    def keep(self, state: Token, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """Updates the cache to the state that a step of this reading has written."""
        try:
            with (
                self._shelf.snapshot() as self._kept
            ):  # a newer snapshot; the write checks that nothing changed
                changes = self._changes(puts, deletes)
                stale = [] if self.trusted else list(_overlapping(self._kept, self._place))
            self._write(self._counted(changes, state), changes, stale)
        except _Changed:
            pass  # a concurrent attempt: at worst, the next step reads the store
        except StoreError as error:  # the step is committed: entries that are not cached are read again
            logger.warning("the cache could not be written: %s", error)

    def _changes(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]
    ) -> dict[bytes, bytes | None]:
        """What was read, with the step's changes: new values, and None for deleted keys."""
        changes: dict[bytes, bytes | None] = dict(self._fetched)
        for entries in self._index_read.values():
            changes.update(entries)
        used = USED.pack(self._epoch & 0xFFFFFFFF)
        for key, row in self._fetched.items():
            if key[0] == _ROW:
                changes[key] = used + row
        if self._header.full:
            for key, entry in self._hits.items():
                if self._by_chance(key, _NOTED):
                    changes[key] = used + entry[USED.size :]
        for key in deletes:
            if self._belongs(key):
                changes[key] = None
        for key, value in puts:
            if self._belongs(key):
                changes[key] = used + value if key[0] == _ROW else value
        if self._header.full and self._header.size > _CROWDED * self._limit:
            for key in [key for key, row in changes.items() if key[0] == _ROW and row is not None]:
                if key not in self._hits and not self._by_chance(key, _TRIED):
                    del changes[key]
        return changes

    def _by_chance(self, key: bytes, one_in: int) -> bool:
        """True in one of ``one_in`` epochs, a different one for each key."""
        return (key[_FINGERPRINT] + self._epoch) % one_in == 0

    def _belongs(self, key: bytes) -> bool:
        """Whether a key is to be cached: any row, and the cached part of ranges."""
        kind = key[0]
        if kind == _ROW:
            return True
        if kind == _INDEX:
            return key < self._bound(key[:INDEX_START])
        if kind in _WHOLE:
            start = key[:3] + self._first
            return self._knows(start)
        return False

    def _counted(self, changes: dict[bytes, bytes | None], state: Token) -> Header:
        """The header after the changes: the number of rows, and the estimated bytes."""
        header = self._header
        rows, size = dict(header.rows), header.size
        for key, value in changes.items():
            if key[0] in _WHOLE:
                continue  # few, and overwritten
            before = self._hits.get(key)
            if value is not None:
                size += len(value) - (len(before) if before is not None else -len(key) - ENTRY)
            elif before is not None or key[0] == _INDEX:
                size -= len(key) + ENTRY + (len(before) if before is not None else 0)
            if key[0] == _ROW and (value is None) != (before is None):
                computation = int.from_bytes(key[COMPUTATION], "big")
                rows[computation] = rows.get(computation, 0) + (-1 if value is None else 1)
        return replace(header, token=state, size=size, rows=rows)

    def _write(self, header: Header, changes: dict[bytes, bytes | None], stale: list[bytes]) -> None:
        place, was = self._place, self._found.token
        puts = [(place + key, value) for key, value in changes.items() if value is not None]
        puts += [(place + BOUND + start, bound) for start, bound in self._bounds.items() if bound != start]
        puts.append((place + HEADER, header.to_bytes()))
        deletes = [place + key for key, value in changes.items() if value is None]
        if not self.trusted:
            if was.sequencer == header.token.sequencer and was.epoch >= header.token.epoch:
                return  # the cache is newer than this step
            deletes = stale
        self._shelf.write(puts, deletes, self._guard(was))
        if header.size > self._limit:
            make_room(self._shelf, place, header, self._limit, self._guard(header.token))

    def _guard(self, token: Token) -> Callable[[Get], None]:
        def guard(get: Get) -> None:
            if Header.from_bytes(get(self._place + HEADER)).token != token:
                raise _Changed

        return guard


def _overlapping(kept: Snapshot, place: bytes) -> Iterator[bytes]:
    """The keys of an interval, and of overlapping ones of other layouts."""
    level, first, last = place
    start, stop = bytes((level,)), bytes((level + 1,))
    while (entry := next(kept.scan(start, stop), None)) is not None:
        other = entry[0][: len(place)]
        start = after(other)
        if other[1] <= last and first <= other[2]:
            for key, _ in kept.scan(other, start):
                yield key


def proves(kept: Token, state: Token, epoch: int) -> bool:
    """Whether entries of one token equal the store's, for a step of an epoch."""
    return kept == state and bool(kept.nonce) and kept.epoch == epoch - 1
