"""The computation of a join: pairs of records of one key that are near in time.

Both sides of a key are kept in order of time, each record until the input watermark shows that no partner can
arrive, and then until the next record of its key comes, or the last one expires. A pair is emitted when the
second of the two arrives. A record that is emitted without a partner keeps its timestamp, so the key holds
the low watermark at the oldest one that has none yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from millwheel.model.computation import Computation
from millwheel.model.record import Record
from millwheel.model.state_form import StateForm
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.model.timer import Timer

_EXPIRY = "expiry"

Row = list[Any]
"""A stored record: timestamp, value, whether it has had a partner."""


class Join(Computation):
    """State is [left rows, right rows], each in order of time."""

    def __init__(self, name: str, right: str, before: int, after: int, how: str) -> None:
        self._name = name
        self._right = right
        # Relative to a record's time: the oldest and the newest time of a partner on the other side.
        self._reach = ((-before, after), (-after, before))
        self._outer = (how in ("left", "outer"), how in ("right", "outer"))
        self._holds = any(self._outer)
        self._state_form = StateForm("a join")

    def initial_state(self) -> list[list[Row]]:
        """Nothing on either side."""
        return [[], []]

    def process_record(self, record: Record) -> None:
        """Pairs a record with the buffered ones of the other side, and buffers it."""
        side = int(record.stream == self._right)
        state = self.state
        mine, others = state[side], state[1 - side]
        time = record.timestamp
        oldest, newest = self._reach[side]
        if mine or others:
            self._prune(state)
        first = bisect_left(others, time + oldest, key=_time)
        last = bisect_right(others, time + newest, key=_time)
        row = [time, record.value, last > first]
        for other in others[first:last]:
            other[2] = True
            self._emit(row, other, side)
        if not mine or mine[-1][0] <= time:
            mine.append(row)
        else:
            mine.insert(bisect_right(mine, time, key=_time), row)
        self._set(state)

    def process_timer(self, timer: Timer) -> None:
        """Drops the records that can have no further partner."""
        state = self.state
        if self._holds:
            alone: list[tuple[int, int, Row]] = []
            for side, rows in enumerate(state):
                if self._outer[side]:
                    over = rows[: self._expired(side, rows)]
                    alone += [(row[0], side, row) for row in over if not row[2]]
                    del rows[: len(over)]
            for _, side, row in sorted(alone, key=lambda found: found[:2]):
                self._emit(row, None, side)
        self._prune(state)
        if state[0] or state[1]:
            self._set(state)
        else:
            del self.state

    def _prune(self, state: list[list[Row]]) -> None:
        """Drops rows without a further partner, except those that a due timer emits."""
        for side, rows in enumerate(state):
            if rows and (count := self._expired(side, rows)):
                if self._outer[side]:
                    count = next((place for place in range(count) if not rows[place][2]), count)
                del rows[:count]

    def _expired(self, side: int, rows: list[Row]) -> int:
        """How many of a side's first rows can have no further partner."""
        low = self.low_watermark
        if low == MAX_TIME:
            return len(rows)
        bound = low - self._reach[side][1]
        return 0 if not rows or rows[0][0] >= bound else bisect_left(rows, bound, key=_time)

    def _emit(self, row: Row, other: Row | None, side: int) -> None:
        time = row[0] if other is None else max(row[0], other[0])
        value = None if other is None else other[1]
        pair = {"left": row[1], "right": value} if side == 0 else {"left": value, "right": row[1]}
        self.produce(self._name, pair, timestamp=time)

    def _set(self, state: list[list[Row]]) -> None:
        """Sets the timer, and the hold for the oldest record without a partner.

        The timer is for the last record to expire: the others are dropped when the next record comes, so that
        a key has one timer for many records. A record that is to be emitted alone has to be in time.
        """
        left, right = state
        expiry = left[-1][0] + self._reach[0][1] if left else MIN_TIME
        if right:
            expiry = max(expiry, right[-1][0] + self._reach[1][1])
        if not self._holds:
            self.set_timer(_EXPIRY, min(expiry + 1, MAX_TIME))
            return
        oldest: int | None = None
        for side, rows in enumerate(state):
            waiting = next((row for row in rows if not row[2]), None) if self._outer[side] else None
            if waiting is not None:
                expiry = min(expiry, waiting[0] + self._reach[side][1])
                oldest = waiting[0] if oldest is None else min(oldest, waiting[0])
        self.set_timer(_EXPIRY, min(expiry + 1, MAX_TIME))
        if oldest is not None:
            self.hold(oldest)
        else:
            self.release()


def _time(row: Row) -> int:
    time: int = row[0]
    return time
