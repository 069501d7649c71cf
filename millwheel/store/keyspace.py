"""The keys of a shard: rows, timers, IDs, checkpoints and intervals.

A computation is identified by a number that its name got when the store first saw it. A key's row is
found by the fingerprint and the text of the key; a text too long for a store's key is replaced by its
cryptographic digest, and stored in the row.

The tablet of a key is the first bits of its fingerprint: as many as the store's number of tablets has. In
other keys than that of a row a tablet is one byte, the last one of its number. That is enough as the tablets
of a shard are an aligned run of 256 at most.

    R computation fingerprint key                 a key's row: state, timers, holds
    R computation tablet zeros fe start           a window's row: keys and aggregates (store/window_row.py)
    T computation tablet kind time fingerprint key  a key's earliest timer or hold, by time
    I computation digest                          a record ID that was seen
    G computation expiry epoch tablet             the IDs of one epoch, which expire together
    B computation tablet                          the backlog of a slow step, for the next epoch
    W computation tablet time epoch number        buffered records (in_order=True)
    C computation tablet                          counters: rows, bytes, timers; the first of them
    M level tablet                                an interval: sequencer, epoch; with a cache, a nonce
    P level tablet                                an interval's checkpoint: productions and report

The journal is a shard of its own, with the entries of `JournalKey`. No other module has a key or its letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import xxhash

from millwheel.model.keys import PARTS, fingerprint, key_bytes
from millwheel.model.names import SourceName

ROW: Final = b"R"
TIMER: Final = b"T"
SEEN_ID: Final = b"I"
ID_LOG: Final = b"G"
BACKLOG: Final = b"B"
WAITING: Final = b"W"
COUNTERS: Final = b"C"
INTERVAL: Final = b"M"
CHECKPOINT: Final = b"P"

OF_COMPUTATIONS: Final = (ROW, TIMER, SEEN_ID, ID_LOG, BACKLOG, WAITING, COUNTERS)
"""Those with a computation's number behind the letter."""
A_SHARD: Final = 256
"""The most tablets of a shard: they have one byte in a key."""
TABLET_AT: Final = {ROW: 3, TIMER: 3, BACKLOG: 3, WAITING: 3, COUNTERS: 3, INTERVAL: 2, CHECKPOINT: 2}
"""The offset of the tablet in a key; in a row, of the fingerprint."""

LOGGED_TABLET: Final = 19
"""The offset of the tablet in a key of the log of IDs, before a number of two bytes."""

RUN: Final = b"L"
"""In a table of PostgreSQL alone: rows not yet merged, packed."""
BUNDLE: Final = b"U"
"""In a table of PostgreSQL alone: entries of the timer index, packed."""

KIND_WATERMARK: Final = 0
KIND_WALL: Final = 1
KIND_HOLD: Final = 2

DIGEST: Final = 16
"""The bytes of an ID's digest: a billion IDs collide with a chance of 1e-20."""

_LONGEST_INLINE = 480  # LMDB takes keys of 511 bytes; the timer index puts 21 before the text
LONG: Final = b"\xff"  # never a byte of UTF-8, so that no key's text equals a digest
_TIME_BIAS = 2**63

_digest = xxhash.xxh3_64_digest  # the same as `fingerprint`, without the call
_number = xxhash.xxh3_64_intdigest


