"""Gaps: the blocks of a snapshot that a working copy has not fetched yet.

A copy with gaps has the log behind its snapshot, and of the snapshot only some blocks. Hidden entries name
the others. What the copy has for a key is newer than any block, and a delete leaves a mark where it hits a
gap: so a key that the copy has neither an entry nor a mark for has the value of its block.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Collection, Iterator, Sequence

from millwheel.store.base import Get, Range, Snapshot
from millwheel.store.keyspace import after
from millwheel.store.objects.blocks import AHEAD, Block, Entries, Parts

NUMBER = b"\x00log"
"""The entry with the number of the log up to which a copy is current; the beginning of all hidden ones."""
_BASE = NUMBER + b"b"  # the number of the snapshot whose blocks are missing
_GAP = NUMBER + b"g"  # then the index of a block; its place
_MARK = NUMBER + b"m"  # then the index of a block, and the digest of a key that was deleted
_DIGEST = 16  # bytes; cryptographic, as keys are chosen by users
_INDEX = slice(len(_GAP), len(_GAP) + 4)
_BEHIND_HIDDEN = after(NUMBER)


def number_of(get: Get) -> int | None:
    """The number up to which a copy is current; None: it has not been filled."""
    return _number(get(NUMBER))


def base_of(get: Get) -> int | None:
    """The number of the snapshot that a copy has gaps of."""
    return _number(get(_BASE))


def _number(found: bytes | None) -> int | None:
    return None if found is None else int.from_bytes(found, "big")


def number_entry(number: int) -> tuple[bytes, bytes]:
    """The entry for a copy that is current up to a number."""
    return NUMBER, number.to_bytes(8, "big")


def gap_key(index: int) -> bytes:
    """The entry of a copy for a gap."""
    return _GAP + index.to_bytes(4, "big")


def _mark(index: int, key: bytes) -> bytes:
    return _marks(index) + hashlib.blake2b(key, digest_size=_DIGEST).digest()


def _marks(index: int) -> bytes:
    return _MARK + index.to_bytes(4, "big")


def _marked(snapshot: Snapshot, index: int) -> list[bytes]:
    return [key for key, _ in snapshot.scan(_marks(index), after(_marks(index)))]


class Gaps:
    """The gaps of a copy at some moment; some may have been filled since."""

    def __init__(self, blocks: dict[int, Block]) -> None:
        self.blocks = blocks
        self._order = sorted(blocks, key=lambda index: blocks[index].first)
        self._firsts = [blocks[index].first for index in self._order]

    @staticmethod
    def read(snapshot: Snapshot) -> Gaps:
        """The gaps of a copy now."""
        found = snapshot.scan(_GAP, after(_GAP))
        return Gaps({int.from_bytes(key[_INDEX], "big"): Block.unpack(value) for key, value in found})

    def entries(self, base: int) -> list[tuple[bytes, bytes]]:
        """The hidden entries of a new copy, with the number of their snapshot."""
        named = [(gap_key(index), block.pack()) for index, block in self.blocks.items()]
        return [*named, (_BASE, base.to_bytes(8, "big"))]

    def at(self, key: bytes) -> int | None:
        """The block that a key would be in."""
        place = bisect.bisect_right(self._firsts, key) - 1
        if place < 0 or key > self.blocks[self._order[place]].last:
            return None
        return self._order[place]

    def between(self, start: bytes, stop: bytes) -> list[int]:
        """The blocks with keys from ``start`` to before ``stop``, in order."""
        first = max(bisect.bisect_right(self._firsts, start) - 1, 0)
        found = self._order[first : bisect.bisect_left(self._firsts, stop)]
        return found[1:] if found and self.blocks[found[0]].last < start else found

    def marks(self, snapshot: Snapshot | None, deletes: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The marks that deletes leave in the gaps of a snapshot; None: in all."""
        found = []
        for key in deletes:
            index = self.at(key)
            if index is not None and (snapshot is None or snapshot.get(gap_key(index)) is not None):
                found.append((_mark(index, key), b""))
        return found

    def __bool__(self) -> bool:
        return bool(self.blocks)


NO_GAPS = Gaps({})


def has_gaps(snapshot: Snapshot) -> bool:
    """Whether a copy has gaps."""
    return next(iter(snapshot.scan(_GAP, after(_GAP))), None) is not None


