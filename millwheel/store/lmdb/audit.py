"""Audits a whole LMDB file, page by page, without LMDB.

Every reachable page is at its own position, and full to the byte; keys are in order, also
those that lead from page to page; each entry has its checksum; their number is that of the meta page; and
no page that is in use is listed as free. A file that passes has exactly what was written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from millwheel.store.lmdb.checksum import is_whole
from millwheel.store.lmdb.known_pages import KnownPages
from millwheel.store.lmdb.pages import HEADER, NO_ROOT, Damaged, Meta, Tree

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4  # flags of pages
_BIG = 1  # the flag of an entry whose value is in pages of its own
_INTEGER_KEYS = 8  # the flag of a map: that of the free pages, by transaction
_NODE = struct.Struct("<HHHH")  # of an entry: size (two halves), flags, bytes of the key
_NUMBER = struct.Struct("<Q")
_OFFSET = struct.Struct("<H")
_PAGES = struct.Struct("<I")

Entry = Callable[[bytes, bytes], None]


def audit(path: Path, file: int, meta: Meta, known: KnownPages | None = None) -> None:
    """Raises `Damaged` if the state of a meta page is not what was written.

    All pages are read. Entries of a leaf whose bytes are in ``known`` were audited before.
    """
    found = _Audit(path, file, meta, known)
    found.tree(meta.free, _INTEGER_KEYS, found.free_pages)
    found.tree(meta.main, 0, found.entry)
    if any(used and free for used, free in zip(found.used, found.free, strict=True)):
        raise Damaged(path, "a page that is in use is listed as free")


class _Audit:
    """One state of one file."""

    def __init__(self, path: Path, file: int, meta: Meta, known: KnownPages | None) -> None:
        self._known = known
        self._path = path
        self._file = file
        self._size = meta.page_size
        self._last = meta.last_page
        self._transaction = meta.transaction
        pages = os.fstat(file).st_size // self._size + 1  # the largest possible number
        self.used = bytearray(min(self._last + 1, pages))
        self.free = bytearray(len(self.used))

    def tree(self, tree: Tree, flags: int, entry: Entry) -> None:
        """Walks one of the two maps."""
        if tree.flags != flags:
            raise self._damaged(f"a map has the flags {tree.flags:#x}")
        if tree.root == NO_ROOT:
            count = 0
        else:
            _, _, count = self._walk(tree.root, tree.depth, bool(flags), entry)
        if count != tree.entries:
            raise self._damaged(f"there are {count:,} entries, and {tree.entries:,} were written")

    def _walk(self, number: int, depth: int, integers: bool, entry: Entry) -> tuple[bytes, bytes, int]:
        """The first key, the last one, and the number of entries below a page."""
        kind = _BRANCH if depth > 1 else _LEAF
        self._use(number, 1)
        page = os.pread(self._file, self._size, number * self._size)
        known = self._known if kind == _LEAF and not integers else None
        if known is not None and known.has(number, page):
            return self._ends(number, page)
        offsets = self._offsets(number, page, kind)
        if kind == _LEAF:
            first, last, entries, alone = self._leaf(number, page, offsets, integers, entry)
            if known is not None and alone:
                known.add(number, page)
            return first, last, entries
        nodes = [self._child(number, page, offset) for offset in offsets]
        self._tiled(
            number, page, [(offset, 8 + len(key)) for offset, (key, _) in zip(offsets, nodes, strict=True)]
        )
        first = last = b""
        entries = 0
        for position, (key, child) in enumerate(nodes):
            low, high, count = self._walk(child, depth - 1, integers, entry)
            if not position:
                first = low
            elif not _less(last, key, integers) or _less(low, key, integers):
                raise self._damaged(f"page {number} leads to page {child} with a wrong key")
            last = high
            entries += count
        return first, last, entries

    def _ends(self, number: int, page: bytes) -> tuple[bytes, bytes, int]:
        """As `_walk`, of a leaf that was audited: its first and its last entry are read."""
        count = (HEADER.unpack_from(page)[3] - HEADER.size) // 2
        first, last = (
            _OFFSET.unpack_from(page, HEADER.size + 2 * position)[0] for position in (0, count - 1)
        )
        return self._child(number, page, first)[0], self._child(number, page, last)[0], count

    def _offsets(self, number: int, page: bytes, kind: int) -> tuple[int, ...]:
        """Where the entries of a page are."""
        if len(page) < self._size:
            raise self._damaged(f"page {number} is missing: the file was cut off")
        own, _, flags, lower, upper = HEADER.unpack_from(page)
        if own != number or flags != kind or lower % 2 or not HEADER.size < lower <= upper <= self._size:
            raise self._damaged(f"page {number} has a wrong header")
        return struct.unpack_from(f"<{(lower - HEADER.size) // 2}H", page, HEADER.size)

    def _use(self, first: int, count: int) -> None:
        if first < 2 or first + count > len(self.used):
            raise self._damaged(
                f"page {first} is not in the file: it was cut off, or a page refers to a wrong one"
            )
        if any(self.used[first : first + count]):
            raise self._damaged(f"page {first} is used twice")
        self.used[first : first + count] = b"\x01" * count

    def _child(self, number: int, page: bytes, offset: int) -> tuple[bytes, int]:
        low, high, top, length = self._node(number, page, offset)
        return page[offset + 8 : offset + 8 + length], low | high << 16 | top << 32

    def _node(self, number: int, page: bytes, offset: int) -> tuple[int, int, int, int]:
        if offset + 8 > self._size:
            raise self._damaged(f"page {number} has an entry outside of it")
        return _NODE.unpack_from(page, offset)

    def _leaf(
        self, number: int, page: bytes, offsets: tuple[int, ...], integers: bool, entry: Entry
    ) -> tuple[bytes, bytes, int, bool]:
        """As `_walk`, and whether all values are in the page itself."""
        first = last = None
        alone = True
        places = []
        unpack, limit = _NODE.unpack_from, self._size - 8
        for offset in offsets:
            if offset > limit:
                raise self._damaged(f"page {number} has an entry outside of it")
            low, high, flags, length = unpack(page, offset)
            size = low | high << 16
            start = offset + 8 + length
            key = page[offset + 8 : start]
            if flags == _BIG:
                value = self._overflow(number, page, start, size)
                size = 8
                alone = False
            elif flags or start + size > self._size:
                raise self._damaged(f"page {number} has an entry with a wrong header")
            else:
                value = page[start : start + size]
            places.append((offset, 8 + length + size))
            if last is None:
                first = key
            elif not (_less(last, key, integers) if integers else last < key):
                raise self._damaged(f"page {number} has its entries in a wrong order")
            last = key
            entry(key, value)
        self._tiled(number, page, places)
        assert first is not None
        assert last is not None
        return first, last, len(offsets), alone

    def _overflow(self, number: int, page: bytes, start: int, size: int) -> bytes:
        if start + 8 > self._size:
            raise self._damaged(f"page {number} has an entry outside of it")
        (first,) = _NUMBER.unpack_from(page, start)
        head = os.pread(self._file, HEADER.size, first * self._size) if first < len(self.used) else b""
        if len(head) < HEADER.size:
            raise self._damaged(
                f"page {first} is missing: the file was cut off, or a page refers to a wrong one"
            )
        own, _, flags, _, _ = HEADER.unpack(head)
        (pages,) = _PAGES.unpack_from(head, 12)
        if own != first or flags != _OVERFLOW or pages * self._size < HEADER.size + size:
            raise self._damaged(f"page {first} has a wrong header")
        self._use(first, pages)
        value = os.pread(self._file, size, first * self._size + HEADER.size)
        if len(value) < size:
            raise self._damaged(f"page {first} is missing: the file was cut off")
        return value

    def _tiled(self, number: int, page: bytes, places: list[tuple[int, int]]) -> None:
        """Checks that entries fill the end of a page without gaps, at even offsets."""
        place = HEADER.unpack_from(page)[4]
        for offset, size in sorted(places):
            if offset != place:
                raise self._damaged(f"page {number} has entries at wrong places")
            place = offset + size + size % 2
        if place != self._size:
            raise self._damaged(f"page {number} has entries at wrong places")

    def entry(self, key: bytes, value: bytes) -> None:
        """Checks an entry of the engine."""
        if not is_whole(key, value):
            raise self._damaged(f"the entry {key[:40].hex()} has a wrong checksum")

    def free_pages(self, key: bytes, value: bytes) -> None:
        """Checks the pages that a transaction has freed."""
        if len(key) != 8 or _NUMBER.unpack(key)[0] > self._transaction or len(value) < 8:
            raise self._damaged("the list of free pages is wrong")
        (count,) = _NUMBER.unpack_from(value)
        if 8 * (count + 1) > len(value):
            raise self._damaged("the list of free pages is wrong")
        previous = self._last + 1
        for number in struct.unpack_from(f"<{count}Q", value, 8):
            if not 2 <= number < previous:
                raise self._damaged("the list of free pages is wrong")
            previous = number
            if number >= len(self.free):
                continue  # never written: freed before its transaction ended
            if self.free[number]:
                raise self._damaged(f"page {number} is listed as free twice")
            self.free[number] = 1

    def _damaged(self, what: str) -> Damaged:
        return Damaged(self._path, what)


def _less(key: bytes, other: bytes, integers: bool) -> bool:
    if not integers:
        return key < other
    return len(key) == len(other) == 8 and _NUMBER.unpack(key) < _NUMBER.unpack(other)
