"""Rows that wait: what a write changes of the rows of keys, packed into one entry of the table.

Who has a cache will not ask for a row that he has written, so the row need not stand in its place yet. The
rows that a write changes are packed into a run: `L`, a number by which the runs of a shard are ordered, and
an id that no other has; its value is what becomes of each row. When enough of them wait, a write brings all
into their places, each row once, and removes them. Until then a run is the later of the two, and of two runs
the one with the higher number.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millwheel.errors import StoreError
from millwheel.model.codec import pack_plain, unpack

Rows = dict[bytes, bytes | None]
"""Rows by their keys, as some writes left them; None where a row was deleted."""
Listed = list[tuple[bytes, int]]
"""The keys of runs, in order, and their sizes."""

FIRST: Final = b"L"
BEHIND: Final = b"M"
"""Where in a table the runs are."""
KEY: Final = 17
"""The bytes of a run's key."""
_NUMBER = slice(1, 9)
_MOST = 16  # runs that wait: who has none of them in memory reads all
_BYTES = 4 << 20  # of them together
_LEAST = 64  # rows in the first run: few are as well written at once
_AGAIN = 1.5  # times that a row is in runs, on average, before waiting is of use
_PAUSE = 64  # writes until it is tried again, where it was of none


def is_row(key: bytes) -> bool:
    """Whether an entry is a key's row, which may wait in a run."""
    return key[:1] == b"R"


def row_part(keys: Sequence[bytes]) -> slice:
    """Where in some sorted keys the rows are."""
    return slice(bisect_left(keys, b"R"), bisect_left(keys, b"S"))


def is_run(key: bytes) -> bool:
    """Whether an entry of the table is a run."""
    return len(key) == KEY and key[:1] == FIRST


def refuse_runs(keys: Sequence[bytes]) -> None:
    """Raises where one of some sorted keys is a run's."""
    for key in keys[bisect_left(keys, FIRST) : bisect_left(keys, BEHIND)]:
        if is_run(key):
            raise StoreError(f"{key!r} is no entry's key: rows wait there, packed")


def touches(start: bytes, stop: bytes) -> bool:
    """Whether a range may have rows."""
    return start < b"S" and stop > b"R" and start < stop


def hides(start: bytes, stop: bytes) -> bool:
    """Whether a range of a table may have runs."""
    return start < BEHIND and stop > FIRST


class Log:
    """The runs of one shard, as far as this process has seen them: those that it knows it need not fetch.

    A run never changes, and its id is its own. So what was once read of one is right for as long as it waits.
    """

    def __init__(
        self, most: int = _MOST, size: int = _BYTES, least: int = _LEAST, pause: int = _PAUSE
    ) -> None:
        self._most = most
        self._size = size
        self._least = least
        self._known: dict[bytes, Rows] = {}
        self._longest_pause = pause
        self._pause = 0

    def next(self, rows: Rows, listed: Listed) -> tuple[bytes, bytes] | None:
        """A run for some rows, behind those that wait; None where it is time to bring all into place."""
        if not listed and self._pause:
            self._pause -= 1
            return None
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
        """What is in the runs, the first of them first; those that this process does not know are fetched.

        All others are forgotten: they wait no more, or this reading is an old one.
        """
        known = dict(self._known)
        missing = [name for name, _ in listed if name not in known]
        for name, data in fetch(missing) if missing else ():
            known[name] = dict(zip(*unpack(data), strict=True))
        self._known = {name: known[name] for name, _ in listed}
        return list(self._known.values())

    def add(self, name: bytes, rows: Rows) -> None:
        """Remembers a run that was written."""
        self._known = {**self._known, name: rows}

    def brought_in(self, rows: int) -> None:
        """Forgets all: so many rows were brought into their places.

        Where those of one run were others than those of the next, each was written twice for nothing: then
        they do not wait for a while.
        """
        if sum(map(len, self._known.values())) < _AGAIN * rows:
            self._pause = self._longest_pause
        self._known = {}


def look_up(runs: Sequence[Rows], keys: Iterable[bytes]) -> Rows:
    """Of these keys those that are in runs."""
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
    """The entries of a range in order, with what waits in runs in their place."""
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