class JournalKey:
    """The entries of the journal; `millwheel.master.journal` states their writers."""

    FORMAT: Final = b"format"
    """The layout of the store, a number."""
    PIPELINE: Final = b"pipeline"
    """The name of the pipeline that the store belongs to."""
    ID: Final = b"id"
    """A name that no other store has."""
    DRIVER: Final = b"driver"
    """The generation of drivers, and the current driver."""
    NUMBERS: Final = b"numbers"
    """The number of each computation."""
    VERSIONS: Final = b"versions"
    REPLAYS: Final = b"replays"
    FORGOTTEN: Final = b"forgotten"
    """The numbers that are free again, and those that are being removed."""
    SHAPE: Final = b"shape"
    """The readers and writers of each stream, for those who inspect the store."""
    DESIGN: Final = b"design"
    """The pipeline as a value, to compare changes with."""
    TOPOLOGY: Final = b"topology"
    """The levels and edges of the graph that the plan was made for."""
    LAYOUT: Final = b"layout"
    """The intervals of each level for the next epoch, and their last changes."""
    PLAN: Final = b"plan"
    """The epoch that was started last."""
    COMMIT: Final = b"commit"
    """The epoch that was committed last, the watermarks, the totals."""
    PARTITIONS: Final = b"o"
    """The prefix of an entry for each partition: offset, watermark, newest timestamp."""
    SIDE_TABLES: Final = b"L"
    """The prefix of versions of side tables: see `millwheel.worker.side_tables`."""
    AWAY: Final = b"away\x00"
    """The beginning of the watermarks of computations that were removed."""
    REQUEST: Final = b"request\x00"
    """The beginning of messages to the driver; ANSWER: of its answers."""
    ANSWER: Final = b"answer\x00"
    STANDBY: Final = b"standby"
    """Messages between a standby and a leader: see `millwheel.master.standby`."""
    BEAT: Final = b"beat"
    CLAIM: Final = b"claim"
    ENDED: Final = b"ended"
    SLOW: Final = b"slow"
    """What a slow epoch is doing."""
    WATCH: Final = b"watch"
    """The observer's notes for the page; HISTORY: the beginning of its last epochs."""
    HISTORY: Final = b"h"
    COPYING: Final = b"copying"
    """A copy of another store that is not whole."""


def row_suffix(key: str) -> bytes:
    """The name of a key within a computation: fingerprint and text."""
    data = key_bytes(key)
    if len(data) <= _LONGEST_INLINE:
        return fingerprint(data) + data
    return fingerprint(data) + LONG + hashlib.blake2b(data, digest_size=32).digest()


def row_suffixes(keys: Sequence[str]) -> list[bytes]:
    """The suffixes of many keys."""
    try:
        suffixes = [_digest(data) + data for data in map(str.encode, keys)]
    except UnicodeEncodeError:
        return [row_suffix(key) for key in keys]
    if suffixes and max(map(len, suffixes)) > _LONGEST_INLINE + 8:
        return [row_suffix(key) for key in keys]
    return suffixes


def tablets_of(keys: Sequence[str], tablets: int) -> list[int]:
    """The tablet of each key, of ``tablets`` in total."""
    behind = 65 - tablets.bit_length()
    try:
        return [_number(data) >> behind for data in map(str.encode, keys)]
    except UnicodeEncodeError:
        return [tablet_of(row_suffix(key), tablets) for key in keys]


def is_long(suffix: bytes) -> bool:
    """Whether the suffix has a digest, and the row the text."""
    return suffix[8:9] == LONG


def tablet_of(suffix: bytes, tablets: int) -> int:
    """The tablet of a row suffix, of ``tablets`` in total."""
    return (suffix[0] << 8 | suffix[1]) >> 17 - tablets.bit_length()


def part_of(suffix: bytes) -> int:
    """The part of the key space with a row suffix: the first six bits."""
    return suffix[0] >> 2


def part_with(tablet: int, tablets: int) -> int:
    """The part of the key space that a tablet is in."""
    return tablet * PARTS // tablets


def tablet_start(tablet: int, tablets: int) -> bytes:
    """The first bytes of a tablet's fingerprints.

    >>> tablet_of(tablet_start(1_000, 4_096), 4_096)
    1000
    """
    return (tablet << 17 - tablets.bit_length()).to_bytes(2, "big")


def rows_range(computation: int, tablet: int, tablets: int) -> tuple[bytes, bytes]:
    """The key range of a tablet's rows."""
    prefix = row_prefix(computation)
    last = tablet + 1 == tablets
    stop = after(prefix) if last else prefix + tablet_start(tablet + 1, tablets)
    return prefix + tablet_start(tablet, tablets), stop


