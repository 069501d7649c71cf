"""What stands where in a shard: the keys of rows, timers, IDs, checkpoints and intervals.

A computation is known by a number that its name was given when the store first saw it. A key's row is
found by the fingerprint and the text of the key; a text too long for a store's key is replaced by its
cryptographic digest, and stands in the row.

    R computation fingerprint key                 a key's row: state, timers, holds
    R computation tablet zeros fe start           a window's row: keys and their aggregates (store/windows.py)
    T computation tablet kind time fingerprint key  a key's earliest timer or hold, by time
    I computation digest                          a record ID that was seen
    G computation expiry epoch tablet             the IDs of one epoch, to be forgotten together
    B computation tablet                          records that a slow step left to the next epoch
    W computation tablet time epoch number        records that wait for the watermark (in_order=True)
    C computation tablet                          counters: rows, bytes, timers; the first of them
    M level tablet                                an interval: sequencer, epoch; with a cache, a nonce
    P level tablet                                an interval's checkpoint: productions and report
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import xxhash

from millwheel.errors import StoreError
from millwheel.model.codec import unpack
from millwheel.model.keys import fingerprint, key_bytes
from millwheel.model.names import SourceName

FORMAT: Final = 3
"""Of the journal and the shards. 3: injectors are named by tuples, names are in values and not in keys."""

KIND_WATERMARK: Final = 0
KIND_WALL: Final = 1
KIND_HOLD: Final = 2

DIGEST: Final = 16
"""The bytes of an ID's digest: two of a billion IDs meet with a chance of one in 10^20."""

_LONGEST_INLINE = 480  # LMDB takes keys of 511 bytes; the timer index puts 21 before the text
LONG: Final = b"\xff"  # never a byte of UTF-8, so that a digest is no key's text
_TIME_BIAS = 2**63

_digest = xxhash.xxh3_64_digest  # what `fingerprint` gives, without the call


def row_suffix(key: str) -> bytes:
    """What names a key within a computation: fingerprint and text."""
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


def tablets_of(keys: Sequence[str]) -> list[int]:
    """The tablets of many keys."""
    try:
        return [_digest(data)[0] >> 2 for data in map(str.encode, keys)]
    except UnicodeEncodeError:
        return [row_suffix(key)[0] >> 2 for key in keys]


def is_long(suffix: bytes) -> bool:
    """Whether the suffix holds a digest, and the row the text."""
    return suffix[8:9] == LONG


def tablet_of(suffix: bytes) -> int:
    """The tablet of a row suffix: the first six bits of the fingerprint."""
    return suffix[0] >> 2


def row_prefix(computation: int) -> bytes:
    """The beginning of a computation's rows."""
    return b"R" + computation.to_bytes(2, "big")


def timer_prefix(computation: int, tablet: int, kind: int) -> bytes:
    """The beginning of the timer index of one tablet and kind."""
    return b"T" + computation.to_bytes(2, "big") + bytes((tablet, kind))


def time_bytes(time: int) -> bytes:
    """A time as bytes that sort as the time does."""
    return (time + _TIME_BIAS).to_bytes(8, "big")


def time_of(data: bytes) -> int:
    """The inverse of `time_bytes`."""
    return int.from_bytes(data, "big") - _TIME_BIAS


TIMER_TIME: Final = slice(5, 13)
TIMER_SUFFIX: Final = 13


def timer_key(computation: int, suffix: bytes, kind: int, time: int) -> bytes:
    """The index entry of a key's earliest timer or hold."""
    return timer_prefix(computation, suffix[0] >> 2, kind) + time_bytes(time) + suffix


def id_prefix(computation: int) -> bytes:
    """The beginning of a computation's seen IDs."""
    return b"I" + computation.to_bytes(2, "big")


def id_log_prefix(computation: int) -> bytes:
    """The beginning of the log of seen IDs, ordered by when they may be forgotten."""
    return b"G" + computation.to_bytes(2, "big")


def counters_key(computation: int, tablet: int) -> bytes:
    """A tablet's counters."""
    return b"C" + computation.to_bytes(2, "big") + bytes((tablet,))


def backlog_key(computation: int, tablet: int) -> bytes:
    """A tablet's records that wait for the next epoch (Fig. 11)."""
    return b"B" + computation.to_bytes(2, "big") + bytes((tablet,))


def backlog_tablet(key: bytes) -> int:
    """The tablet of a `backlog_key`."""
    return key[3]


def waiting_prefix(computation: int, tablet: int) -> bytes:
    """The beginning of a tablet's records that wait for the watermark."""
    return b"W" + computation.to_bytes(2, "big") + bytes((tablet,))


def waiting_key(computation: int, tablet: int, time: int, arrival: bytes) -> bytes:
    """A piece of them: the time of its first record, and when and as what it arrived."""
    return waiting_prefix(computation, tablet) + time_bytes(time) + arrival


WAITING_TIME: Final = slice(4, 12)
WAITING_ARRIVAL: Final = slice(12, 24)


def interval_key(level: int, tablet: int) -> bytes:
    """The state of the interval that begins at ``tablet``."""
    return b"M" + bytes((level, tablet))


def checkpoint_key(level: int, tablet: int) -> bytes:
    """The checkpoint of the interval that begins at ``tablet``."""
    return b"P" + bytes((level, tablet))


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``.

    >>> after(b"R"), after(b"a\\xff")
    (b'S', b'b')
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def partition_key(source: SourceName, partition: str) -> bytes:
    """Where the journal has how far a partition has been read: names may be longer than a store's key."""
    return b"o" + _names_digest(source.stream, str(source.number), source.reader, partition)


AWAY: Final = b"away\x00"


def away_key(computation: str) -> bytes:
    """Where the journal has the watermarks that a computation which was removed left with."""
    return AWAY + _names_digest(computation)


def _names_digest(*names: str) -> bytes:
    parts = [key_bytes(name) for name in names]
    lengths = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hashlib.blake2b(lengths + b"".join(parts), digest_size=32).digest()


def check_format(data: bytes | None) -> None:
    """Refuses a store whose entry ``format`` is of another version; None: it has none yet."""
    form = FORMAT if data is None else unpack(data)
    if form != FORMAT:
        age = "an earlier" if isinstance(form, int) and form < FORMAT else "a later"
        raise StoreError(
            f"the store has format {form}, and this version of millwheel reads format {FORMAT}: "
            f"{age} version wrote it. Run it with that version, or begin with a new store"
        )
