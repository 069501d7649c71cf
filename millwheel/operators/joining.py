"""The computation behind a join: pairs of records of one key that are near in time.

Both sides of a key are kept in order of time, each record until the input watermark says that no partner can
come any more. A pair is emitted when the second of the two comes. A record that is emitted without a partner
keeps its timestamp, so the key holds the low watermark at the oldest one that has none yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from millwheel.model.computation import Computation
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME
from millwheel.model.timer import Timer

_EXPIRY = "expiry"

Row = list[Any]
"""A record as it is kept: timestamp, value, whether it has had a partner."""


class Join(Computation):
    """State is [left rows, right rows], each in order of time."""

    def __init__(self, name: str, right: str, before: int, after: int, how: str) -> None:
        self._name = name
        self._right = right
        # From a record's time: the oldest and the newest time that a partner on the other side may have.
        self._reach = ((-before, after), (-after, before))
        self._outer = (how in ("left", "outer"), how in ("right", "outer"))

    def initial_state(self) -> list[list[Row]]:
        """Nothing on either side."""
        return [[], []]

    def process_record(self, record: Record) -> None:
        """Pairs a record with what is there of the other side, and keeps it for what comes."""
        side = int(record.stream == self._right)
        mine, others = self.state[side], self.state[1 - side]
        time = record.timestamp
        oldest, newest = self._reach[side]
        first = bisect_left(others, time + oldest, key=_time)
        last = bisect_right(others, time + newest, key=_time)
        row = [time, record.value, last > first]
        for other in others[first:last]:
            other[2] = True
            self._emit(row, other, side)
        mine.insert(bisect_right(mine, time, key=_time), row)
        self._set()

    def process_timer(self, timer: Timer) -> None:
        """Lets go of the records that can have no further partner."""
        alone: list[tuple[int, int, Row]] = []
        for side, rows in enumerate(self.state):
            newest = self._reach[side][1]
            count = bisect_left(rows, self.low_watermark - newest, key=_time)
            if self.low_watermark == MAX_TIME:
                count = len(rows)
            alone += [(row[0], side, row) for row in rows[:count] if self._outer[side] and not row[2]]
            del rows[:count]
        for _, side, row in sorted(alone, key=lambda found: found[:2]):
            self._emit(row, None, side)
        if any(self.state):
            self._set()
        else:
            del self.state

    def _emit(self, row: Row, other: Row | None, side: int) -> None:
        time = row[0] if other is None else max(row[0], other[0])
        value = None if other is None else other[1]
        pair = {"left": row[1], "right": value} if side == 0 else {"left": value, "right": row[1]}
        self.produce(self._name, pair, timestamp=time)

    def _set(self) -> None:
        """Sets the timer for the first record to go, and the hold for the oldest without a partner."""
        expiry = min(rows[0][0] + self._reach[side][1] + 1 for side, rows in enumerate(self.state) if rows)
        self.set_timer(_EXPIRY, min(expiry, MAX_TIME))
        waiting = [
            row[0]
            for side, rows in enumerate(self.state)
            if self._outer[side] and (row := next((row for row in rows if not row[2]), None)) is not None
        ]
        if waiting:
            self.hold(min(waiting))
        else:
            self.release()


def _time(row: Row) -> int:
    time: int = row[0]
    return time
