"""The timer index in few rows: marks of one time and tablet, packed together.

A mark is an entry of the timer index: a key that begins with `T`, longer than the 13 bytes of computation,
tablet, kind and time, with no value. Those 13 bytes are its group, and the rest its suffix. Marks of one
group that are written together are one row, a bundle: `U`, the group without its letter, and a unique id;
its value is the number of suffixes, then each of them after its length. A bundle may be reduced
later, and a mark may be in several bundles and have a row of its own as well: it is still one entry.

A row of the index with a value is removed from the bundles when it is written. So if a key has a row and
is in a bundle, the bundle is newer, and there is no value.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from millwheel.errors import StoreError
from millwheel.store.base import Range
from millwheel.store.keyspace import BUNDLE, TIMER, TIMER_SUFFIX, after

Entries = list[tuple[bytes, bytes]]

_AFTER_BUNDLES: Final = after(BUNDLE)
BUNDLE_KEY: Final = TIMER_SUFFIX + 8
"""The bytes of a bundle's key."""
_LONGEST = 511  # bytes of a mark's key, as in LMDB; a longer one has a row of its own
_COUNT = 2  # bytes of the number of suffixes, and of the length of each
_LENGTHS = [length.to_bytes(_COUNT, "big") for length in range(_LONGEST + 1)]
_SIZE = 1900  # bytes of a bundle: PostgreSQL moves larger values to another table
_MOST = 1024  # marks of a group that are bundled: to remove one of them, all are read
_BUNDLES = 16  # of a group, if they are small
_LEAST = 8  # marks in a new bundle: fewer are cheaper as rows
GROUPS = 10_000  # groups whose number of bundled marks a process remembers
_FEW = 4  # removed marks of a group that are looked up one by one


def is_mark(key: bytes) -> bool:
    """Whether a key is a mark's, if it has no value.

    >>> is_mark(b"T" + bytes(12) + b"suffix"), is_mark(b"T" + bytes(12)), is_mark(b"R" + bytes(40))
    (True, False, False)
    """
    return TIMER_SUFFIX < len(key) <= _LONGEST and key[:1] == TIMER


def is_bundle(key: bytes) -> bool:
    """Whether a row is a bundle."""
    return len(key) == BUNDLE_KEY and key[:1] == BUNDLE


def refuse_bundles(keys: Sequence[bytes]) -> None:
    """Raises if one of some sorted keys is a bundle's."""
    for key in keys[bisect_left(keys, BUNDLE) : bisect_left(keys, _AFTER_BUNDLES)]:
        if is_bundle(key):
            raise StoreError(f"{key!r} is not an entry's key: it is reserved for packed timers")


def touches(start: bytes, stop: bytes) -> bool:
    """Whether a range may have marks."""
    return start < BUNDLE and stop > TIMER and start < stop


def hides(start: bytes, stop: bytes) -> bool:
    """Whether a range of rows may have bundles."""
    return start < _AFTER_BUNDLES and stop > BUNDLE


def bundle_range(start: bytes, stop: bytes) -> tuple[bytes, bytes]:
    """The key range of the bundles for a range of entries.

    >>> bundle_range(b"R", b"Tab"), bundle_range(b"T" + b"a" * 20, b"Z")
    ((b'U', b'Uab'), (b'Uaaaaaaaaaaaa', b'V'))
    """
    first = BUNDLE + start[1:TIMER_SUFFIX] if start > TIMER else BUNDLE
    if stop >= BUNDLE:
        return first, _AFTER_BUNDLES
    last = BUNDLE + stop[1:TIMER_SUFFIX]
    return first, after(last) if len(stop) > TIMER_SUFFIX else last


def grouped(keys: Iterable[bytes]) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """The suffixes of marks by group, and the other keys; fastest if sorted."""
    groups: dict[bytes, list[bytes]] = {}
    others = []
    last = b""
    for key in keys:
        if not TIMER_SUFFIX < len(key) <= _LONGEST:
            others.append(key)
            continue
        group = key[:TIMER_SUFFIX]
        if group != last:
            suffixes = groups.setdefault(group, [])
            last = group
        suffixes.append(key[TIMER_SUFFIX:])
    return groups, others


