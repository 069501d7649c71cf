"""The timer index in few rows: marks of one time and tablet, packed together.

A mark is an entry of the timer index: a key that begins with `T`, longer than the 13 bytes of computation,
tablet, kind and time, with no value. Those 13 bytes are its group, and the rest its suffix. Marks of one
group that are written together are one row, a bundle: `U`, the group without its letter, and an id of its
own; its value is how many suffixes there are, then each of them behind its length. A bundle may be cut
later, and a mark may be in several bundles and have a row of its own as well: it is still one entry.

A row of the index with a value is taken out of the bundles when it is written. So where a key has a row and
is in a bundle, the bundle is the later of the two, and there is no value.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from millwheel.errors import StoreError
from millwheel.store.base import Range
from millwheel.store.keyspace import TIMER_SUFFIX, after

Entries = list[tuple[bytes, bytes]]

BUNDLE_KEY: Final = TIMER_SUFFIX + 8
"""The bytes of a bundle's key."""
_LONGEST = 511  # of a mark's key: what LMDB takes; a longer one has a row of its own
_COUNT = 2  # the bytes before the first suffix, and before each: its length
_LENGTHS = [length.to_bytes(_COUNT, "big") for length in range(_LONGEST + 1)]
_SIZE = 1900  # bytes of a bundle: PostgreSQL puts what is larger into another table
_MOST = 1024  # marks of a group that are bundled: to remove one of them, all are read
_BUNDLES = 16  # of a group, if they are small
_LEAST = 8  # marks in a new bundle: fewer are hardly worth it, and are removed sooner as rows
_GROUPS = 10_000  # groups of which a process remembers how many marks it has bundled
_FEW = 4  # removed ones of a group: they are looked for one by one


def is_mark(key: bytes) -> bool:
    """Whether a key is a mark's, if it has no value.

    >>> is_mark(b"T" + bytes(12) + b"suffix"), is_mark(b"T" + bytes(12)), is_mark(b"R" + bytes(40))
    (True, False, False)
    """
    return TIMER_SUFFIX < len(key) <= _LONGEST and key[:1] == b"T"


def is_bundle(key: bytes) -> bool:
    """Whether a row is a bundle."""
    return len(key) == BUNDLE_KEY and key[:1] == b"U"


def refuse_bundles(keys: Sequence[bytes]) -> None:
    """Raises where one of some sorted keys is a bundle's."""
    for key in keys[bisect_left(keys, b"U") : bisect_left(keys, b"V")]:
        if is_bundle(key):
            raise StoreError(f"{key!r} is no entry's key: timers are kept there, packed")


def touches(start: bytes, stop: bytes) -> bool:
    """Whether a range may have marks."""
    return start < b"U" and stop > b"T" and start < stop


def hides(start: bytes, stop: bytes) -> bool:
    """Whether a range of rows may have bundles."""
    return start < b"V" and stop > b"U"


def bundle_range(start: bytes, stop: bytes) -> tuple[bytes, bytes]:
    """Where the bundles stand of the groups that a range of entries touches.

    >>> bundle_range(b"R", b"Tab"), bundle_range(b"T" + b"a" * 20, b"Z")
    ((b'U', b'Uab'), (b'Uaaaaaaaaaaaa', b'V'))
    """
    first = b"U" + start[1:TIMER_SUFFIX] if start > b"T" else b"U"
    if stop >= b"U":
        return first, b"V"
    last = b"U" + stop[1:TIMER_SUFFIX]
    return first, after(last) if len(stop) > TIMER_SUFFIX else last


def grouped(keys: Iterable[bytes]) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """The suffixes of marks, by group; and the keys that are no mark's. Fastest when they are sorted."""
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
    """Where sorted keys have those of the timer index."""
    return slice(bisect_left(keys, b"T"), bisect_left(keys, b"U"))


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
    """How many marks a bundle has."""
    return int.from_bytes(value[:_COUNT], "big")


