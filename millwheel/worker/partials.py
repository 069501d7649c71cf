"""Partial aggregates on their way: what a sender makes of records for a computation with a folding.

A chunk of records becomes one blob for each interval, which travels in the place of a value in a section that
has no records. The receiver merges it as it would have grouped the records, in whatever order they come.

It is done where nothing but the records' keys, timestamps and some fields matter: they have no IDs, as
duplicates are found by who receives them, and each field is a number or missing. All else goes as records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millwheel.model.codec import pack_plain, unpack
from millwheel.model.folding import Folding
from millwheel.store.keyspace import tablets_of
from millwheel.store.windows import StoredColumn
from millwheel.worker.grouping import (
    BeforeTime,
    Column,
    Numbers,
    Partials,
    codes_of,
    column_of,
    counted,
    folded_numbers,
    grouped,
    is_there,
    numbers_of,
    picked,
    spread,
)


class Sent:
    """Partial aggregates, and of how many records too late for all or some of their windows."""

    __slots__ = ("dropped", "late", "partials")

    def __init__(self, partials: Partials, late: int, dropped: int) -> None:
        self.partials = partials
        self.late = late
        self.dropped = dropped


def partials_of(
    folding: Folding,
    keys: Sequence[Any],
    timestamps: Sequence[int] | Numbers,
    fields: Mapping[str, Sequence[Any] | Numbers],
    before: int,
) -> Sent | None:
    """The partial aggregates of records; None where Python must look at one of their fields.

    ``before`` is the input watermark before the epoch, by which a window is over (semantics 4).
    """
    wanted = {folded.field for folded in folding.folds if folded.kind != "count"}
    columns = {name: numbers_of(column) for name, column in fields.items() if name in wanted}
    if any(column is None for column in columns.values()):
        return None
    if set(map(type, keys)) != {str}:
        return None  # some are skipped
    names, codes = codes_of(keys)
    try:
        mine = spread(folding, np.asarray(timestamps, np.int64), before)
    except BeforeTime:
        return None  # who receives the record says so
    at, starts, groups = grouped(codes[mine.records], mine.starts, folding)
    found: list[Column] = []
    for folded in folding.folds:
        if folded.read is None:
            found.append(Column(counted(groups, len(at))))
            continue
        assert folded.field is not None
        if folded.kind == "count":
            there = is_there(fields[folded.field])[mine.records]
            found.append(Column(counted(groups[there], len(at))))
            continue
        column = columns[folded.field]
        assert column is not None
        one = folded_numbers(folded.kind, groups, len(at), *(picked(part, mine.records) for part in column))
        if one is None:
            return None
        found.append(one)
    tablets = np.array(tablets_of(names), np.uint8)
    records = counted(codes, len(names))
    return Sent(Partials(names, tablets, records, at, starts, found), mine.late, mine.dropped)


def dealt(sent: Sent, folding: Folding, table: Sequence[int], intervals: int) -> list[tuple[int, bytes]]:
    """The blob of each interval that has a key of them, by a table of the interval of each tablet."""
    partials = sent.partials
    if intervals == 1:
        return [(0, _packed(partials, folding, sent.late, sent.dropped))]
    owners = np.array(table, np.int64)[partials.tablets]
    rows = owners[partials.places]
    late, dropped = sent.late, sent.dropped
    blobs = []
    for index in range(intervals):
        keys = np.flatnonzero(owners == index)
        if not len(keys):
            continue
        numbers = np.empty(len(owners), np.int64)
        numbers[keys] = np.arange(len(keys))
        mine = np.flatnonzero(rows == index)
        part = Partials(
            [partials.keys[place] for place in keys.tolist()],
            partials.tablets[keys],
            partials.records[keys],
            numbers[partials.places[mine]],
            partials.starts[mine],
            [column.pick(mine) for column in partials.columns],
        )
        blobs.append((index, _packed(part, folding, late, dropped)))
        late = dropped = 0  # of the records that were late, one interval counts all
    return blobs


def _packed(partials: Partials, folding: Folding, late: int, dropped: int) -> bytes:
    columns = [
        list(column.stored(folded)) for column, folded in zip(partials.columns, folding.folds, strict=True)
    ]
    return pack_plain(
        [
            late,
            dropped,
            partials.keys,
            partials.tablets.tobytes(),
            partials.records.astype(np.int64, copy=False).tobytes(),
            partials.places.astype(np.int64, copy=False).tobytes(),
            partials.starts.astype(np.int64, copy=False).tobytes(),
            columns,
        ]
    )


def received(blob: bytes) -> Sent:
    """The inverse of what `dealt` packs."""
    late, dropped, keys, tablets, records, places, starts, columns = unpack(blob)
    partials = Partials(
        keys,
        np.frombuffer(tablets, np.uint8),
        np.frombuffer(records, np.int64),
        np.frombuffer(places, np.int64),
        np.frombuffer(starts, np.int64),
        [column_of(StoredColumn(*column)) for column in columns],
    )
    return Sent(partials, late, dropped)