def index_part(keys: Sequence[bytes]) -> slice:
    """The slice of sorted keys that are in the timer index."""
    return slice(bisect_left(keys, TIMER), bisect_left(keys, BUNDLE))


def packed(suffixes: Sequence[bytes]) -> bytes:
    """A bundle's value.

    >>> packed([b"one", b"two"])
    b'\\x00\\x02\\x00\\x03one\\x00\\x03two'
    """
    parts = [len(suffixes).to_bytes(_COUNT, "big")]
    for suffix in suffixes:
        parts += (_LENGTHS[len(suffix)], suffix)
    return b"".join(parts)


def count(value: bytes) -> int:
    """The number of marks in a bundle."""
    return int.from_bytes(value[:_COUNT], "big")


def unpacked(value: bytes, before: bytes = b"") -> list[bytes]:
    """The suffixes of a bundle; after the group ``before``, the keys of its marks.

    >>> unpacked(packed([b"one", b"two"]), b"T...")
    [b'T...one', b'T...two']
    """
    found = []
    at, end = _COUNT, len(value)
    while at < end:
        start = at + _COUNT
        at = start + (value[at] << 8 | value[at + 1])
        found.append(before + value[start:at])
    return found


def marks_of(key: bytes, value: bytes) -> list[bytes]:
    """The keys of the marks in a bundle."""
    return unpacked(value, TIMER + key[1:TIMER_SUFFIX])


