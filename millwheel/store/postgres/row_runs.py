"""Runs of buffered rows: a write's changes of rows, packed into one table entry.

A writer with a cache will not read a row that it has written, so the row need not be in its place yet. The
rows that a write changes are packed into a run: `L`, a number by which the runs of a shard are ordered, and
a unique id; its value has the new state of each row. When there are enough runs, a write merges all of them
into the table, each row once, and deletes them. Until then a run is newer than the table, and of two runs
the one with the higher number is.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millwheel.errors import StoreError
from millwheel.model.codec import pack_plain, unpack
from millwheel.store.keyspace import ROW, RUN, after

Rows = dict[bytes, bytes | None]
"""Rows by key, as written; None for a deleted row."""
Listed = list[tuple[bytes, int]]
"""The keys of runs, in order, and their sizes."""

_AFTER_ROWS: Final = after(ROW)
FIRST: Final = RUN
BEHIND: Final = after(RUN)
"""The end of the runs' key range."""
KEY: Final = 17
"""The bytes of a run's key."""
_NUMBER = slice(1, 9)
_MOST = 16  # runs: a reader that has none of them in memory reads all
_BYTES = 4 << 20  # of them together
_LEAST = 64  # rows in the first run: fewer are written directly


def is_row(key: bytes) -> bool:
    """Whether an entry is a key's row, which may be in a run."""
    return key[:1] == ROW


def row_part(keys: Sequence[bytes]) -> slice:
    """The slice of sorted keys that are rows."""
    return slice(bisect_left(keys, ROW), bisect_left(keys, _AFTER_ROWS))


def is_run(key: bytes) -> bool:
    """Whether an entry of the table is a run."""
    return len(key) == KEY and key[:1] == FIRST


def refuse_runs(keys: Sequence[bytes]) -> None:
    """Raises if one of some sorted keys is a run's."""
    for key in keys[bisect_left(keys, FIRST) : bisect_left(keys, BEHIND)]:
        if is_run(key):
            raise StoreError(f"{key!r} is not an entry's key: it is reserved for buffered rows")


def touches(start: bytes, stop: bytes) -> bool:
    """Whether a range may have rows."""
    return start < _AFTER_ROWS and stop > ROW and start < stop


def hides(start: bytes, stop: bytes) -> bool:
    """Whether a range of a table may have runs."""
    return start < BEHIND and stop > FIRST


class Log:
    """The runs of one shard that this process has seen, and need not fetch.

    A run never changes, and its id is unique. So its content stays valid as long as it exists.
    """

    def __init__(self, most: int = _MOST, size: int = _BYTES, least: int = _LEAST) -> None:
        self._most = most
        self._size = size
        self._least = least
        self.known: dict[bytes, Rows] = {}

    def next(self, rows: Rows, listed: Listed) -> tuple[bytes, bytes] | None:
        """A run for some rows, after the others; None if it is time to merge all."""
        if len(listed) + 1 >= self._most or (not listed and len(rows) < self._least):
            return None
        data = pack_plain([list(rows), list(rows.values())])
        if sum(size for _, size in listed) + len(data) > self._size:
            return None
        last = int.from_bytes(listed[-1][0][_NUMBER], "big") if listed else 0
        return FIRST + (last + 1).to_bytes(8, "big") + os.urandom(8), data

    def rows(
        self, listed: Listed, fetch: Callable[[list[bytes]], Iterable[tuple[bytes, bytes]]]
    ) -> list[Rows]:
        """The content of the runs, in order; fetches those that are not in memory.

        Others are dropped: they were merged, or this snapshot is an old one.
        """
        known = dict(self.known)
        missing = [name for name, _ in listed if name not in known]
        for name, data in fetch(missing) if missing else ():
            known[name] = dict(zip(*unpack(data), strict=True))
        self.known = {name: known[name] for name, _ in listed}
        return list(self.known.values())

    def add(self, name: bytes, rows: Rows) -> None:
        """Keeps a run that was written."""
        self.known = {**self.known, name: rows}

    def brought_in(self) -> None:
        """Forgets all runs: their rows are merged."""
        self.known = {}


def look_up(runs: Sequence[Rows], keys: Iterable[bytes]) -> Rows:
    """The rows of these keys that are in runs."""
    found: Rows = {}
    wanted = set(keys)
    for rows in reversed(runs):
        for key in wanted & rows.keys():
            found[key] = rows[key]
        wanted -= found.keys()
    return found


def laid_over(
    entries: Iterable[tuple[bytes, bytes]], runs: Sequence[Rows], start: bytes, stop: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a range in order, with those of runs in place of older ones."""
    waiting: Rows = {}
    for rows in runs:
        waiting.update((key, value) for key, value in rows.items() if start <= key < stop)
    ahead = sorted(waiting, reverse=True)
    for key, value in entries:
        while ahead and ahead[-1] < key:
            yield from _there(waiting, ahead.pop())
        if ahead and ahead[-1] == key:
            yield from _there(waiting, ahead.pop())
        else:
            yield key, value
    while ahead:
        yield from _there(waiting, ahead.pop())


def _there(rows: Rows, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    value = rows[key]
    if value is not None:
        yield key, value
