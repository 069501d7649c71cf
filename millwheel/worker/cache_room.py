"""Eviction from a full cache: rows and the timer index, needed last first (8.3)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.model.codec import pack, unpack
from millwheel.model.time import MIN_TIME
from millwheel.store.base import Get, Shard
from millwheel.store.keyspace import ROW, TIMER, TIMER_TIME, after, time_of
from millwheel.store.row import decode_row

HEADER = b"\x00"  # after an interval's prefix: the header of its part of the cache
BOUND = b"\x01"  # and one of its ranges: how far the range is cached
COMPUTATION = slice(1, 3)  # of any key
INDEX_START = 5  # bytes of a range of the timer index: computation, tablet and kind
ENTRY = 64  # overhead of an entry, in bytes
_KEPT = 0.75  # fill level after an eviction: a scan of all rows is rare

USES = struct.Struct(">II")  # before a row: the epoch of its last use, and the distance to the one before


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
    wait: float = math.inf
    """Of the evicted rows, the epochs until the first is expected to be used."""
    pace: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By computation: its watermark, and its change in an epoch."""

    def to_bytes(self) -> bytes:
        return pack([list(self.token), self.size, self.rows, self.full, self.wait, self.pace])

    @staticmethod
    def from_bytes(data: bytes | None) -> Header:
        if data is None:
            return Header()
        token, *rest = unpack(data)
        return Header(Token(*token), *rest)


def make_room(shelf: Shard, place: bytes, header: Header, limit: int, guard: Callable[[Get], None]) -> None:
    """Evicts what is needed last: rows, and the timer index from its far end."""
    found: list[tuple[float, int, bytes, int]] = []
    everything = []
    header.size = 0
    with shelf.snapshot() as kept:
        for key, value in kept.scan(place, after(place)):
            everything.append(key)
            size = len(key) - len(place) + len(value) + ENTRY
            header.size += size
            own = key[len(place) :]
            if own[:1] == ROW:
                found.append((-row_wait(own, value, header), USES.unpack_from(value)[0], own, size))
            elif own[:1] == TIMER:
                found.append((-_wait(own, time_of(own[TIMER_TIME]), header), 0, own, size))
    found.sort(key=lambda one: one[:2])  # the longest expected wait first, then the least recently used
    gone = []
    bounds: dict[bytes, bytes] = {}
    for negative, _, key, size in found:
        if header.size <= _KEPT * limit:
            break
        gone.append(key)
        header.size -= size
        header.wait = -negative
        if key[:1] == ROW:
            header.rows[int.from_bytes(key[COMPUTATION], "big")] -= 1
        else:
            start = key[:INDEX_START]
            bounds[start] = min(key, bounds.get(start, key))
    header.full = header.full or bool(gone)
    if header.size > limit:
        shelf.write([(place + HEADER, Header(full=True).to_bytes())], everything, guard)
        return
    # Of entries with equal times, some may remain beyond one that was evicted.
    gone += [key for *_, key, _ in found if key[:1] == TIMER and key > bounds.get(key[:INDEX_START], key)]
    puts = [(place + BOUND + start, bound) for start, bound in bounds.items()]
    shelf.write([*puts, (place + HEADER, header.to_bytes())], [place + key for key in gone], guard)


def row_wait(key: bytes, entry: bytes, header: Header) -> float:
    """The epochs until a row is expected: by its timer, or its next record."""
    last, gap = USES.unpack_from(entry)
    wait = float(max(gap, (header.token.epoch & 0xFFFFFFFF) - last)) if gap else math.inf
    if entry[USES.size]:
        timers = decode_row(entry[USES.size :]).timers
        if timers:
            wait = min(wait, _wait(key, min(timers.values()), header))
    return wait


def _wait(key: bytes, time: int, header: Header) -> float:
    """The epochs until a computation's watermark reaches a time."""
    watermark, pace = header.pace.get(int.from_bytes(key[COMPUTATION], "big"), (MIN_TIME, 0.0))
    return max(time - watermark, 0) / max(pace, 1e-9)