def tablet_byte(tablet: int) -> bytes:
    """A tablet in a key: the last byte of its number."""
    return bytes((tablet & 255,))


def tablet_near(byte: int, near: int) -> int:
    """The tablet with a byte in a key, in the shard of another tablet.

    >>> tablet_near(tablet_byte(1_000)[0], near=1_020)
    1000
    """
    return near & ~255 | byte


def tablet_bytes(tablets: range) -> range:
    """The bytes in keys of tablets of one shard."""
    return range(tablets.start & 255, (tablets.stop - 1 & 255) + 1)


def row_prefix(computation: int) -> bytes:
    """The prefix of a computation's rows."""
    return ROW + computation.to_bytes(2, "big")


def timer_prefix(computation: int, tablet: int, kind: int) -> bytes:
    """The prefix of the timer index of one tablet and kind."""
    return TIMER + computation.to_bytes(2, "big") + bytes((tablet & 255, kind))


def time_bytes(time: int) -> bytes:
    """A time as bytes that sort in the same order."""
    return (time + _TIME_BIAS).to_bytes(8, "big")


def time_of(data: bytes) -> int:
    """The inverse of `time_bytes`."""
    return int.from_bytes(data, "big") - _TIME_BIAS


TIMER_TIME: Final = slice(5, 13)
TIMER_SUFFIX: Final = 13


def timer_key(computation: int, suffix: bytes, kind: int, time: int, tablets: int) -> bytes:
    """The index entry of a key's earliest timer or hold."""
    return timer_prefix(computation, tablet_of(suffix, tablets), kind) + time_bytes(time) + suffix


def id_prefix(computation: int) -> bytes:
    """The prefix of a computation's seen IDs."""
    return SEEN_ID + computation.to_bytes(2, "big")


def id_log_prefix(computation: int) -> bytes:
    """The prefix of the log of seen IDs, ordered by expiry."""
    return ID_LOG + computation.to_bytes(2, "big")


def counters_key(computation: int, tablet: int) -> bytes:
    """A tablet's counters."""
    return COUNTERS + computation.to_bytes(2, "big") + tablet_byte(tablet)


def backlog_key(computation: int, tablet: int) -> bytes:
    """A tablet's backlog for the next epoch (Fig. 11)."""
    return BACKLOG + computation.to_bytes(2, "big") + tablet_byte(tablet)


def waiting_prefix(computation: int, tablet: int) -> bytes:
    """The prefix of a tablet's buffered records."""
    return WAITING + computation.to_bytes(2, "big") + tablet_byte(tablet)


def waiting_key(computation: int, tablet: int, time: int, arrival: bytes) -> bytes:
    """A piece of them: the time of its first record, and its arrival."""
    return waiting_prefix(computation, tablet) + time_bytes(time) + arrival


WAITING_TIME: Final = slice(4, 12)
WAITING_ARRIVAL: Final = slice(12, 24)


def interval_key(level: int, tablet: int) -> bytes:
    """The state of the interval that begins at ``tablet``."""
    return INTERVAL + bytes((level, tablet & 255))


def checkpoint_key(level: int, tablet: int) -> bytes:
    """The checkpoint of the interval that begins at ``tablet``."""
    return CHECKPOINT + bytes((level, tablet & 255))


def after(prefix: bytes) -> bytes:
    """The first key after all that begin with ``prefix``.

    >>> after(b"R"), after(b"a\\xff")
    (b'S', b'b')
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def partition_key(source: SourceName, partition: str) -> bytes:
    """The journal's key for a partition's progress; a digest, as names may be long."""
    return JournalKey.PARTITIONS + _names_digest(source.stream, str(source.number), source.reader, partition)


def away_key(computation: str) -> bytes:
    """The journal's key for the watermarks of a removed computation."""
    return JournalKey.AWAY + _names_digest(computation)


def _names_digest(*names: str) -> bytes:
    parts = [key_bytes(name) for name in names]
    lengths = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hashlib.blake2b(lengths + b"".join(parts), digest_size=32).digest()
