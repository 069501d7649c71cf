"""The framework-level cache (8.3): entries of an interval, kept beside the workers between epochs.

They are used only where they are proven to be what the store has: with them stands the `Token` of the
interval that they belong to, which changes with every write. They are kept as the bytes that the store has,
in an ordered map that the Python workers of an executor share. See ``docs/mechanisms/cache.md``.
"""

from __future__ import annotations

import itertools
import logging
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millwheel.errors import StoreError
from millwheel.model.codec import pack, unpack
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.store.base import Get, Range, Shard, Snapshot
from millwheel.store.keyspace import TIMER_TIME, after, time_of
from millwheel.store.row import decode_row
from millwheel.worker.plan import Interval, Plan
from millwheel.worker.timer_index import FIRST_KIND, NO_COUNTS, ROWS

logger = logging.getLogger("millwheel")

_ROW, _INDEX, _COUNTERS, _BACKLOG, _WAITING = b"RTCBW"
_WHOLE = (_COUNTERS, _BACKLOG)  # ranges that a step always reads as a whole
_RANGES = (*_WHOLE, _INDEX)
_HEADER = b"\x00"  # behind an interval's prefix: what is known of its part of the cache
_BOUND = b"\x01"  # and a range of it: how far the range is known
_COMPUTATION = slice(1, 3)  # of any key
_INDEX_START = 5  # bytes of a range of the timer index: computation, tablet and kind

_ENTRY = 64  # bytes that an entry takes besides its own, about
_KEPT = 0.75  # of the room, once it had to be made: looking at every row is done the more rarely
_AHEAD = 256  # entries of the timer index that are read at once, at first
_SMOOTH = 0.3  # the weight of the last epoch in the pace of a watermark
_CROWDED = 0.6  # of the room: with less than that in use, whatever comes is taken in again
_TRIED = 16  # one in so many rows is taken in though nothing speaks for it: what is used changes
_NOTED = 4  # one in so many uses of a row is noted: noting it costs what keeping it does
_FINGERPRINT = 3  # a byte of a row's key that is spread evenly

_USES = struct.Struct(">II")  # before a row: the epoch of its last use, and the distance to the one before


class Token(NamedTuple):
    """One state of an interval: no two writes leave the same. Without a nonce it proves nothing."""

    sequencer: int
    epoch: int
    nonce: bytes = b""


_NOTHING = Token(0, 0)


@dataclass
class _Header:
    """What is known of the entries of one interval; ``token`` is the state that they belong to."""

    token: Token = _NOTHING
    size: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    """By computation: how many of its rows are here."""
    full: bool = False
    """Whether room had to be made already: from then on uses of rows are noted."""
    wait: float = math.inf
    """Of the rows that had to go, the epochs until the first of them is expected."""
    pace: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By computation: its watermark, and by how much that moves in an epoch."""

    def to_bytes(self) -> bytes:
        return pack([list(self.token), self.size, self.rows, self.full, self.wait, self.pace])

    @staticmethod
    def from_bytes(data: bytes | None) -> _Header:
        if data is None:
            return _Header()
        token, *rest = unpack(data)
        return _Header(Token(*token), *rest)


class _Changed(Exception):
    """Another process has written the cache since."""


class Cache:
    """The cache of an executor: a shelf for each shard, a share of the room for each interval."""

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
        """Whether the shelf of a shard can be opened; a cache that cannot be had is no reason to fail."""
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
        """Stands before a reading of the store, in which the interval is found in a state."""
        shelf = self._shelf(interval.shard)
        place = bytes((level, interval.first, interval.last))
        share = self._limit // sum(map(len, plan.intervals))
        with shelf.snapshot() as kept:
            yield Reading(shelf, kept, snapshot, place, interval.first, state, plan.epoch, share)


@contextmanager
def before(
    cache: Cache | None, snapshot: Snapshot, plan: Plan, level: int, interval: Interval, state: Token
) -> Iterator[Reading | None]:
    """A cache's reading of an interval; None without a cache."""
    if cache is None or not cache.usable(interval.shard):
        yield None
        return
    with cache.reading(snapshot, plan, level, interval, state) as reading:
        yield reading


