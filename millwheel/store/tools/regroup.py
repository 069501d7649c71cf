"""The entries of a store for another number of tablets.

Rows of keys stay as they are; rows of windows, the backlog and the buffered records are divided or joined by
the tablets of their keys; the timer index and the counters are made from the rows. Intervals and checkpoints,
which are of a committed epoch, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from millwheel.errors import StoreError
from millwheel.model import codec as codecs
from millwheel.model.codec import pack, pack_plain, unpack
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Store
from millwheel.store.keyspace import (
    BACKLOG,
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    OF_COMPUTATIONS,
    ROW,
    WAITING,
    WAITING_ARRIVAL,
    after,
    backlog_key,
    counters_key,
    row_prefix,
    tablet_near,
    tablet_of,
    tablets_of,
    timer_key,
    waiting_key,
)
from millwheel.store.reorder_rows import Waiters
from millwheel.store.row import decode_row, encode_row
from millwheel.store.window_row import (
    END,
    OBJECTS,
    StoredColumn,
    WindowRow,
    is_window,
    window_of,
    window_suffix,
)

Entry = tuple[bytes, bytes]
Placed = Iterator[tuple[int, Entry]]
"""Entries, each with its tablet."""

_NUMBER = slice(1, 3)
_SUFFIX = 3  # of a row's key: behind the letter and the computation
_KINDS = (KIND_WATERMARK, KIND_WALL, KIND_HOLD)
NO_COUNTS = [0] * 5 + [MAX_TIME] * 3 + [0, MAX_TIME]
"""The counters of an empty tablet: `millwheel.worker.timer_index` has the names of their positions."""


def regrouped(source: Store, tablets: int) -> Placed:
    """The entries of a copy, each with its tablet of ``tablets``; by computation."""
    for number in sorted(_numbers(source)):
        counters: dict[int, list[int]] = {}
        yield from _rows(source, number, tablets, counters)
        yield from _waiting(source, number, tablets, counters)
        yield from _backlog(source, number, tablets)
        for tablet, counts in counters.items():
            yield tablet, (counters_key(number, tablet), pack_plain(counts))


def _numbers(source: Store) -> set[int]:
    """The numbers of the computations that have entries by tablet."""
    found = set()
    for shard in source.shards:
        with shard.snapshot() as snapshot:
            for letter in OF_COMPUTATIONS:
                start = letter
                while (entry := next(snapshot.scan(start, after(letter)), None)) is not None:
                    found.add(int.from_bytes(entry[0][_NUMBER], "big"))
                    start = after(entry[0][:_SUFFIX])
    return found


def _entries(source: Store, letter: bytes, number: int) -> Iterator[tuple[int, bytes, bytes]]:
    """A computation's entries of a letter, by tablet; with a tablet of their shard."""
    prefix = letter + number.to_bytes(2, "big")
    for index, shard in enumerate(source.shards):
        near = index * source.tablets // len(source.shards)
        with shard.snapshot() as snapshot:
            for key, value in snapshot.scan(prefix, after(prefix)):
                yield near, key, value


def _rows(source: Store, number: int, tablets: int, counters: dict[int, list[int]]) -> Placed:
    """The rows and their timers; counts them."""
    stored = ((key[_SUFFIX:], value) for _, key, value in _entries(source, ROW, number))
    few = min(tablets, source.tablets)  # what is joined is in one of these tablets, and what is divided too
    for _, mine in groupby(stored, lambda entry: tablet_of(entry[0], few)):
        windows: dict[int, list[WindowRow]] = {}
        for suffix, value in mine:
            if is_window(suffix):
                row = WindowRow.from_bytes(decode_row(value).state or b"")
                windows.setdefault(window_of(suffix, source.tablets)[1], []).append(row)
            else:
                yield from _row(number, suffix, value, tablets, counters)
        for start, found in windows.items():
            for tablet, joined in _by_tablet(found, tablets):
                state = joined.to_bytes()
                value = encode_row(state, {END: joined.end}, {}, {}, None)
                yield from _row(number, window_suffix(tablet, start, tablets), value, tablets, counters)
                counters[tablet][2 + KIND_WATERMARK] += len(joined.keys) - 1


def _row(number: int, suffix: bytes, value: bytes, tablets: int, counters: dict[int, list[int]]) -> Placed:
    """A row and its timers, which are counted."""
    tablet, row = tablet_of(suffix, tablets), decode_row(value)
    counts = counters.setdefault(tablet, list(NO_COUNTS))
    counts[0] += 1
    counts[1] += len(value)
    yield tablet, (row_prefix(number) + suffix, value)
    for kind, times in zip(_KINDS, (row.timers, row.wall, row.holds), strict=True):
        if times:
            first = min(times.values())
            counts[2 + kind] += len(times)
            counts[5 + kind] = min(counts[5 + kind], first)
            yield tablet, (timer_key(number, suffix, kind, first, tablets), b"")


