"""Runs a computation with a folding: a row for each tablet and window.

Arrivals are grouped by key and window, merged with the rows of their windows, and written back; no hook
runs for single records. When the watermark reaches a window, its row is read, emitted as one batch, and
deleted. See ``docs/mechanisms/columns.md``.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from millwheel.errors import CodecError, StoreError, UserCodeError
from millwheel.model.batch import RecordBatch
from millwheel.model.emitted import Emitted, Results, Span
from millwheel.model.folding import Folded, Folding
from millwheel.model.keys import key_text
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME, WATERMARK
from millwheel.model.timer import Timer
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import KIND_WATERMARK, row_prefix, tablet_of
from millwheel.store.row import encode_row, row_parts
from millwheel.store.window_row import (
    END,
    OTHER_FORM,
    WindowRow,
    is_window,
    window_of,
    window_suffix,
    windows_in,
)
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext, user_error
from millwheel.worker.grouping import (
    BeforeTime,
    Column,
    Numbers,
    Partials,
    Spread,
    Unmerged,
    cells,
    column_of,
    counted,
    folded_numbers,
    grouped,
    is_there,
    merged,
    numbers_of,
    picked,
    spread,
    windows_of,
)
from millwheel.worker.inbox import Arrivals
from millwheel.worker.key_codes import codes_of, number_of, tablets_in
from millwheel.worker.keyed import hot_key
from millwheel.worker.partials import Sent, received
from millwheel.worker.report import NodeReport
from millwheel.worker.seen_ids import SeenIds
from millwheel.worker.timer_index import BYTES, ROWS, WATERMARK_TIMERS, Tablets

_PIECE = 256  # records between two readings of the clock, if a user's function reads their fields


@dataclass
class _Stored:
    """The stored row of a window."""

    data: bytes
    keys: int
    partials: Partials


class WindowRun:
    """One computation, interval and epoch; collects ``puts`` and ``deletes``.

    Each key and window is in one row, and each row has an entry in the timer index, which counts its keys.
    """

    def __init__(
        self,
        context: HookContext,
        number: int,
        before: int,
        after: int,
        low_before: int,
        seen: SeenIds,
        tablets: Tablets,
        budget: Budget,
    ) -> None:
        self._context = context
        self._prefix = row_prefix(number)
        self._before = before
        self._after = after
        self._low_before = low_before
        self._seen = seen
        self._tablets = tablets
        self._budget = budget
        self._sent: list[Sent] = []
        self._fires = True
        self.left: list[int] = []
        """The positions of records beyond the budget."""
        self.report = NodeReport()
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.diverted: list[tuple[str, RecordBatch]] = []

    def take(self, folding: Folding, blobs: Iterable[bytes], *, fires: bool) -> None:
        """Sets the folding, and the partial aggregates that arrived in place of records.

        Without ``fires`` no window closes: a sender has more records for this epoch.
        """
        self._fires = fires
        self._folding = folding
        self._sent = [received(blob, self._tablets.among) for blob in blobs]

    def run(
        self,
        snapshot: Snapshot,
        arrivals: Arrivals,
        due_limit: int,
        order: random.Random | None,
        ordered: Any = None,
    ) -> None:
        """Merges the arrivals, in any order, and closes the windows that are due."""
        report, context = self.report, self._context
        due: list[bytes] = []
        if self._fires:
            due, report.more_due = self._tablets.due(snapshot, self._after, MIN_TIME, due_limit)
        if report.more_due:  # rows by key come first, also those that are late in the index
            by_key = (row for row in self._tablets.each_due(snapshot, self._after) if not is_window(row))
            due = list(itertools.islice(by_key, due_limit)) or due
        parts = [part for part in self._grouped(arrivals) if len(part.keys)]
        for sent in self._sent:
            report.late += sent.late
            report.dropped += sent.dropped
            report.records += int(sent.partials.records.sum()) - sent.dropped
            parts.append(sent.partials)
        if parts or due:
            fires = self._fires and not self.left
            if self.left and due:
                report.more_due = True
            old = [suffix for suffix in due if not is_window(suffix)]
            if old:
                parts += self._taken_over(snapshot, old)
                fires = fires and not report.more_due  # some keys of a window may still have rows by key
            self._merge(snapshot, arrivals, parts, due, due_limit, order, fires=fires)
        report.left = len(self.left)
        report.user = context.counts
        report.produced = sum(len(output) for output in context.outputs.values())

    def weights(self, weights: dict[int, list[int]]) -> dict[int, list[int]]:
        """Adds the records of partial aggregates to the counts by tablet."""
        for sent in self._sent:
            counts = np.zeros(self._tablets.among, np.int64)
            np.add.at(counts, sent.partials.tablets, sent.partials.records)
            for tablet in np.flatnonzero(counts).tolist():
                weights.setdefault(tablet, [0, 0])[0] += int(counts[tablet])
        return weights

    def _grouped(self, arrivals: Arrivals) -> Iterator[Partials]:
        """Aggregates the records that arrived one by one, within the budget."""
        positions: list[int] = list(range(len(arrivals.keys)))
        if not positions:
            return
        own_code = any(folded.read is not None and folded.field is None for folded in self._folding.folds)
        self._budget.begin()
        step = _PIECE if own_code else len(positions)
        for first in range(0, len(positions), step):
            if first and self._budget.is_over():
                self.left = positions[first:]
                return
            yield self._group(arrivals, positions[first : first + step])

    def _group(self, arrivals: Arrivals, piece: list[int]) -> Partials:
        report, folding = self.report, self._folding
        if arrivals.digests is not None:
            fresh = []
            for position in piece:
                digest = arrivals.digests[position]
                if digest is None or self._seen.is_new(arrivals.streams[position], digest):
                    fresh.append(position)
            report.duplicates += len(piece) - len(fresh)
            piece = fresh
        keys = list(map(arrivals.keys.__getitem__, piece))
        times = list(map(arrivals.timestamps.__getitem__, piece))
        names, fingerprints, codes = codes_of(keys)
        try:
            mine = spread(folding, np.array(times, np.int64), self._before)
        except BeforeTime as found:
            early = OverflowError(f"its window begins at {found.start}, which has more than 64 bits")
            raise _with_record(self._context, arrivals, piece[found.record], self._before, early) from None
        report.late += mine.late
        report.dropped += mine.dropped
        report.records += len(piece) - mine.dropped
        at, starts, groups = grouped(codes[mine.records], mine.starts, folding)
        reading = _Reading(self._context, arrivals, piece, mine, self._before)
        columns = [reading.column(folded, groups, len(at)) for folded in folding.folds]
        tablets = tablets_in(fingerprints, self._tablets.among)
        return Partials(names, tablets, counted(codes, len(names)), at, starts, columns, fingerprints)

    def _taken_over(self, snapshot: Snapshot, suffixes: list[bytes]) -> Iterator[Partials]:
        """Converts rows by key of an earlier version to rows of their windows."""
        rows = snapshot.get_each([self._prefix + suffix for suffix in suffixes])
        for suffix, data in zip(suffixes, rows, strict=True):
            assert data is not None, "the index has no entry without a row"
            state, timers, _, _, long_key = row_parts(data)
            key = long_key if long_key is not None else key_text(suffix[8:])
            windows = {} if state is None else windows_in(state, timers, self._folding)
            if windows is None:
                raise StoreError(OTHER_FORM.format(self._context.node.name))
            self.deletes.append(self._prefix + suffix)
            counters = self._tablets.of_row(suffix)
            counters[ROWS] -= 1
            counters[BYTES] -= len(data)
            counters[WATERMARK_TIMERS] -= len(timers)
            self._tablets.change(KIND_WATERMARK, suffix, min(timers.values()), None)
            columns = [
                Column([so_far[place] for so_far in windows.values()])
                for place in range(len(self._folding.folds))
            ]
            yield Partials(
                [key],
                np.array([tablet_of(suffix, self._tablets.among)], number_of(self._tablets.among)),
                np.zeros(1, np.int64),
                np.zeros(len(windows), np.int64),
                np.array(list(windows), np.int64),
                columns,
            )

    def _merge(
        self,
        snapshot: Snapshot,
        arrivals: Arrivals,
        parts: list[Partials],
        due: list[bytes],
        due_limit: int,
        order: random.Random | None,
        *,
        fires: bool,
    ) -> None:
        """Merges the arrivals with the rows of their windows, and with rows that are due."""
        among = self._tablets.among
        touched = {pair for part in parts for pair in windows_of(self._folding, part, among)}
        wanted = touched | {window_of(suffix, among) for suffix in due if fires and is_window(suffix)}
        stored = self._load(snapshot, sorted(wanted))
        if not parts and not stored:
            return
        try:
            whole = merged(self._folding, [*(row.partials for row in stored.values()), *parts])
        except Unmerged as error:
            raise self._failed(error, arrivals) from error.cause
        self._look_for_hot(whole)
        if not len(whole.places):
            return  # all of it was late
        tablets = whole.tablets[whole.places]
        mixed = np.arange(among, dtype=number_of(among))
        if order is not None:
            shuffled = mixed.tolist()
            order.shuffle(shuffled)
            mixed = np.array(shuffled, number_of(among))
        # By window first: what one window emits then stands together, whatever its tablet.
        arranged = np.argsort(cells(self._folding, mixed[tablets], whole.starts, among), kind="stable")
        tablets, starts = tablets[arranged], whole.starts[arranged]
        names = np.array(whole.keys, object)[whole.places[arranged]]
        columns = [column.pick(arranged) for column in whole.columns]
        changes = np.flatnonzero((np.diff(starts) != 0) | (np.diff(tablets) != 0)) + 1
        bounds = [0, *changes.tolist(), len(starts)]
        # If the index was not read to its end, the rest may have an earlier window's row.
        known = window_of(due[-1], among) if self.report.more_due and due else (among, 0)
        fired = 0
        emitted: list[slice] = []
        for first, last in itertools.pairwise(bounds):
            tablet, start = int(tablets[first]), int(starts[first])
            end = min(start + self._folding.size, MAX_TIME)
            mine = slice(first, last)
            row = stored.get((tablet, start))
            is_due = fires and end <= self._after
            if is_due and fired < due_limit and (tablet, start) <= known:
                fired += last - first
                emitted.append(mine)
                self._replace(tablet, start, end, row, None, 0)
                continue
            self.report.more_due |= is_due
            if (tablet, start) in touched:
                own = [column.cut(mine) for column in columns]
                data = self._encoded(start, end, names[mine].tolist(), own)
                self._replace(tablet, start, end, row, data, last - first)
        self.report.timers += fired
        if fired == len(starts):
            self._emit(names.tolist(), starts, columns)
        elif fired:
            places = np.concatenate([np.arange(mine.start, mine.stop) for mine in emitted])
            self._emit(names[places].tolist(), starts[places], [column.pick(places) for column in columns])

    def _failed(self, error: Unmerged, arrivals: Arrivals) -> UserCodeError:
        """The error of a merge, with a record of the key from this epoch."""
        context = self._context
        for position, key in enumerate(arrivals.keys):
            if key == error.key:
                return _with_record(context, arrivals, position, self._before, error.cause)
        context.key, context.hand = error.key, None  # its sender has aggregated its records
        return user_error(context, error.cause)

    def _load(self, snapshot: Snapshot, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], _Stored]:
        """The rows of windows, if they have one."""
        suffixes = [window_suffix(tablet, start, self._tablets.among) for tablet, start in pairs]
        found = snapshot.get_each([self._prefix + suffix for suffix in suffixes])
        stored = {}
        for pair, data in zip(pairs, found, strict=True):
            if data is None:
                continue
            row = WindowRow.from_bytes(row_parts(data)[0] or b"")
            if row.signature != self._folding.signature:
                raise StoreError(OTHER_FORM.format(self._context.node.name))
            count = len(row.keys)
            partials = Partials(
                row.keys,
                np.full(count, pair[0], number_of(self._tablets.among)),
                np.zeros(count, np.int64),
                np.arange(count),
                np.full(count, pair[1], np.int64),
                list(map(column_of, row.columns)),
            )
            stored[pair] = _Stored(data, count, partials)
        return stored

    def _encoded(self, start: int, end: int, keys: list[str], columns: list[Column]) -> bytes:
        folds = self._folding.folds
        try:
            stored = [column.stored(folded) for column, folded in zip(columns, folds, strict=True)]
        except Exception as error:
            name = self._context.node.name
            raise CodecError(
                f"computation {name!r}, window {start}: its aggregates cannot be encoded "
                f"({type(error).__name__}: {error})"
            ) from error
        state = WindowRow(self._folding.signature, start, end, keys, stored).to_bytes()
        return encode_row(state, {END: end}, {}, {}, None)

    def _replace(
        self, tablet: int, start: int, end: int, row: _Stored | None, data: bytes | None, keys: int
    ) -> None:
        """Replaces a window's row; None: deletes it."""
        tablets = self._tablets
        suffix = window_suffix(tablet, start, tablets.among)
        if row is None and data is None:
            return  # created and deleted within the epoch
        counters = tablets.counters(tablet)
        counters[WATERMARK_TIMERS] += keys - (row.keys if row is not None else 0)
        counters[BYTES] += len(data or b"") - (len(row.data) if row is not None else 0)
        if data is None:
            self.deletes.append(self._prefix + suffix)
            counters[ROWS] -= 1
            tablets.change(KIND_WATERMARK, suffix, end, None)
            return
        self.puts.append((self._prefix + suffix, data))
        if row is None:
            counters[ROWS] += 1
            tablets.change(KIND_WATERMARK, suffix, None, end)

    def _emit(self, keys: list[str], starts: Numbers, columns: list[Column]) -> None:
        """Produces the records of windows that end: one for each key, by start."""
        folding = self._folding
        changes = np.flatnonzero(np.diff(starts)) + 1
        bounds = [0, *changes.tolist(), len(starts)]
        spans = [
            Span(int(starts[first]), int(starts[first]) + folding.size, last - first)
            for first, last in itertools.pairwise(bounds)
        ]
        results = []
        for column, folded in zip(columns, folding.folds, strict=True):
            try:
                found = column.results(folded)
            except Exception as error:
                raise self._without_result(starts, keys, columns, error) from error
            try:
                results.append(found if isinstance(found, Results) else Results.of(found))
            except Exception as error:
                raise CodecError(
                    f"computation {self._context.node.name!r}, stream {folding.stream!r}: a value of the "
                    f"windows from {spans[0].start} to {spans[-1].end} cannot be encoded: {error}"
                ) from error
        output = self._context.outputs[folding.stream]
        output.windows = Emitted([folded.name for folded in folding.folds])
        output.windows.add(keys, spans, results)
        output.timestamps = output.windows.timestamps()
        output.keys = output.windows.keys
        self.report.produced_late = sum(span.records for span in spans if span.timestamp < self._low_before)

    def _without_result(
        self, starts: Numbers, keys: list[str], columns: list[Column], error: Exception
    ) -> UserCodeError:
        """The error of an aggregate at the end of a window, with its key."""
        context, folds = self._context, self._folding.folds
        for place, context.key in enumerate(keys):
            context.hand = Timer(END, int(starts[place]) + self._folding.size, WATERMARK)
            try:
                for column, folded in zip(columns, folds, strict=True):
                    column.cut(slice(place, place + 1)).results(folded)
            except Exception:
                break
        return user_error(context, error)

    def _look_for_hot(self, whole: Partials) -> None:
        """Finds the key with the most records, if it is hot."""
        if len(whole.records):
            most = int(whole.records.argmax())
            self.report.hot = hot_key(whole.keys[most], int(whole.records[most]), int(whole.records.sum()))


