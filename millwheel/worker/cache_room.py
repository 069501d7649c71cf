"""Eviction from a full cache: by use for rows, by time for timers (8.3)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.model.codec import pack, unpack
from millwheel.store.base import Get, Shard
from millwheel.store.keyspace import ROW, TIMER, TIMER_TIME, after, time_of

HEADER = b"\x00"  # after an interval's prefix: the header of its part of the cache
BOUND = b"\x01"  # and one of its ranges: how far the range is cached
COMPUTATION = slice(1, 3)  # of any key
INDEX_START = 5  # bytes of a range of the timer index: computation, tablet and kind
ENTRY = 64  # overhead of an entry, in bytes
_KEPT = 0.75  # fill level after an eviction: a scan of all rows is rare

USED = struct.Struct(">I")  # before a row: the epoch of its last use


class Token(NamedTuple):
    """One state of an interval: unique to a write. Without a nonce it proves nothing."""

    sequencer: int
    epoch: int
    nonce: bytes = b""


_NOTHING = Token(0, 0)


@dataclass
class Header:
    """The header of an interval's entries; ``token`` is their state."""

    token: Token = _NOTHING
    size: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    """By computation: the number of its cached rows."""
    full: bool = False
    """Whether there was an eviction: from then on uses of rows are recorded."""

    def to_bytes(self) -> bytes:
        return pack([list(self.token), self.size, self.rows, self.full])

    @staticmethod
    def from_bytes(data: bytes | None) -> Header:
        if data is None:
            return Header()
        token, *rest = unpack(data)
        return Header(Token(*token), *rest)


def make_room(shelf: Shard, place: bytes, header: Header, limit: int, guard: Callable[[Get], None]) -> None:
    """Evicts the far end of a timer index of more than half of the room, then rows.

    Those go that were used least recently.
    """
    rows: list[tuple[int, bytes, int]] = []
    index: list[tuple[int, bytes, int]] = []
    everything = []
    header.size = indexed = 0
    with shelf.snapshot() as kept:
        for key, value in kept.scan(place, after(place)):
            everything.append(key)
            size = len(key) - len(place) + len(value) + ENTRY
            header.size += size
            own = key[len(place) :]
            if own[:1] == ROW:
                rows.append((USED.unpack_from(value)[0], own, size))
            elif own[:1] == TIMER:
                index.append((-time_of(own[TIMER_TIME]), own, size))
                indexed += size
    room = _KEPT * limit
    gone = []
    bounds: dict[bytes, bytes] = {}
    for _, key, size in sorted(index):
        if header.size <= room or indexed <= room / 2:
            break
        gone.append(key)
        header.size -= size
        indexed -= size
        start = key[:INDEX_START]
        bounds[start] = min(key, bounds.get(start, key))
    for _, key, size in sorted(rows):
        if header.size <= room:
            break
        gone.append(key)
        header.size -= size
        header.rows[int.from_bytes(key[COMPUTATION], "big")] -= 1
    header.full = header.full or bool(gone)
    if header.size > limit:
        shelf.write([(place + HEADER, Header(full=True).to_bytes())], everything, guard)
        return
    # Of entries with equal times, some may remain beyond one that was evicted.
    gone += [key for _, key, _ in index if key > bounds.get(key[:INDEX_START], key)]
    puts = [(place + BOUND + start, bound) for start, bound in bounds.items()]
    shelf.write([*puts, (place + HEADER, header.to_bytes())], [place + key for key in gone], guard)