def filled(snapshot: Snapshot, index: int, entries: Entries) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The puts and deletes that close a gap; newer puts and deletes are kept."""
    marks = _marked(snapshot, index)
    known = snapshot.get_each(list(entries))
    left = {key: value for (key, value), own in zip(entries.items(), known, strict=True) if own is None}
    return list(_unmarked(index, left, marks).items()), [gap_key(index), *marks]


def _unmarked(index: int, entries: Entries, marks: Collection[bytes]) -> Entries:
    """The entries of a block without those that were deleted since."""
    if not marks:
        return entries
    gone = set(marks)
    return {key: value for key, value in entries.items() if _mark(index, key) not in gone}


class CopySnapshot:
    """A snapshot of a copy without its hidden entries; gaps are not filled."""

    __slots__ = ("_snapshot", "get", "get_each", "prefetch")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.get = snapshot.get
        self.get_each = snapshot.get_each
        self.prefetch = snapshot.prefetch

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""
        found = self._snapshot.scan(start, stop)
        if start >= _BEHIND_HIDDEN:
            return found
        return (entry for entry in found if not entry[0].startswith(NUMBER))


class View:
    """A snapshot of a copy with gaps, which are read from their parts."""

    def __init__(self, snapshot: Snapshot, gaps: Gaps, parts: Parts) -> None:
        self._snapshot = snapshot
        self._own = CopySnapshot(snapshot).scan
        self._gaps = gaps
        self._parts = parts
        self._open: dict[int, bool] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        found = self._snapshot.get(key)
        index = self._missing(key) if found is None else None
        return found if index is None else self._read([index])[0].get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        found = self._snapshot.get_each(keys)
        missing: dict[int, list[int]] = {}
        for place, value in enumerate(found):
            index = self._missing(keys[place]) if value is None else None
            if index is not None:
                missing.setdefault(index, []).append(place)
        for index, entries in self._in_turn(list(missing), AHEAD):
            for place in missing[index]:
                found[place] = entries.get(keys[place])
        return found

    def _missing(self, key: bytes) -> int | None:
        """The gap that has the value of a key without an entry, if any."""
        index = self._gaps.at(key)
        if index is None or not self._is_open(index) or self._snapshot.get(_mark(index, key)) is not None:
            return None
        return index

    def _is_open(self, index: int) -> bool:
        found = self._open.get(index)
        if found is None:
            found = self._open[index] = self._snapshot.get(gap_key(index)) is not None
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""
        gaps = [index for index in self._gaps.between(start, stop) if self._is_open(index)]
        return self._through(gaps, start, stop) if gaps else self._own(start, stop)

    def _through(self, gaps: Sequence[int], start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Blocks in order, merged with the copy's own entries in and between them."""
        blocks = self._in_turn(gaps, 1)
        for gap in gaps:
            block = self._gaps.blocks[gap]
            yield from self._own(start, min(block.first, stop))
            start = max(start, block.first)
            behind = min(block.last + b"\x00", stop)
            index, entries = next(blocks)
            inside = {key: value for key, value in entries.items() if start <= key < behind}
            found = _unmarked(index, inside, _marked(self._snapshot, index))
            yield from sorted({**found, **dict(self._own(start, behind))}.items())
            start = behind
        yield from self._own(start, stop)

    def _in_turn(self, gaps: Sequence[int], count: int) -> Iterator[tuple[int, Entries]]:
        """Reads blocks, more and more of them side by side: a scan may need but one."""
        place = 0
        while place < len(gaps):
            some = gaps[place : place + count]
            yield from zip(some, self._read(some), strict=True)
            place += count
            count = min(2 * count, AHEAD)

    def _read(self, gaps: Sequence[int]) -> list[Entries]:
        return self._parts.read([self._gaps.blocks[index] for index in gaps])

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Reads the first block of each range, side by side."""
        wanted: dict[int, None] = {}
        for start, stop, _ in ranges:
            if len(wanted) == AHEAD:
                break
            if stop == start + b"\x00" and self._snapshot.get(start) is not None:
                continue
            first = next(iter(filter(self._is_open, self._gaps.between(start, stop))), None)
            if first is not None:
                wanted[first] = None
        self._read(list(wanted))
