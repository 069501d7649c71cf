"""Runs a computation with a folding: a row for each tablet and window, no hook for each record.

What comes is grouped by key and window, merged with the rows of the windows that it touches, and written
back; of windows that the watermark has reached the row is read, emitted as one batch, and deleted. See
``docs/mechanisms/columns.md``.
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
from millwheel.model.codec import pack
from millwheel.model.folding import Folded, Folding
from millwheel.model.keys import TABLETS, key_text
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, MIN_TIME, WATERMARK
from millwheel.model.timer import Timer
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import KIND_WATERMARK, row_prefix, tablets_of
from millwheel.store.row import encode_row, row_parts
from millwheel.store.windows import (
    END,
    OTHER_FORM,
    WindowRow,
    is_window,
    window_of,
    window_suffix,
    windows_in,
)
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext
from millwheel.worker.grouping import (
    BeforeTime,
    Column,
    Numbers,
    Partials,
    Spread,
    Unmerged,
    codes_of,
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
from millwheel.worker.inbox import Arrivals, SeenIds
from millwheel.worker.keyed import hot_key, user_error
from millwheel.worker.partials import Sent, received
from millwheel.worker.report import NodeReport
from millwheel.worker.timer_index import BYTES, ROWS, WATERMARK_TIMERS, Tablets
from millwheel.worker.window_values import json_values, packed_values

_PIECE = 256  # records between two looks at the clock, where a user's own function reads their fields


@dataclass
class _Stored:
    """The row of a window as the store has it."""

    data: bytes
    keys: int
    partials: Partials


class WindowRun:
    """One computation, one interval, one epoch. Changes are collected in ``puts`` and ``deletes``.

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
        """The positions of records that the budget did not reach."""
        self.report = NodeReport()
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.diverted: list[tuple[str, RecordBatch]] = []

    def take(self, folding: Folding, blobs: Iterable[bytes], *, fires: bool) -> None:
        """Says what the computation computes, and gives what came in the place of records.

        Without ``fires`` no window closes: of a sender's records for this epoch more are to come.
        """
        self._fires = fires
        self._folding = folding
        self._sent = list(map(received, blobs))

    def run(
        self,
        snapshot: Snapshot,
        arrivals: Arrivals,
        due_limit: int,
        order: random.Random | None,
        ordered: Any = None,
    ) -> None:
        """Takes up what came, in whatever order, and closes the windows that are due."""
        report, context = self.report, self._context
        due: list[bytes] = []
        if self._fires:
            due, report.more_due = self._tablets.due(snapshot, self._after, MIN_TIME, due_limit)
        if report.more_due:  # rows by key come first, also those that are not among the first in the index
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
                fires = fires and not report.more_due  # some of a window's keys may still have such rows
            self._merge(snapshot, arrivals, parts, due, due_limit, order, fires=fires)
        report.left = len(self.left)
        report.user = context.counts
        report.produced = sum(len(output) for output in context.outputs.values())
        for output in context.outputs.values():
            if output.timestamps and min(output.timestamps) < self._low_before:
                report.produced_late += sum(time < self._low_before for time in output.timestamps)

    def weights(self, weights: dict[int, list[int]]) -> dict[int, list[int]]:
        """Adds the records behind partial aggregates to the counts of records by tablet."""
        for sent in self._sent:
            counts = np.zeros(256, np.int64)
            np.add.at(counts, sent.partials.tablets, sent.partials.records)
            for tablet in np.flatnonzero(counts).tolist():
                weights.setdefault(tablet, [0, 0])[0] += int(counts[tablet])
        return weights

    def _grouped(self, arrivals: Arrivals) -> Iterator[Partials]:
        """The records that came one by one, as partial aggregates; past the budget, the rest is left."""
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
        names, codes = codes_of(keys)
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
        tablets = np.array(tablets_of(names), np.uint8)
        return Partials(names, tablets, counted(codes, len(names)), at, starts, columns)

    def _taken_over(self, snapshot: Snapshot, suffixes: list[bytes]) -> Iterator[Partials]:
        """Rows by key that an earlier version left: their windows, whose rows they become a part of."""
        rows = snapshot.get_each([self._prefix + suffix for suffix in suffixes])
        for suffix, data in zip(suffixes, rows, strict=True):
            assert data is not None, "the index has no entry without a row"
            state, timers, _, _, long_key = row_parts(data)
            key = long_key if long_key is not None else key_text(suffix[8:])
            windows = {} if state is None else windows_in(state, timers, self._folding)
            if windows is None:
                raise StoreError(OTHER_FORM.format(self._context.node.name))
            self.deletes.append(self._prefix + suffix)
            counters = self._tablets.counters(suffix[0] >> 2)
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
                np.array([suffix[0] >> 2], np.uint8),
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
        """Merges what came with the rows that it touches, and those with it that are due."""
        touched = {pair for part in parts for pair in windows_of(self._folding, part)}
        wanted = touched | {window_of(suffix) for suffix in due if fires and is_window(suffix)}
        stored = self._load(snapshot, sorted(wanted))
        if not parts and not stored:
            return
        try:
            whole = merged(self._folding, [*(row.partials for row in stored.values()), *parts])
        except Unmerged as error:
            raise self._failed(error, arrivals) from error.cause
        self._look_for_hot(whole)
        if not len(whole.places):
            return  # all of it came too late
        tablets = whole.tablets[whole.places]
        if order is not None:
            mixed = list(range(256))
            order.shuffle(mixed)
            arranged = np.lexsort((whole.starts, np.array(mixed)[tablets]))
        else:
            arranged = np.lexsort((whole.starts, tablets))
        tablets, starts = tablets[arranged], whole.starts[arranged]
        keys = [whole.keys[place] for place in whole.places[arranged].tolist()]
        columns = [column.pick(arranged) for column in whole.columns]
        changes = np.flatnonzero((np.diff(starts) != 0) | (np.diff(tablets) != 0)) + 1
        bounds = [0, *changes.tolist(), len(starts)]
        # Where the index has more than was read of it, what lies behind may have an earlier window's row.
        known = window_of(due[-1]) if self.report.more_due and due else (TABLETS, 0)
        fired = 0
        for first, last in itertools.pairwise(bounds):
            tablet, start = int(tablets[first]), int(starts[first])
            end = min(start + self._folding.size, MAX_TIME)
            mine = slice(first, last)
            row = stored.get((tablet, start))
            is_due = fires and end <= self._after
            if is_due and fired < due_limit and (tablet, start) <= known:
                fired += last - first
                self._emit(start, keys[mine], [column.cut(mine) for column in columns])
                self._replace(tablet, start, end, row, None, 0)
                continue
            self.report.more_due |= is_due
            if (tablet, start) in touched:
                data = self._encoded(start, end, keys[mine], [column.cut(mine) for column in columns])
                self._replace(tablet, start, end, row, data, last - first)
        self.report.timers += fired

    def _failed(self, error: Unmerged, arrivals: Arrivals) -> UserCodeError:
        """What could not be merged, with a record of the key that came in this epoch."""
        context = self._context
        for position, key in enumerate(arrivals.keys):
            if key == error.key:
                return _with_record(context, arrivals, position, self._before, error.cause)
        context.key, context.hand = error.key, None  # its sender has added up its records
        return user_error(context, error.cause)

    def _load(self, snapshot: Snapshot, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], _Stored]:
        """The rows of windows, of those that have one."""
        suffixes = [window_suffix(tablet, start) for tablet, start in pairs]
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
                np.full(count, pair[0], np.uint8),
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
        """Puts a window's row in the place of the one that was there; None: there is none any more."""
        suffix, tablets = window_suffix(tablet, start), self._tablets
        if row is None and data is None:
            return  # it came and went within the epoch
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

    def _emit(self, start: int, keys: list[str], columns: list[Column]) -> None:
        """Produces a window's records: one for each key."""
        folding = self._folding
        end = start + folding.size
        try:
            results = [c.results(folded) for c, folded in zip(columns, folding.folds, strict=True)]
        except Exception as error:
            raise self._without_result(end, keys, columns, error) from error
        output = self._context.outputs[folding.stream]
        lines = None if output.values else json_values(folding, start, keys, results)
        if lines is not None:
            if output.json is None:
                output.json, output.packed, output.own_json = [], False, True
            output.json += lines
        else:
            if output.json is not None:  # before this one all windows had a form in JSON
                output.values = list(map(pack, output.objects()))
                output.json, output.packed, output.own_json = None, True, False
            try:
                output.values += packed_values(folding, start, keys, results)
            except Exception as error:
                raise CodecError(
                    f"computation {self._context.node.name!r}, stream {folding.stream!r}: a value of the "
                    f"window that begins at {start} cannot be encoded: {error}"
                ) from error
        output.timestamps += [min(end - 1, MAX_TIME)] * len(keys)
        output.keys += keys  # type: ignore[operator]  # productions have keys

    def _without_result(
        self, end: int, keys: list[str], columns: list[Column], error: Exception
    ) -> UserCodeError:
        """What an aggregate raised at the end of a window, with the key that it was for."""
        context, folds = self._context, self._folding.folds
        context.hand = Timer(END, end, WATERMARK)
        for place, context.key in enumerate(keys):
            try:
                for column, folded in zip(columns, folds, strict=True):
                    column.cut(slice(place, place + 1)).results(folded)
            except Exception:
                break
        return user_error(context, error)

    def _look_for_hot(self, whole: Partials) -> None:
        """Finds the key with the most records, where it has a good part of them."""
        if len(whole.records):
            most = int(whole.records.argmax())
            self.report.hot = hot_key(whole.keys[most], int(whole.records[most]), int(whole.records.sum()))


class _Reading:
    """Reads fields of records: as numbers, or one by one where that cannot be."""

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
        """The field of each record that is in a window; a user's own function may raise anything."""
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
    """What went wrong with a record that came."""
    value, time, key = arrivals.value(position), arrivals.timestamps[position], arrivals.keys[position]
    context.key = key
    context.hand = Record(value, time, key, arrivals.streams[position], arrivals.id(position), time < before)
    return user_error(context, error)