def not_kept(cache: Cache | None, ranges: list[Range]) -> list[Range]:
    """Of what a step will read: what is fetched with the interval's state, whatever a cache may have."""
    return ranges if cache is None else [part for part in ranges if part[0][0] not in _RANGES]


class Reading:
    """A snapshot with the cache before it, of one interval in one step; then, what the step has changed."""

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
        self._first = bytes((first,))
        self._epoch = epoch
        self._limit = limit
        self._found = _Header.from_bytes(kept.get(place + _HEADER))
        # An entry of the epoch before the last may be left from an interval that was cut otherwise since.
        self.trusted = proves(self._found.token, state, epoch)
        self._header = self._found if self.trusted else _Header()
        self._hits: dict[bytes, bytes] = {}
        self._fetched: dict[bytes, bytes] = {}
        self._index_read: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._bounds: dict[bytes, bytes] = {}
        self._counters: dict[bytes, dict[int, list[int]]] = {}
        self._counts: dict[int, list[int]] = {}

    def counts(self, computation: int) -> list[int]:
        """Of a computation: the rows that were here, and those that the store was asked for."""
        return self._counts.setdefault(computation, [0, 0])

    def at(self, computation: int, watermark: int) -> None:
        """Tells how far a computation's input watermark has come."""
        before, pace = self._header.pace.get(computation, (MIN_TIME, 0.0))
        if before != MIN_TIME and watermark != MAX_TIME:
            moved = float(watermark - before)
            pace = (1 - _SMOOTH) * pace + _SMOOTH * moved if pace else moved
        self._header.pace[computation] = (watermark, pace)

    def get(self, key: bytes) -> bytes | None:
        """The store's own answer."""
        return self._snapshot.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Rows come from the cache where it has them."""
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
                    found[number] = entry[_USES.size :]
        computation = int.from_bytes(keys[0][_COMPUTATION], "big")
        counts = self.counts(computation)
        counters = self._counters.get(keys[0][_COMPUTATION])
        if counters is not None and self._header.rows.get(computation, 0) == sum(
            counted[ROWS] for counted in counters.values()
        ):
            missing = []  # every row that there is, is here
        counts[0] += len(keys) - len(missing)
        counts[1] += len(missing)
        if missing:
            wanted = [keys[number] for number in missing]
            for number, key, row in zip(missing, wanted, self._snapshot.get_each(wanted), strict=True):
                if row is not None:
                    found[number] = self._fetched[key] = row
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Counters and what waits come from the cache; so do the first entries of the timer index."""
        if start[0] in _WHOLE:
            return iter(self._whole(start, stop))
        if start[0] == _INDEX and len(start) == _INDEX_START:
            return self._index(start, stop)
        return self._snapshot.scan(start, stop)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Says what will be read next of what may be kept here, and is not."""
        self._snapshot.prefetch(
            [
                part
                for part in ranges
                if part[0][0] == _WAITING or (part[0][0] in _RANGES and not self._knows(part[0]))
            ]
        )

    def _knows(self, start: bytes) -> bool:
        """Whether something of a range is known."""
        return self._bound(start) != start

    def _bound(self, start: bytes) -> bytes:
        """How far a range is known: all that the store has before that is here, or was read in this step."""
        bound = self._bounds.get(start)
        if bound is None:
            bound = self._kept.get(self._place + _BOUND + start) if self.trusted else None
            if bound is None:
                bound = after(start) if start[0] == _INDEX and self._has_none(start) else start
            self._bounds[start] = bound
        return bound

    def _has_none(self, start: bytes) -> bool:
        """Whether a tablet is known to have no timer or hold of a kind."""
        counters = self._counters.get(start[_COMPUTATION])
        tablet, kind = start[3:_INDEX_START]
        return counters is not None and not counters.get(tablet, NO_COUNTS)[FIRST_KIND + kind]

    def _whole(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        if self._knows(start):
            entries = list(self._stored(start, stop))
        else:
            entries = list(self._snapshot.scan(start, stop))
            self._bounds[start] = stop
            self._fetched.update(entries)
        if start[0] == _COUNTERS:
            self._counters[start[_COMPUTATION]] = {key[3]: unpack(value) for key, value in entries}
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
        """Brings the cache to a state that a step of this reading has written, by these changes."""
        try:
            with self._shelf.snapshot() as self._kept:  # a later one; the write sees whether all is as it was
                changes = self._changes(puts, deletes)
                stale = [] if self.trusted else list(_overlapping(self._kept, self._place))
            self._write(self._counted(changes, state), changes, stale)
        except _Changed:
            pass  # an attempt beside this one: at worst, the next step reads the store
        except StoreError as error:  # the step is committed: what is not kept is read again
            logger.warning("the cache could not be written: %s", error)

    def _changes(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]
    ) -> dict[bytes, bytes | None]:
        """What was read, and what the step has changed of it: new values, and what is gone."""
        changes: dict[bytes, bytes | None] = dict(self._fetched)
        for entries in self._index_read.values():
            changes.update(entries)
        once = _USES.pack(self._epoch & 0xFFFFFFFF, 0)
        for key, row in self._fetched.items():
            if key[0] == _ROW:
                changes[key] = once + row
        if self._header.full:
            for key, entry in self._hits.items():
                if _USES.unpack_from(entry)[1] == 0 or self._by_chance(key, _NOTED):
                    changes[key] = self._use(entry) + entry[_USES.size :]
        for key in deletes:
            if self._belongs(key):
                changes[key] = None
        for key, value in puts:
            if self._belongs(key):
                changes[key] = value
                if key[0] == _ROW:
                    before = self._hits.get(key)
                    changes[key] = (once if before is None else self._use(before)) + value
        if self._header.full and self._header.size > _CROWDED * self._limit:
            new = [(key, row) for key, row in changes.items() if key[0] == _ROW and key not in self._hits]
            for key, kept in new:
                if kept is not None and not self._admits(key, kept):
                    del changes[key]
        return changes

    def _admits(self, key: bytes, entry: bytes) -> bool:
        """Whether a row that is new here would outlast those that had to go; of others, a few may try."""
        return _row_wait(key, entry, self._header) < self._header.wait or self._by_chance(key, _TRIED)

    def _by_chance(self, key: bytes, one_in: int) -> bool:
        """True in one of so many epochs, in another one for each key."""
        return (key[_FINGERPRINT] + self._epoch) % one_in == 0

    def _use(self, entry: bytes) -> bytes:
        """A row that was here, used once more."""
        last, gap = _USES.unpack_from(entry)
        now = self._epoch & 0xFFFFFFFF
        return _USES.pack(now, now - last if now > last else gap)

    def _belongs(self, key: bytes) -> bool:
        """Whether a key is in what is kept: any row, and of ranges the part that is known."""
        kind = key[0]
        if kind == _ROW:
            return True
        if kind == _INDEX:
            return key < self._bound(key[:_INDEX_START])
        if kind in _WHOLE:
            start = key[:3] + self._first
            return self._knows(start)
        return False

    def _counted(self, changes: dict[bytes, bytes | None], state: Token) -> _Header:
        """The header with the changes: how many rows are here, and about how many bytes."""
        header = self._header
        rows, size = dict(header.rows), header.size
        for key, value in changes.items():
            if key[0] in _WHOLE:
                continue  # they are few, and replaced
            before = self._hits.get(key)
            if value is not None:
                size += len(value) - (len(before) if before is not None else -len(key) - _ENTRY)
            elif before is not None or key[0] == _INDEX:
                size -= len(key) + _ENTRY + (len(before) if before is not None else 0)
            if key[0] == _ROW and (value is None) != (before is None):
                computation = int.from_bytes(key[_COMPUTATION], "big")
                rows[computation] = rows.get(computation, 0) + (-1 if value is None else 1)
        return replace(header, token=state, size=size, rows=rows)

    def _write(self, header: _Header, changes: dict[bytes, bytes | None], stale: list[bytes]) -> None:
        place, was = self._place, self._found.token
        puts = [(place + key, value) for key, value in changes.items() if value is not None]
        puts += [(place + _BOUND + start, bound) for start, bound in self._bounds.items() if bound != start]
        puts.append((place + _HEADER, header.to_bytes()))
        deletes = [place + key for key, value in changes.items() if value is None]
        if not self.trusted:
            if was.sequencer == header.token.sequencer and was.epoch >= header.token.epoch:
                return  # whoever is ahead of us knows better
            deletes = stale
        self._shelf.write(puts, deletes, self._guard(was))
        if header.size > self._limit:
            _make_room(self._shelf, place, header, self._limit, self._guard(header.token))

    def _guard(self, token: Token) -> Callable[[Get], None]:
        def guard(get: Get) -> None:
            if _Header.from_bytes(get(self._place + _HEADER)).token != token:
                raise _Changed

        return guard


def _overlapping(kept: Snapshot, place: bytes) -> Iterator[bytes]:
    """The keys of an interval, and of those that have shared tablets with it in another layout."""
    level, first, last = place
    start, stop = bytes((level,)), bytes((level + 1,))
    while (entry := next(kept.scan(start, stop), None)) is not None:
        other = entry[0][: len(place)]
        start = after(other)
        if other[1] < last and first < other[2]:
            for key, _ in kept.scan(other, start):
                yield key


def proves(kept: Token, state: Token, epoch: int) -> bool:
    """Whether what belongs to one token is what the store has, for a step of an epoch."""
    return kept == state and bool(kept.nonce) and kept.epoch == epoch - 1


def _make_room(shelf: Shard, place: bytes, header: _Header, limit: int, guard: Callable[[Get], None]) -> None:
    """Lets go of what will be needed last: rows, and the timer index from its far end."""
    found: list[tuple[float, int, bytes, int]] = []
    everything = []
    header.size = 0
    with shelf.snapshot() as kept:
        for key, value in kept.scan(place, after(place)):
            everything.append(key)
            size = len(key) - len(place) + len(value) + _ENTRY
            header.size += size
            own = key[len(place) :]
            if own[0] == _ROW:
                found.append((-_row_wait(own, value, header), _USES.unpack_from(value)[0], own, size))
            elif own[0] == _INDEX:
                found.append((-_wait(own, time_of(own[TIMER_TIME]), header), 0, own, size))
    found.sort(key=lambda one: one[:2])  # who is waited for longest first, then who was used least recently
    gone = []
    bounds: dict[bytes, bytes] = {}
    for negative, _, key, size in found:
        if header.size <= _KEPT * limit:
            break
        gone.append(key)
        header.size -= size
        header.wait = -negative
        if key[0] == _ROW:
            header.rows[int.from_bytes(key[_COMPUTATION], "big")] -= 1
        else:
            start = key[:_INDEX_START]
            bounds[start] = min(key, bounds.get(start, key))
    header.full = header.full or bool(gone)
    if header.size > limit:
        shelf.write([(place + _HEADER, _Header(full=True).to_bytes())], everything, guard)
        return
    # Of one time, some index entries may have stayed behind one that went.
    gone += [key for *_, key, _ in found if key[0] == _INDEX and key > bounds.get(key[:_INDEX_START], key)]
    puts = [(place + _BOUND + start, bound) for start, bound in bounds.items()]
    shelf.write([*puts, (place + _HEADER, header.to_bytes())], [place + key for key in gone], guard)


def _row_wait(key: bytes, entry: bytes, header: _Header) -> float:
    """In how many epochs a row is expected: with its timer, or with the next of its records."""
    last, gap = _USES.unpack_from(entry)
    wait = float(max(gap, (header.token.epoch & 0xFFFFFFFF) - last)) if gap else math.inf
    if entry[_USES.size]:
        timers = decode_row(entry[_USES.size :]).timers
        if timers:
            wait = min(wait, _wait(key, min(timers.values()), header))
    return wait


def _wait(key: bytes, time: int, header: _Header) -> float:
    """In how many epochs a computation's watermark reaches a time."""
    watermark, pace = header.pace.get(int.from_bytes(key[_COMPUTATION], "big"), (MIN_TIME, 0.0))
    return max(time - watermark, 0) / max(pace, 1e-9)