def unpacked(value: bytes, before: bytes = b"") -> list[bytes]:
    """The suffixes of a bundle; with the group ``before`` them, the keys of its marks.

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
    return unpacked(value, b"T" + key[1:TIMER_SUFFIX])


class Bundler:
    """Packs the new marks of one shard.

    A group has ``most`` bundled marks at most, or some bundles of fewer, as far as this process knows: the
    others have rows of their own. So have those of a write that are fewer than ``least``.
    """

    def __init__(self, size: int = _SIZE, most: int = _MOST, least: int = _LEAST) -> None:
        self._size = size
        self._most = most
        self._least = least
        self._bundled: dict[bytes, int] = {}

    def pack(self, keys: Iterable[bytes]) -> Entries:
        """The rows of entries of the index that have no value, and whose keys are sorted."""
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
        """How many marks of a group may be bundled."""
        known = self._bundled.get(group, 0)
        room = min(self._most - known, wanted)
        if room < self._least:
            return 0
        if len(self._bundled) >= _GROUPS:
            self._bundled.clear()
        self._bundled[group] = known + max(room, self._most // _BUNDLES)
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
        return [(b"U" + group[1:] + os.urandom(BUNDLE_KEY - TIMER_SUFFIX), packed(part)) for part in bundles]


class Removal:
    """What a write takes out of the index: where to look for it, and then which rows go or change."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        groups, self._others = grouped(keys)
        self._groups = {
            group: frozenset([_LENGTHS[len(suffix)] + suffix for suffix in suffixes])
            for group, suffixes in groups.items()
        }

    def bundles(self) -> list[bytes]:
        """With what the bundles begin that must be read."""
        return [b"U" + group[1:] for group in self._groups]

    def rows(self) -> list[Range]:
        """Where to look for rows beside the bundles: if a group has many, they are deleted unseen."""
        return [
            (group, after(group), _looked_for(gone))
            for group, gone in self._groups.items()
            if len(gone) >= _FEW
        ]

    def changes(
        self, bundles: Iterable[tuple[bytes, bytes]], rows: Iterable[tuple[bytes, bytes]]
    ) -> tuple[list[bytes], Entries]:
        """The rows to be deleted and the bundles to be put, after what was found."""
        deletes = list(self._others)
        puts: Entries = []
        for key, value in bundles:
            if not is_bundle(key):
                continue
            left = _without(value, self._groups[b"T" + key[1:TIMER_SUFFIX]])
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
    """How many rows of a group are looked at: with more of them, that would not be worth it."""
    return len(gone) // _FEW + 1


def _without(value: bytes, gone: frozenset[bytes]) -> bytes | None:
    """What is left of a bundle, which may be nothing; None if nothing is gone."""
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
    """The entries of a range that touches the index, from pages of its rows and pages of its bundles.

    An entry is given as soon as all rows and all bundles that could come before it are here.
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
        """The next page of rows and that of bundles: one, both, or at the end none."""
        rows: list[Range] = []
        bundles: list[Range] = []
        bound = min(self._rows_known, self._marks_known)
        if bound < self._stop and self._rows_known == bound:
            rows.append((self._next_row, self._stop, most))
        if bound < self._stop and self._marks_known == bound:
            bundles.append((self._next_bundle, self._stop_bundle, most))
        return rows, bundles

    def add_rows(self, page: Entries, *, complete: bool) -> None:
        """Takes a page of rows."""
        if page:
            self._next_row = page[-1][0] + b"\x00"
        self._rows_known = self._stop if complete else self._next_row
        self._rows += visible(page) if hides(self._start, self._stop) else page

    def add_bundles(self, page: Entries, most: int) -> None:
        """Takes a page of bundles: ``most`` rows, or fewer, and then with all of the last one's group."""
        whole = len(page) < most
        if whole and sum(count(value) for _, value in page) < most:
            self._marks_known = self._stop
        elif page:
            last = page[-1][0]
            group = b"T" + last[1:TIMER_SUFFIX]
            self._next_bundle = after(b"U" + group[1:]) if whole else last + b"\x00"
            self._marks_known = max(self._marks_known, min(after(group) if whole else group, self._stop))
        for key, value in page:
            self._marks += marks_of(key, value)

    def take(self) -> Entries:
        """The entries that can be given."""
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