class _Reading:
    """Reads fields of records: as numbers, or one by one if that is impossible."""

    def __init__(
        self, context: HookContext, arrivals: Arrivals, piece: list[int], mine: Spread, before: int
    ) -> None:
        self._before = before
        self._context = context
        self._arrivals = arrivals
        self._piece = piece
        self._mine = mine
        self._values: list[Any] | None = None

    def column(self, folded: Folded, groups: Numbers, count: int) -> Column:
        if folded.read is None:
            return Column(counted(groups, count))
        values = self._read(folded)
        records = self._mine.records
        if folded.kind == "count":
            return Column(counted(groups[is_there(values)[records]], count))
        numbers = numbers_of(values)
        if numbers is not None:
            found = folded_numbers(folded.kind, groups, count, *(picked(part, records) for part in numbers))
            if found is not None:
                return found
        so_far = [folded.fold.create() for _ in range(count)]
        for record, group in zip(records.tolist(), groups.tolist(), strict=True):
            if values[record] is not None:
                time = self._arrivals.timestamps[self._piece[record]]
                try:
                    so_far[group] = folded.fold.fold(so_far[group], values[record], time)
                except Exception as error:
                    raise self._failed(record, error) from error
        return Column(so_far)

    def _read(self, folded: Folded) -> list[Any]:
        """The field of each record in a window; a user's function may raise anything."""
        assert folded.read is not None
        if self._values is None:
            self._values = [self._arrivals.value(position) for position in self._piece]
        found: list[Any] = [None] * len(self._piece)
        for record in dict.fromkeys(self._mine.records.tolist()):
            try:
                found[record] = folded.read(self._values[record])
            except Exception as error:
                raise self._failed(record, error) from error
        return found

    def _failed(self, record: int, error: Exception) -> UserCodeError:
        return _with_record(self._context, self._arrivals, self._piece[record], self._before, error)


def _with_record(
    context: HookContext, arrivals: Arrivals, position: int, before: int, error: Exception
) -> UserCodeError:
    """The error of a record that arrived."""
    value, time, key = arrivals.value(position), arrivals.timestamps[position], arrivals.keys[position]
    context.key = key
    context.hand = Record(value, time, key, arrivals.streams[position], arrivals.id(position), time < before)
    return user_error(context, error)