def _by_tablet(rows: Sequence[WindowRow], tablets: int) -> Iterator[tuple[int, WindowRow]]:
    """Rows of one window, joined and divided by the tablets of their keys."""
    if len({(row.signature, row.end) for row in rows}) > 1:
        raise StoreError(f"the rows of the window {rows[0].start} are of several operators: see store check")
    keys = [key for row in rows for key in row.keys]
    columns = [_joined(parts) for parts in zip(*(row.columns for row in rows), strict=True)]
    for tablet, mine in _positions(keys, tablets).items():
        own = [_picked(column, mine) for column in columns]
        yield tablet, rows[0]._replace(keys=[keys[position] for position in mine], columns=own)


def _joined(parts: Sequence[StoredColumn]) -> StoredColumn:
    """The columns of several rows as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if first.code != OBJECTS and {part.code for part in parts} == {first.code}:
        counts = None if first.counts is None else b"".join(part.counts or b"" for part in parts)
        return first._replace(data=b"".join(part.data for part in parts), counts=counts)
    found = [one for part in parts for one in part.objects()]
    return StoredColumn(first.kind, OBJECTS, codecs.msgpack.encode(found), None)


def _picked(column: StoredColumn, positions: Sequence[int]) -> StoredColumn:
    """The aggregates of some of the keys."""
    if column.code == OBJECTS:
        found = column.objects()
        return column._replace(data=codecs.msgpack.encode([found[position] for position in positions]))
    counts = None if column.counts is None else _numbers_at(column.counts, positions)
    return column._replace(data=_numbers_at(column.data, positions), counts=counts)


def _numbers_at(data: bytes, positions: Sequence[int]) -> bytes:
    """Some of an array's numbers, which have eight bytes."""
    return b"".join(data[8 * position : 8 * position + 8] for position in positions)


def _positions(keys: Sequence[str], tablets: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position, tablet in enumerate(tablets_of(keys, tablets)):
        found.setdefault(tablet, []).append(position)
    return found


def _waiting(source: Store, number: int, tablets: int, counters: dict[int, list[int]]) -> Placed:
    """The buffered records; counts them.

    A piece keeps its arrival, by which a key's records are ordered.
    """
    joined = max(source.tablets // tablets, 1)
    for near, key, value in _entries(source, WAITING, number):
        piece = Waiters.from_bytes(value)
        epoch, count = key[WAITING_ARRIVAL][:8], int.from_bytes(key[WAITING_ARRIVAL][8:], "big")
        # Pieces of several tablets come into one: their numbers stay different.
        count = count * joined + tablet_near(key[3], near) % joined
        for tablet, mine in _positions(piece.keys, tablets).items():
            own = _waiters(piece, mine)
            counts = counters.setdefault(tablet, list(NO_COUNTS))
            counts[8] += len(mine)
            counts[9] = min(counts[9], own.timestamps[0])
            arrival = epoch + count.to_bytes(4, "big")
            yield tablet, (waiting_key(number, tablet, own.timestamps[0], arrival), own.to_bytes())


def _waiters(piece: Waiters, positions: Sequence[int]) -> Waiters:
    late = set(piece.late)

    def some(column: list[Any] | None) -> Any:
        return None if column is None else [column[position] for position in positions]

    return Waiters(
        some(piece.streams),
        some(piece.keys),
        some(piece.timestamps),
        some(piece.ids),
        [place for place, position in enumerate(positions) if position in late],
        some(piece.values),
        some(piece.json),
    )


def _backlog(source: Store, number: int, tablets: int) -> Placed:
    """The records that slow steps left, in the order of their tablets."""
    few = min(tablets, source.tablets)

    def place(entry: tuple[int, bytes, bytes]) -> int:
        return tablet_near(entry[1][3], entry[0]) * few // source.tablets

    for _, entries in groupby(_entries(source, BACKLOG, number), place):
        runs: dict[int, list[list[Any]]] = {}
        for _, _, value in entries:
            for stream, keys, *columns in unpack(value):
                for tablet, mine in _positions(keys, tablets).items():
                    own = [None if c is None else [c[position] for position in mine] for c in columns]
                    runs.setdefault(tablet, []).append([stream, [keys[i] for i in mine], *own])
        for tablet, found in runs.items():
            yield tablet, (backlog_key(number, tablet), pack(found))


def without_intervals(commit: bytes) -> bytes:
    """The last commit without its intervals, whose tablets are others now.

    Their marks stay, as those of intervals that are no more: no watermark goes back.
    """
    value = unpack(commit)
    for marks in value[2].values():
        marks[4] = marks[5] = []
    value[5] = []
    return pack(value)
