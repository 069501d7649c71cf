"""Runs a computation's hooks, key by key: its records in arrival order, then its due timers in order.

One key at a time and one hook at a time (4.1, Fig. 4). This is the hot path: everything that can be
done once for a step is done before the loop.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from millwheel.errors import MillWheelError, UserCodeError, shorten
from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import key_text
from millwheel.model.pipeline import ERRORS_SUFFIX, LATE_SUFFIX
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, WALL, WATERMARK
from millwheel.model.timer import Timer
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import KIND_HOLD, KIND_WALL, KIND_WATERMARK, LONG, row_prefix, row_suffixes
from millwheel.store.row import Times, encode_row, row_parts, row_version, with_version
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext, ReturnedValue
from millwheel.worker.in_order import NEVER, Ordered, next_time
from millwheel.worker.inbox import Arrivals, SeenIds
from millwheel.worker.report import NodeReport
from millwheel.worker.route import diverted
from millwheel.worker.timer_index import BYTES, ROWS, WATERMARK_TIMERS, Tablets

_MOST_FIRINGS = 1_000_000  # of one key in one epoch: past this, a timer that sets itself never ends

_NO_POSITIONS: list[int] = []

_HOT_SHARE = 20  # a key with less than a twentieth of an interval's records makes it no hotter than others


class KeyedRun:
    """One computation, one interval, one epoch. Changes are collected in ``puts`` and ``deletes``."""

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
        """Without ``fires`` no timer does: of a sender's records for this epoch more are to come.

        Wall timers behind ``wall_bound`` do not fire either: records before them are left to the next epoch.
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
        """The positions of records that the budget did not reach."""
        self.report = NodeReport()
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.diverted: list[tuple[str, RecordBatch]] = []
        divert = context.node.errors == "divert"
        computation = context.computation
        self._own_record_hook: Any = computation.process_record
        self._own_timer_hook: Any = computation.process_timer
        self._record_hook = self._guarded_record if divert else self._own_record_hook
        self._timer_hook = self._guarded_timer if divert else self._own_timer_hook
        self._keep_late = context.node.late == "deliver"
        self._accepts_late: Callable[[Record], bool] | None = getattr(computation, "_accepts_late", None)
        self._version = computation.version

    def run(
        self,
        snapshot: Snapshot,
        arrivals: Arrivals,
        due_limit: int,
        order: random.Random | None,
        ordered: Ordered | None = None,
    ) -> None:
        """Every key that has records or a due timer; where they are ``ordered``, that are due."""
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
            # As they came, which is the same order at every attempt: what belongs to a record was made
            # together, and lies together in memory.
            keys: dict[bytes, str | None] = dict(zip(row_suffixes(list(positions)), positions, strict=True))
            for suffix in due_keys:
                keys.setdefault(suffix, None)
            if order is not None:
                keys = _shuffled(keys, order)
            prepared.append((keys, positions))
        # All at once: of a store on the network, to read a tablet is a round trip.
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
        self.left.sort()  # as they came
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
        """The counts of records by tablet, which are those of what arrived."""
        return weights

    def _run_keys(
        self,
        keys: dict[bytes, str | None],
        rows: list[bytes | None],
        positions: dict[str, list[int]],
        run_records: Callable[[str, list[int]], int],
    ) -> None:
        """Key by key: its row, its records, its due timers, and what of the row has changed.

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
                    attributes.pop("state", None)  # so that it is migrated inside a hook, if at all
            begin(key, raw, timers, wall, holds)

            reached = run_records(key, mine) if mine else 0
            earliest = min(timers.values()) if timers else None
            if reached < len(mine):
                self.left += mine[reached:]  # its timers come behind its records
            elif fires and (
                (earliest is not None and earliest <= after) or (wall and min(wall.values()) <= now)
            ):
                self._fire(timers, wall)
                earliest = min(timers.values()) if timers else None

            state = encoded_state() if context.deleted or "state" in attributes else raw
            if earliest != first:
                tablets.change(KIND_WATERMARK, suffix, first, earliest)
            if len(timers) != count:
                tablets.counters(suffix[0] >> 2)[WATERMARK_TIMERS] += len(timers) - count
            if wall or holds or others is not None:
                self._index_others(suffix, others, _others(wall, holds))
            if state is None and not timers and not wall and not holds:
                if row is not None:
                    deletes.append(prefix + suffix)
                    counters = tablets.counters(suffix[0] >> 2)
                    counters[ROWS] -= 1
                    counters[BYTES] -= len(row)
                continue
            encoded = encode_row(state, timers, wall, holds, key if suffix[8:9] == LONG else None)
            if versioned and state is not None:
                used = context.deleted or "state" in attributes
                encoded = with_version(encoded, self._version if used else version)
            if encoded != row:
                puts.append((prefix + suffix, encoded))
                counters = tablets.counters(suffix[0] >> 2)
                if row is None:
                    counters[ROWS] += 1
                    counters[BYTES] += len(encoded)
                else:
                    counters[BYTES] += len(encoded) - len(row)

    def _look_for_hot(self, positions: dict[str, list[int]]) -> None:
        """Keeps the key with the most records that was seen so far."""
        most = max(map(len, positions.values()), default=0)
        if most > max(1, self.report.hot[1] if self.report.hot else 0):
            hot = next(key for key, mine in positions.items() if len(mine) == most)
            self.report.hot = [hot, most]

    def _index_others(self, suffix: bytes, old: _Others | None, new: _Others) -> None:
        """Brings the index by time and the counters up to a key's wall timers and holds."""
        counters = self._tablets.counters(suffix[0] >> 2)
        for kind, (was, had), (is_now, has) in zip(
            (KIND_WALL, KIND_HOLD), old or _NO_OTHERS, new, strict=True
        ):
            if was != is_now:
                self._tablets.change(kind, suffix, was, is_now)
            counters[WATERMARK_TIMERS + kind] += has - had

    def _without_duplicates(
        self, digests: list[bytes | None], streams: list[str], piece: list[int]
    ) -> list[int]:
        """Those of which the ID was not seen; from here on it was."""
        fresh = []
        for position in piece:
            digest = digests[position]
            if digest is None or self._seen.is_new(streams[position], digest):
                fresh.append(position)
        self.report.duplicates += len(piece) - len(fresh)
        return fresh

    def _records_runner(self, arrivals: Arrivals, ordered: Ordered | None) -> Callable[[str, list[int]], int]:
        """Runs a key's records, but for duplicates, as far as the budget goes; returns how many it reached.

        Where they are ordered, its timers fire between them. A function of its own, so that what is the same
        for all keys is looked up once.
        """
        context, budget, hook, before = self._context, self._budget, self._record_hook, self._before
        takes_late, fire, now = self._takes_late, self._fire, self._wall_until
        if context.node.combine is not None:
            if ordered is not None:
                return ordered.combining_runner(context, budget, self._failed_record, fire, now)
            from millwheel.worker.combine import runner  # which few pipelines need

            return runner(
                context, arrivals, before, budget, self._without_duplicates, takes_late, self._failed_record
            )
        batch, streams = arrivals.batch, arrivals.streams
        timestamps, values, json, ids = batch.timestamps, batch.values, batch.json, batch.ids
        digests = arrivals.digests
        in_order = ordered is not None
        if ordered is not None:  # duplicates and what comes too late are out already
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
                    record = new(Record)  # its constructor would set what most hooks do not ask for
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
        """Finds the duplicates and the late ones among records that may have to wait: when they come."""
        ordered.admit(old, self._without_duplicates, self._takes_late)

    def _takes_late(self, record: Record) -> bool:
        """Whether a late record is delivered; otherwise it is put aside."""
        report = self.report
        report.late += 1
        if self._keep_late or (self._accepts_late is not None and self._accepts_late(record)):
            return True
        report.records -= 1
        node = self._context.node
        if node.late == "drop":
            report.dropped += 1
        else:
            report.diverted += 1
            late = RecordBatch([record.timestamp], [pack(record.value)], keys=[record.key], packed=True)
            self.diverted.append((node.name + LATE_SUFFIX, late))
        return False

    def _fire(self, timers: Times, wall: Times, bound: int = MAX_TIME) -> None:
        """The due timers up to a time, ordered by (time, tag), those set meanwhile in their place."""
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
            if fired > _MOST_FIRINGS:
                raise RuntimeError(
                    f"timers of this key fired {fired:,} times in one epoch: a process_timer that always "
                    "sets the next timer never ends when the watermark is at its end; "
                    "look at self.low_watermark before setting it"
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

    def _guarded_record(self, record: Record) -> None:
        context = self._context
        saved = context.save()
        value = pack(record.value)  # as it came: the hook may change it before it raises
        try:
            if (result := self._own_record_hook(record)) is not None:
                raise ReturnedValue(result)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            self._failed_record(record.with_value(unpack(value)), error)

    def _guarded_timer(self, timer: Timer) -> None:
        context = self._context
        saved = context.save()
        try:
            if (result := self._own_timer_hook(timer)) is not None:
                raise ReturnedValue(result)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            record = Record({"tag": timer.tag, "clock": timer.clock}, timer.timestamp, context.key, "timers")
            self._diverted(record, error)

    def _failed_record(self, record: Record, error: Exception) -> None:
        self.report.records -= 1
        self._diverted(record, error)

    def _diverted(self, record: Record, error: Exception) -> None:
        self.report.failed += 1
        message = f"{type(error).__name__}: {error}"
        columns = diverted(record, message, error)
        self.diverted.append((self._context.node.name + ERRORS_SUFFIX, columns))


def hot_key(key: str, records: int, total: int) -> list[Any]:
    """The key with the most records, where it has a good part of an interval's; otherwise nothing."""
    return [key, records] if records > 1 and records * _HOT_SHARE >= total else []


def user_error(context: HookContext, error: Exception) -> UserCodeError:
    """What a hook raised, with the computation, the key and the record or timer in hand."""
    name, key, hand = context.node.name, context.key, context.hand
    if isinstance(error, MillWheelError):
        message = str(error)  # ours: it says where it happened
    else:
        where = "process_timer" if isinstance(hand, Timer) else "process_record"
        raised = "" if isinstance(error, ReturnedValue) else f"raised {type(error).__name__}: "
        message = f"computation {name!r}, key {shorten(key, 80)}: {where} {raised}{error}" + (
            f"; it had {shorten(hand)}" if hand is not None else ""
        )
    return UserCodeError(
        message,
        computation=name,
        key=key,
        record=hand,
        cause=error,
        details="".join(traceback.format_exception(error)),
    )


_Others = tuple[tuple[int | None, int], tuple[int | None, int]]
"""Of a key's wall timers, and of its holds: the earliest, and how many there are."""

_NO_OTHERS: _Others = ((None, 0), (None, 0))


def _others(wall: Times, holds: Times) -> _Others:
    return (
        (min(wall.values(), default=None), len(wall)),
        (min(holds.values(), default=None), len(holds)),
    )


def _with_due(parts: dict[int | None, range], due: list[bytes]) -> Iterator[tuple[range, list[bytes]]]:
    """Parts of the arrivals, each with the keys of its tablets that have a due timer."""
    if len(parts) == 1:
        yield parts[None], due
        return
    by_tablet: dict[int | None, list[bytes]] = {}
    for suffix in due:
        by_tablet.setdefault(suffix[0] >> 2, []).append(suffix)
    for tablet, positions in parts.items():
        yield positions, by_tablet.get(tablet, [])


def _shuffled(keys: dict[bytes, str | None], order: random.Random) -> dict[bytes, str | None]:
    suffixes = list(keys)
    order.shuffle(suffixes)
    return {suffix: keys[suffix] for suffix in suffixes}