class Bundler:
    """Packs the new marks of one shard.

    A group has at most ``most`` bundled marks, or some bundles of fewer, as far as this process has
    counted: the others have rows of their own. So do fewer than ``least`` marks of one write.
    """

    def __init__(self, size: int = _SIZE, most: int = _MOST, least: int = _LEAST) -> None:
        self._size = size
        self._most = most
        self._least = least
        self.bundled: dict[bytes, int] = {}

    def pack(self, keys: Iterable[bytes]) -> Entries:
        """The rows for index entries without values, whose keys are sorted."""
        groups, others = grouped(keys)
        rows: Entries = [(key, b"") for key in others]
        for group, suffixes in groups.items():
            if len(suffixes) >= self._least:
                room = self._room(group, len(suffixes))
                if room:
                    rows += self._bundles(group, suffixes[:room])
                    del suffixes[:room]
            rows += [(group + suffix, b"") for suffix in suffixes]
        return rows

    def _room(self, group: bytes, wanted: int) -> int:
        """The number of marks of a group that may be bundled."""
        known = self.bundled.get(group, 0)
        room = min(self._most - known, wanted)
        if room < self._least:
            return 0
        if len(self.bundled) >= GROUPS:
            self.bundled.clear()
        self.bundled[group] = known + max(room, self._most // _BUNDLES)
        return room

    def _bundles(self, group: bytes, suffixes: list[bytes]) -> Entries:
        bundles = []
        first, size = 0, _COUNT
        for number, suffix in enumerate(suffixes):
            size += _COUNT + len(suffix)
            if size > self._size and number > first:
                bundles.append(suffixes[first:number])
                first, size = number, 2 * _COUNT + len(suffix)
        bundles.append(suffixes[first:])
        return [
            (BUNDLE + group[1:] + os.urandom(BUNDLE_KEY - TIMER_SUFFIX), packed(part)) for part in bundles
        ]


class Removal:
    """The index entries that a write removes: what to read, then what to change."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        groups, self._others = grouped(keys)
        self._groups = {
            group: frozenset([_LENGTHS[len(suffix)] + suffix for suffix in suffixes])
            for group, suffixes in groups.items()
        }

    def bundles(self) -> list[bytes]:
        """The prefixes of the bundles to read."""
        return [BUNDLE + group[1:] for group in self._groups]

    def rows(self) -> list[Range]:
        """The ranges of rows to read; of a group with many, rows are deleted unread."""
        return [
            (group, after(group), _looked_for(gone))
            for group, gone in self._groups.items()
            if len(gone) >= _FEW
        ]

    def changes(
        self, bundles: Iterable[tuple[bytes, bytes]], rows: Iterable[tuple[bytes, bytes]]
    ) -> tuple[list[bytes], Entries]:
        """The rows to delete and the bundles to put, after the reads."""
        deletes = list(self._others)
        puts: Entries = []
        for key, value in bundles:
            if not is_bundle(key):
                continue
            left = _without(value, self._groups[TIMER + key[1:TIMER_SUFFIX]])
            if left == b"":
                deletes.append(key)
            elif left is not None:
                puts.append((key, left))
        beside: dict[bytes, list[bytes]] = {}
        for key, _ in rows:
            beside.setdefault(key[:TIMER_SUFFIX], []).append(key)
        for group, gone in self._groups.items():
            if len(gone) >= _FEW and len(beside.get(group, ())) < _looked_for(gone):
                there = beside.get(group, ())
                deletes += {group + part[_COUNT:] for part in gone}.intersection(there)
            else:
                deletes += [group + part[_COUNT:] for part in gone]
        deletes.sort()
        return deletes, puts


def _looked_for(gone: frozenset[bytes]) -> int:
    """The number of rows of a group to read: beyond, that is not worth its cost."""
    return len(gone) // _FEW + 1


def _without(value: bytes, gone: frozenset[bytes]) -> bytes | None:
    """The rest of a bundle, possibly empty; None if nothing is removed."""
    if len(gone) < _FEW and not any(part in value for part in gone):
        return None
    parts = []
    at, end = _COUNT, len(value)
    while at < end:
        start = at
        at += _COUNT + (value[at] << 8 | value[at + 1])
        parts.append(value[start:at])
    left = [part for part in parts if part not in gone]
    if len(left) == len(parts):
        return None
    return len(left).to_bytes(_COUNT, "big") + b"".join(left) if left else b""


class Merge:
    """Merges pages of index rows and pages of bundles into the entries of a range.

    An entry is returned once all rows and bundles that could come before it are here.
    """

    def __init__(self, start: bytes, stop: bytes) -> None:
        self._start = start
        self._stop = stop
        self._rows: Entries = []
        self._marks: list[bytes] = []
        self._rows_known = self._marks_known = start
        self._next_row = start
        self._next_bundle, self._stop_bundle = bundle_range(start, stop)

    def wanted(self, most: int) -> tuple[list[Range], list[Range]]:
        """The next page of rows and of bundles: one, both, or at the end none."""
        rows: list[Range] = []
        bundles: list[Range] = []
        bound = min(self._rows_known, self._marks_known)
        if bound < self._stop and self._rows_known == bound:
            rows.append((self._next_row, self._stop, most))
        if bound < self._stop and self._marks_known == bound:
            bundles.append((self._next_bundle, self._stop_bundle, most))
        return rows, bundles

    def add_rows(self, page: Entries, *, complete: bool) -> None:
        """Adds a page of rows."""
        if page:
            self._next_row = page[-1][0] + b"\x00"
        self._rows_known = self._stop if complete else self._next_row
        self._rows += visible(page) if hides(self._start, self._stop) else page

    def add_bundles(self, page: Entries, most: int) -> None:
        """Adds a page of bundles: ``most`` rows, or fewer with all of the last group."""
        whole = len(page) < most
        if whole and sum(count(value) for _, value in page) < most:
            self._marks_known = self._stop
        elif page:
            last = page[-1][0]
            group = TIMER + last[1:TIMER_SUFFIX]
            self._next_bundle = after(BUNDLE + group[1:]) if whole else last + b"\x00"
            self._marks_known = max(self._marks_known, min(after(group) if whole else group, self._stop))
        for key, value in page:
            self._marks += marks_of(key, value)

    def take(self) -> Entries:
        """The entries that are complete."""
        bound = min(self._rows_known, self._marks_known)
        cut = bisect_left(self._rows, (bound,))
        rows = self._rows[:cut]
        del self._rows[:cut]
        if not self._marks:
            return rows
        self._marks.sort()
        first, cut = bisect_left(self._marks, self._start), bisect_left(self._marks, bound)
        found = dict(rows)
        found.update(dict.fromkeys(self._marks[first:cut], b""))
        del self._marks[:cut]
        return [(key, found[key]) for key in sorted(found)]


def visible(page: Entries) -> Entries:
    """A page without the bundles in it."""
    return [entry for entry in page if not is_bundle(entry[0])]
