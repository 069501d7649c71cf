"""Runs a computation's hooks, key by key: its records in arrival order, then its due timers in order.

One key at a time and one hook at a time (4.1, Fig. 4). This is the hot path: everything that can be
done once for a step is done before the loop.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from millwheel.errors import MillWheelError, UserCodeError, shorten
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import key_text
from millwheel.model.pipeline import ERRORS_SUFFIX, LATE_SUFFIX
from millwheel.model.record import Record, RecordId
from millwheel.model.time import WALL, WATERMARK, Clock
from millwheel.model.timer import Timer
from millwheel.store.base import Snapshot
from millwheel.store.layout import KIND_HOLD, KIND_WALL, KIND_WATERMARK, is_long, row_prefix, row_suffixes
from millwheel.store.row import Holds, Timers, decode_row, encode_row
from millwheel.worker.arrivals import Arrivals, Part, SeenIds
from millwheel.worker.context import HookContext
from millwheel.worker.envelope import Columns
from millwheel.worker.report import NodeReport
from millwheel.worker.route import diverted
from millwheel.worker.tablets import BYTES, ROWS, WATERMARK_TIMERS, Earliest, Tablets

_CLOCKS: tuple[Clock, Clock] = (WATERMARK, WALL)

_MOST_FIRINGS = 1_000_000  # of one key in one epoch: past this, a timer that sets itself never ends

_NO_TIMES = (None, None, None)


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
    ) -> None:
        self._context = context
        self._prefix = row_prefix(number)
        self._before = before
        self._after = after
        self._low_before = low_before
        self._now = now
        self._seen = seen
        self._tablets = tablets
        self.report = NodeReport()
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.diverted: list[tuple[str, Columns]] = []
        divert = context.node.errors == "divert"
        computation = context.computation
        self._record_hook: Any = self._guarded_record if divert else computation.process_record
        self._timer_hook: Any = self._guarded_timer if divert else computation.process_timer
        self._keep_late = context.node.late == "deliver"
        self._hand: Record | Timer | None = None

    def run(
        self, snapshot: Snapshot, arrivals: Arrivals, due_limit: int, order: random.Random | None
    ) -> None:
        """Every key that has records or a due timer."""
        context, report = self._context, self.report
        suffixes: dict[bytes, str | None] = dict(zip(row_suffixes(list(arrivals)), arrivals, strict=True))
        due, report.more_due = self._tablets.due(snapshot, self._after, self._now, due_limit)
        for suffix in due:
            suffixes.setdefault(suffix, None)
        if not suffixes:
            return
        prefix = self._prefix
        order_of_keys = sorted(suffixes)  # neighbours in the store, and the same order at every attempt
        if order is not None:
            order.shuffle(order_of_keys)
        rows = snapshot.get_each([prefix + suffix for suffix in order_of_keys])
        attributes = context.attributes
        attributes["now"] = self._now
        attributes["low_watermark"] = self._before
        attributes.pop("state", None)
        nothing: list[Part] = []
        try:
            for suffix, row in zip(order_of_keys, rows, strict=True):
                key = suffixes[suffix]
                self._run_key(suffix, key, row, nothing if key is None else arrivals[key])
        except UserCodeError:
            raise
        except Exception as error:
            raise self._user_error(error) from error
        report.user = context.counts
        report.produced = sum(len(output.keys) for output in context.outputs.values())
        low = self._low_before
        for output in context.outputs.values():
            if output.timestamps and min(output.timestamps) < low:
                report.produced_late += sum(time < low for time in output.timestamps)

    def _run_key(self, suffix: bytes, key: str | None, row: bytes | None, parts: list[Part]) -> None:
        context = self._context
        hook = self._record_hook
        before = self._before
        new = tuple.__new__
        raw: bytes | None = None
        timers: Timers = {}
        holds: Holds = {}
        old_times: Earliest = _NO_TIMES
        old_counts = (0, 0, 0)
        long_key: str | None = None
        if row is not None:
            if row[0] == 0:
                raw = row[1:]
            else:
                raw, timers, holds, long_key = decode_row(row)
                old_times = _earliest(timers, holds)
                old_counts = _census(timers, holds)
        if key is None:
            key = long_key if long_key is not None else key_text(suffix[8:])
        context.begin(key, raw, timers, holds)

        for stream, timestamps, values, ids, digests, start, end in parts:
            if ids is not None:
                self._run_identified(key, stream, timestamps, values, ids, digests, start, end)
                continue
            self.report.records += end - start
            for index in range(start, end):
                timestamp = timestamps[index]
                late = timestamp < before
                if late and not self._takes_late(key, timestamp, values[index]):
                    continue
                context.timestamp = timestamp
                self._hand = record = new(Record, (values[index], timestamp, key, stream, None, late))
                hook(record)
        if timers:
            self._fire(timers)

        state = context.encoded() if context.deleted or "state" in context.attributes else raw
        if timers or holds or old_times is not _NO_TIMES:
            self._index(suffix, timers, holds, old_times, old_counts)
            plain = not timers and not holds
        else:
            plain = True
        if plain and state is None:
            if row is not None:
                self.deletes.append(self._prefix + suffix)
                counters = self._tablets.counters(suffix[0] >> 2)
                counters[ROWS] -= 1
                counters[BYTES] -= len(row)
            return
        if plain and state is not None and not is_long(suffix):
            encoded = b"\x00" + state
        else:
            encoded = encode_row(state, timers, holds, key if is_long(suffix) else None)
        if encoded != row:
            self.puts.append((self._prefix + suffix, encoded))
            counters = self._tablets.counters(suffix[0] >> 2)
            if row is None:
                counters[ROWS] += 1
                counters[BYTES] += len(encoded)
            else:
                counters[BYTES] += len(encoded) - len(row)

    def _index(
        self,
        suffix: bytes,
        timers: Timers,
        holds: Holds,
        old_times: Earliest,
        old_counts: tuple[int, int, int],
    ) -> None:
        """Brings the index by time and the counters up to a key's timers and holds."""
        new_times = _earliest(timers, holds)
        if new_times != old_times:
            self._tablets.change(suffix, old_times, new_times)
        new_counts = _census(timers, holds)
        if new_counts != old_counts:
            counters = self._tablets.counters(suffix[0] >> 2)
            for kind in (KIND_WATERMARK, KIND_WALL, KIND_HOLD):
                counters[WATERMARK_TIMERS + kind] += new_counts[kind] - old_counts[kind]

    def _run_identified(
        self,
        key: str,
        stream: str,
        timestamps: list[int],
        values: list[Any],
        ids: list[RecordId | None],
        digests: list[bytes | None] | None,
        start: int,
        end: int,
    ) -> None:
        """Records with IDs: those that were seen are duplicates."""
        context, report = self._context, self.report
        for index in range(start, end):
            if digests is not None:
                digest = digests[index - start]
                if digest is not None and not self._seen.is_new(stream, digest):
                    report.duplicates += 1
                    continue
            timestamp = timestamps[index]
            late = timestamp < self._before
            report.records += 1
            if late and not self._takes_late(key, timestamp, values[index]):
                continue
            context.timestamp = timestamp
            self._hand = record = Record(values[index], timestamp, key, stream, ids[index], late)
            self._record_hook(record)

    def _takes_late(self, key: str, timestamp: int, value: Any) -> bool:
        """Whether a late record is delivered; otherwise it is put aside."""
        report = self.report
        report.late += 1
        if self._keep_late:
            return True
        report.records -= 1
        self._put_aside(key, timestamp, value)
        return False

    def _put_aside(self, key: str, timestamp: int, value: Any) -> None:
        """A late record that is not delivered."""
        node = self._context.node
        if node.late == "drop":
            self.report.dropped += 1
            return
        self.report.diverted += 1
        late = Columns([key], [timestamp], [pack(value)], None, True)
        self.diverted.append((node.name + LATE_SUFFIX, late))

    def _fire(self, timers: Timers) -> None:
        """The due timers, ordered by (time, tag), those that are set meanwhile in their place."""
        after, now = self._after, self._now
        context, report = self._context, self.report
        attributes = context.attributes
        hook = self._timer_hook
        limits = (after, now)
        fired = 0
        due = sorted((time, tag) for tag, (time, kind) in timers.items() if time <= limits[kind])
        if not due:
            return
        attributes["low_watermark"] = after
        while due:
            context.changed = False
            for time, tag in due:
                kind = timers.pop(tag)[1]
                context.timestamp = time
                self._hand = timer = Timer(tag, time, _CLOCKS[kind])
                fired += 1
                hook(timer)
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
            due = sorted((time, tag) for tag, (time, kind) in timers.items() if time <= limits[kind])
        report.timers += fired
        attributes["low_watermark"] = self._before

    def _guarded_record(self, record: Record) -> None:
        context = self._context
        saved = context.save()
        value = pack(record.value)  # as it came: the hook may change it before it raises
        try:
            context.computation.process_record(record)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            self.report.records -= 1
            self._diverted(record._replace(value=unpack(value)), error)

    def _guarded_timer(self, timer: Timer) -> None:
        context = self._context
        saved = context.save()
        try:
            context.computation.process_timer(timer)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            record = Record({"tag": timer.tag, "clock": timer.clock}, timer.timestamp, context.key, "timers")
            self._diverted(record, error)

    def _diverted(self, record: Record, error: Exception) -> None:
        self.report.failed += 1
        message = f"{type(error).__name__}: {error}"
        columns = diverted(record, message, error)
        self.diverted.append((self._context.node.name + ERRORS_SUFFIX, columns))

    def _user_error(self, error: Exception) -> UserCodeError:
        name, key, hand = self._context.node.name, self._context.key, self._hand
        if isinstance(error, MillWheelError):
            message = str(error)  # ours: it says where it happened
        else:
            where = "process_timer" if isinstance(hand, Timer) else "process_record"
            message = (
                f"computation {name!r}, key {shorten(key, 80)}: {where} raised "
                f"{type(error).__name__}: {error}; it had {shorten(hand)}"
            )
        return UserCodeError(
            message,
            computation=name,
            key=key,
            record=hand,
            cause=error,
            details="".join(traceback.format_exception(error)),
        )


def _earliest(timers: Timers, holds: Holds) -> Earliest:
    """A key's earliest watermark timer, wall timer and hold."""
    watermark = wall = None
    for time, kind in timers.values():
        if kind == KIND_WATERMARK:
            if watermark is None or time < watermark:
                watermark = time
        elif wall is None or time < wall:
            wall = time
    return watermark, wall, min(holds.values()) if holds else None


def _census(timers: Timers, holds: Holds) -> tuple[int, int, int]:
    """How many watermark timers, wall timers and holds a key has."""
    wall = sum(kind for _, kind in timers.values())
    return len(timers) - wall, wall, len(holds)
