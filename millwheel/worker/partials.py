"""Partial aggregates: a sender's aggregation for a computation with a folding.

A chunk of records becomes one blob for each interval, which is sent in place of a value in a section
without records. The receiver merges it as it would have grouped the records, in any order of arrival.

It applies if only the records' keys, timestamps and some fields matter: they have no IDs, as
the receiver finds duplicates, and each field is a number or missing. Otherwise records are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from millwheel.model.codec import pack_plain, unpack
from millwheel.model.field_columns import Coded, Masked
from millwheel.model.folding import Folding
from millwheel.store.window_row import StoredColumn
from millwheel.worker.grouping import (
    BeforeTime,
    Column,
    Numbers,
    Partials,
    column_of,
    counted,
    folded_numbers,
    grouped,
    is_there,
    narrow,
    numbers_of,
    picked,
    spread,
)
from millwheel.worker.key_codes import codes_of, fingerprints_of, tablets_in


class Sent:
    """Partial aggregates, and the numbers of records late for some or all windows."""

    __slots__ = ("dropped", "late", "partials")

    def __init__(self, partials: Partials, late: int, dropped: int) -> None:
        self.partials = partials
        self.late = late
        self.dropped = dropped


def partials_of(
    folding: Folding,
    keys: Sequence[Any] | Coded,
    timestamps: Sequence[int] | Numbers,
    fields: Mapping[str, Sequence[Any] | Masked],
    before: int,
    among: int,
) -> Sent | None:
    """The partial aggregates of records; None if Python must evaluate a field.

    ``before`` is the input watermark before the epoch, which closes windows (semantics 4); ``among`` the
    number of tablets of the key space.
    """
    wanted = {folded.field for folded in folding.folds if folded.kind != "count"}
    columns = {name: numbers_of(column) for name, column in fields.items() if name in wanted}
    if any(column is None for column in columns.values()):
        return None
    if isinstance(keys, Coded):
        names, codes = keys.names, keys.codes
        fingerprints = fingerprints_of(names)
    elif set(map(type, keys)) != {str}:
        return None  # some are skipped
    else:
        names, fingerprints, codes = codes_of(keys)
    try:
        mine = spread(folding, np.asarray(timestamps, np.int64), before)
    except BeforeTime:
        return None  # the receiver reports the error
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
    records = counted(codes, len(names))
    partials = Partials(names, tablets_in(fingerprints, among), records, at, starts, found, fingerprints)
    return Sent(partials, mine.late, mine.dropped)


def dealt(sent: Sent, folding: Folding, table: Sequence[int], intervals: int) -> list[tuple[int, bytes]]:
    """The blob of each interval with one of the keys, by a table of tablets."""
    partials = sent.partials
    if intervals == 1:
        return [(0, _packed(partials, folding, sent.late, sent.dropped))]
    owners = np.array(table, np.uint16)[partials.tablets]
    names = np.array(partials.keys, object)
    numbers = np.empty(len(owners), np.int64)
    late, dropped = sent.late, sent.dropped
    blobs = []
    by_key, by_row = _runs(owners, intervals), _runs(owners[partials.places], intervals)
    for index in np.flatnonzero(np.bincount(owners, minlength=intervals)).tolist():
        keys, mine = by_key(index), by_row(index)
        numbers[keys] = np.arange(len(keys))
        part = Partials(
            names[keys].tolist(),
            partials.tablets[keys],
            partials.records[keys],
            numbers[partials.places[mine]],
            partials.starts[mine],
            [column.pick(mine) for column in partials.columns],
            picked(partials.fingerprints, keys),
        )
        blobs.append((index, _packed(part, folding, late, dropped)))
        late = dropped = 0  # one interval counts all late records
    return blobs


def _runs(owners: Numbers, count: int) -> Callable[[int], Numbers]:
    """A function for the positions of each of ``count`` owners, in order."""
    order = np.argsort(owners, kind="stable")
    bounds = np.searchsorted(owners[order], np.arange(count + 1))
    return lambda owner: order[bounds[owner] : bounds[owner + 1]]


def _packed(partials: Partials, folding: Folding, late: int, dropped: int) -> bytes:
    columns = [
        list(column.stored(folded)) for column, folded in zip(partials.columns, folding.folds, strict=True)
    ]
    for packed, column in zip(columns, partials.columns, strict=True):
        if packed[1] == "q" and not isinstance(column.values, list):
            packed[1:3] = narrow(column.values)
    fingerprints = partials.fingerprints
    assert fingerprints is not None  # a sender has them, for the tablets
    starts = partials.starts
    first, step = 0, 1
    if len(starts) and int(starts.max()) - int(starts.min()) < 2**63:
        first, step = int(starts.min()), folding.every
        starts = (starts - first) // step
    return pack_plain(
        [
            late,
            dropped,
            partials.keys,
            fingerprints.tobytes(),
            narrow(partials.records),
            narrow(partials.places),
            [first, step, *narrow(starts)],
            columns,
        ]
    )


def received(blob: bytes, among: int) -> Sent:
    """The inverse of the blobs of `dealt`."""
    late, dropped, keys, fingerprints, records, places, starts, columns = unpack(blob)
    first, step, *windows = starts
    found = np.frombuffer(fingerprints, np.uint64)
    partials = Partials(
        keys,
        tablets_in(found, among),
        _wide(records),
        _wide(places),
        _wide(windows) * step + first,
        [_column(*column) for column in columns],
        found,
    )
    return Sent(partials, late, dropped)


def _wide(packed: Sequence[Any]) -> Numbers:
    code, data = packed
    return np.frombuffer(data, code).astype(np.int64, copy=False)


def _column(kind: str, code: str, data: bytes, counts: bytes | None) -> Column:
    if code in "bhi":
        code, data = "q", _wide([code, data]).tobytes()
    return column_of(StoredColumn(kind, code, data, counts))
