"""Runs a computation's hooks by key: records in arrival order, then due timers.

One key at a time and one hook at a time (4.1, Fig. 4). This is the hot path: everything that can be
done once for a step is done before the loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from millwheel.errors import UserCodeError
from millwheel.model.keys import key_text
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, WALL, WATERMARK
from millwheel.model.timer import Timer
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import (
    KIND_HOLD,
    KIND_WALL,
    KIND_WATERMARK,
    LONG,
    part_of,
    row_prefix,
    row_suffixes,
)
from millwheel.store.row import Times, encode_row, row_parts, row_version, with_version
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext, ReturnedValue, user_error
from millwheel.worker.in_order import NEVER, Ordered, next_time
from millwheel.worker.inbox import Arrivals
from millwheel.worker.rejected import Rejected
from millwheel.worker.report import NodeReport
from millwheel.worker.seen_ids import SeenIds
from millwheel.worker.timer_index import BYTES, ROWS, WATERMARK_TIMERS, Tablets

MOST_FIRINGS = 1_000_000  # of one key in one epoch: beyond, a timer that sets itself is endless

_NO_POSITIONS: list[int] = []

_HOT_SHARE = 20  # a key is hot from 1/20 of an interval's records


class KeyedRun:
    """One computation, interval and epoch; collects ``puts`` and ``deletes``."""

    def __init__(
        self,
        context: HookContext,
        number: int,
        before: int,
        after: int,
        low_before: int,
        now: int,
        seen: SeenIds,
        tablets: Tablets,
        budget: Budget,
        *,
        fires: bool = True,
        wall_bound: int = MAX_TIME,
    ) -> None:
        """Without ``fires`` no timer fires: a sender has more records for this epoch.

        Wall timers later than ``wall_bound`` do not fire either: records before them are left to the next
        epoch.
        """
        self._context = context
        self._fires = fires
        self._prefix = row_prefix(number)
        self._before = self._record_watermark = before
        self._after = after
        self._low_before = low_before
        self._now = now
        self._wall_until = min(now, wall_bound)
        self._seen = seen
        self._tablets = tablets
        self._budget = budget
        self.left: list[int] = []
        """The positions of records beyond the budget."""
        self.report = NodeReport()
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        divert = context.node.errors == "divert"
        computation = context.computation
        self._rejected = Rejected(context, self.report)
        self.diverted = self._rejected.diverted
        self._record_hook: Any = self._rejected.guarded_record if divert else computation.process_record
        self._timer_hook: Any = self._rejected.guarded_timer if divert else computation.process_timer
        self._version = computation.version

    def run(
        self,
        snapshot: Snapshot,
        arrivals: Arrivals,
        due_limit: int,
        order: random.Random | None,
        ordered: Ordered | None = None,
    ) -> None:
        """Runs every key with records or a due timer; if ``ordered``, with due records."""
        context, report = self._context, self.report
        due: list[bytes] = []
        if self._fires:
            due, report.more_due = self._tablets.due(snapshot, self._after, self._wall_until, due_limit)
        parts = [(part, keys) for part, keys in _with_due(arrivals.parts(), due) if part or keys]
        if not parts:
            return
        attributes = context.attributes
        attributes["now"] = self._now
        attributes["low_watermark"] = self._before
        attributes.pop("state", None)
        self._budget.begin()
        run_records, by_key = self._records_runner(arrivals, ordered), arrivals.by_key
        if ordered is not None:
            by_key = ordered.by_key
            attributes["low_watermark"] = self._record_watermark = self._after
        prefix = self._prefix
        prepared: list[tuple[dict[bytes, str | None], dict[str, list[int]]]] = []
        for part, due_keys in parts:
            positions = by_key(part)
            self._look_for_hot(positions)
            # In order of arrival, the same at every attempt: the objects of a record were created together,
            # and are adjacent in memory.
            keys: dict[bytes, str | None] = dict(zip(row_suffixes(list(positions)), positions, strict=True))
            for suffix in due_keys:
                keys.setdefault(suffix, None)
            if order is not None:
                keys = _shuffled(keys, order)
            prepared.append((keys, positions))
        # In one call: with a store on the network, reading a tablet is a round trip.
        rows = iter(snapshot.get_each([prefix + suffix for keys, _ in prepared for suffix in keys]))
        for keys, positions in prepared:
            try:
                self._run_keys(keys, list(islice(rows, len(keys))), positions, run_records)
            except UserCodeError:
                raise
            except Exception as error:
                raise user_error(context, error) from error
        if report.hot:
            report.hot = hot_key(report.hot[0], report.hot[1], len(arrivals.keys))
        self.left.sort()  # in order of arrival
        report.left = len(self.left)
        report.records += len(arrivals.keys) - report.left - report.duplicates
        if ordered is not None:
            report.records -= len(ordered.waiting)
        report.user = context.counts
        report.produced = sum(len(output) for output in context.outputs.values())
        low = self._low_before
        for output in context.outputs.values():
            if output.timestamps and min(output.timestamps) < low:
                report.produced_late += sum(time < low for time in output.timestamps)

    def weights(self, weights: dict[int, list[int]]) -> dict[int, list[int]]:
        """The counts of records by tablet: those that arrived."""
        return weights

    def _run_keys(
        self,
        keys: dict[bytes, str | None],
        rows: list[bytes | None],
        positions: dict[str, list[int]],
        run_records: Callable[[str, list[int]], int],
    ) -> None:
        """By key: loads its row, runs records and due timers, collects the changes.

        A microsecond here is a microsecond for each key of each epoch, hence one long loop over locals.
        """
        context, tablets, budget = self._context, self._tablets, self._budget
        attributes, begin, encoded_state = context.attributes, context.begin, context.encoded
        prefix, after, now, fires = self._prefix, self._after, self._wall_until, self._fires
        puts, deletes = self.puts, self.deletes
        versioned, version = self._version != 1, 1
        for (suffix, key), row in zip(keys.items(), rows, strict=True):
            mine = _NO_POSITIONS if key is None else positions[key]
            if budget.over:
                self.left += mine
                if not mine:
                    self.report.more_due = True
                continue
            first: int | None = None
            count = 0
            others = None  # wall timers and holds, which few keys have
            raw, timers, wall, holds, long_key = row_parts(row)
            if timers:
                count = len(timers)
                first = min(timers.values())
            if wall or holds:
                others = _others(wall, holds)
            if key is None:
                key = long_key if long_key is not None else key_text(suffix[8:])
            if versioned:
                context.stored_version = version = row_version(row)
                if version != self._version:
                    attributes.pop("state", None)  # so that it is migrated inside a hook
            begin(key, raw, timers, wall, holds)

            reached = run_records(key, mine) if mine else 0
            earliest = min(timers.values()) if timers else None
            if reached < len(mine):
                self.left += mine[reached:]  # its timers come after its records
            elif fires and (
                (earliest is not None and earliest <= after) or (wall and min(wall.values()) <= now)
            ):
                self._fire(timers, wall)
                earliest = min(timers.values()) if timers else None

            state = encoded_state() if context.deleted or "state" in attributes else raw
            if earliest != first:
                tablets.change(KIND_WATERMARK, suffix, first, earliest)
            if len(timers) != count:
                tablets.of_row(suffix)[WATERMARK_TIMERS] += len(timers) - count
            if wall or holds or others is not None:
                self._index_others(suffix, others, _others(wall, holds))
            if state is None and not timers and not wall and not holds:
                if row is not None:
                    deletes.append(prefix + suffix)
                    counters = tablets.of_row(suffix)
                    counters[ROWS] -= 1
                    counters[BYTES] -= len(row)
                continue
            encoded = encode_row(state, timers, wall, holds, key if suffix[8:9] == LONG else None)
            if versioned and state is not None:
                used = context.deleted or "state" in attributes
                encoded = with_version(encoded, self._version if used else version)
            if encoded != row:
                puts.append((prefix + suffix, encoded))
                counters = tablets.of_row(suffix)
                if row is None:
                    counters[ROWS] += 1
                    counters[BYTES] += len(encoded)
                else:
                    counters[BYTES] += len(encoded) - len(row)

    def _look_for_hot(self, positions: dict[str, list[int]]) -> None:
        """Keeps the key with the most records so far."""
        most = max(map(len, positions.values()), default=0)
        if most > max(1, self.report.hot[1] if self.report.hot else 0):
            hot = next(key for key, mine in positions.items() if len(mine) == most)
            self.report.hot = [hot, most]

    def _index_others(self, suffix: bytes, old: _Others | None, new: _Others) -> None:
        """Updates the index by time and the counters for a key's wall timers and holds."""
        counters = self._tablets.of_row(suffix)
        for kind, (was, had), (is_now, has) in zip(
            (KIND_WALL, KIND_HOLD), old or _NO_OTHERS, new, strict=True
        ):
            if was != is_now:
                self._tablets.change(kind, suffix, was, is_now)
            counters[WATERMARK_TIMERS + kind] += has - had

    def _without_duplicates(
        self, digests: list[bytes | None], streams: list[str], piece: list[int]
    ) -> list[int]:
        """Removes records with seen IDs; marks the others as seen."""
        fresh = []
        for position in piece:
            digest = digests[position]
            if digest is None or self._seen.is_new(streams[position], digest):
                fresh.append(position)
        self.report.duplicates += len(piece) - len(fresh)
        return fresh

    def _records_runner(self, arrivals: Arrivals, ordered: Ordered | None) -> Callable[[str, list[int]], int]:
        """Makes a function that runs a key's records within the budget; returns how many.

        Duplicates are skipped; if ordered, timers fire between the records. It is a closure, so that what is
        equal for all keys is computed once.
        """
        context, budget, hook, before = self._context, self._budget, self._record_hook, self._before
        takes_late, fire, now = self._rejected.takes_late, self._fire, self._wall_until
        failed = self._rejected.failed_record
        if context.node.combine is not None:
            if ordered is not None:
                return ordered.combining_runner(context, budget, failed, fire, now)
            from millwheel.worker.combine import runner  # few pipelines need it

            return runner(context, arrivals, before, budget, self._without_duplicates, takes_late, failed)
        batch, streams = arrivals.batch, arrivals.streams
        timestamps, values, json, ids = batch.timestamps, batch.values, batch.json, batch.ids
        digests = arrivals.digests
        in_order = ordered is not None
        if ordered is not None:  # duplicates and late records are removed already
            digests, late = None, ordered.late
            if arrivals.old_ids:
                ids = list(map(arrivals.id, range(len(batch))))
        elif min(timestamps, default=before) < before:
            late = {position for position, time in enumerate(timestamps) if time < before}
        else:
            late = set()
        new = Record.__new__

        def run_records(key: str, mine: list[int]) -> int:
            timers, wall = context.timers, context.wall
            first = next_time(timers, wall, now) if in_order else NEVER
            context.changed = False
            reached = 0
            while reached < len(mine):
                if budget.left <= 0 and budget.is_over():
                    break
                whole = not reached and len(mine) <= budget.left
                piece = mine if whole else mine[reached : reached + budget.left]
                reached += len(piece)
                budget.left -= len(piece)
                if digests is not None:
                    piece = self._without_duplicates(digests, streams, piece)
                for position in piece:
                    timestamp = timestamps[position]
                    if first <= timestamp:
                        fire(timers, wall, timestamp)
                        first = next_time(timers, wall, now)
                        context.changed = False
                    record = new(Record)  # skips attributes that most hooks do not read
                    if json is None:
                        record.value = values[position]
                    else:
                        record._json = json[position]
                    record.key = key
                    record.stream = streams[position]
                    record.timestamp = timestamp
                    if ids is not None:
                        record.id = ids[position]
                    if position in late:
                        record.late = True
                        if not in_order and not takes_late(record):
                            continue
                    context.hand = record
                    if (result := hook(record)) is not None:
                        raise ReturnedValue(result)
                    if in_order and context.changed:
                        first = next_time(timers, wall, now)
                        context.changed = False
            return reached

        return run_records

    def admit(self, ordered: Ordered, old: Iterable[range]) -> None:
        """Finds duplicates and late records among new records, before they are buffered."""
        ordered.admit(old, self._without_duplicates, self._rejected.takes_late)

    def _fire(self, timers: Times, wall: Times, bound: int = MAX_TIME) -> None:
        """Fires the due timers up to a time by (time, tag), new ones included."""
        context = self._context
        attributes = context.attributes
        hook = self._timer_hook
        new = tuple.__new__
        fired = 0
        attributes["low_watermark"] = self._after
        while due := self._due(timers, wall, bound):
            context.changed = False
            for time, tag in due:
                if tag in timers:
                    del timers[tag]
                    timer = new(Timer, (tag, time, WATERMARK))
                else:
                    del wall[tag]
                    timer = new(Timer, (tag, time, WALL))
                context.hand = timer
                fired += 1
                if (result := hook(timer)) is not None:
                    raise ReturnedValue(result)
                if context.changed:
                    break
            else:
                break
            if fired > MOST_FIRINGS:
                raise RuntimeError(
                    f"timers of this key fired {fired:,} times in one epoch: a process_timer that always "
                    "sets the next timer never ends when the watermark is at its end; "
                    "check self.low_watermark before setting it"
                )
        self.report.timers += fired
        attributes["low_watermark"] = self._record_watermark

    def _due(self, timers: Times, wall: Times, bound: int) -> list[tuple[int, str]]:
        after, now = min(self._after, bound), min(self._wall_until, bound)
        due = [(time, tag) for tag, time in timers.items() if time <= after]
        if wall:
            due += [(time, tag) for tag, time in wall.items() if time <= now]
        due.sort()
        return due


def hot_key(key: str, records: int, total: int) -> list[Any]:
    """The key with the most records, if it is hot; otherwise empty."""
    return [key, records] if records > 1 and records * _HOT_SHARE >= total else []


_Others = tuple[tuple[int | None, int], tuple[int | None, int]]
"""Of a key's wall timers, and of its holds: the earliest, and the number."""

_NO_OTHERS: _Others = ((None, 0), (None, 0))


def _others(wall: Times, holds: Times) -> _Others:
    return (
        (min(wall.values(), default=None), len(wall)),
        (min(holds.values(), default=None), len(holds)),
    )


def _with_due(parts: dict[int | None, range], due: list[bytes]) -> Iterator[tuple[range, list[bytes]]]:
    """Parts of the arrivals, each with its keys that have a due timer."""
    if len(parts) == 1:
        yield parts[None], due
        return
    by_part: dict[int | None, list[bytes]] = {}
    for suffix in due:
        by_part.setdefault(part_of(suffix), []).append(suffix)
    for part, positions in parts.items():
        yield positions, by_part.get(part, [])


def _shuffled(keys: dict[bytes, str | None], order: random.Random) -> dict[bytes, str | None]:
    suffixes = list(keys)
    order.shuffle(suffixes)
    return {suffix: keys[suffix] for suffix in suffixes}
