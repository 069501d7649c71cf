"""The computations behind `distinct`: the first record of a key, by timestamp.

Records may arrive out of order, so one is known to be the first once the input watermark has reached it:
until then it has a timer at its timestamp, which also holds the low watermark.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from millwheel.model.computation import Computation
from millwheel.model.record import Record
from millwheel.model.state_form import StateForm
from millwheel.model.time import MAX_TIME
from millwheel.model.timer import Timer

_NEXT = "next"


class First(Computation):
    """The first record of each key. State: its [timestamp, value], then []."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state_form = StateForm("distinct")

    def initial_state(self) -> Any:
        """No candidate."""
        return None

    def process_record(self, record: Record) -> None:
        """Keeps the record if it is older than the candidate."""
        if self.state is None or (self.state and record.timestamp < self.state[0]):
            self.state = [record.timestamp, record.value]
            self.set_timer(_NEXT, record.timestamp)

    def process_timer(self, timer: Timer) -> None:
        """Emits the candidate."""
        timestamp, value = self.state
        self.produce(self._name, value, timestamp=timestamp)
        self.state = []


class Spaced(Computation):
    """Each record with no other of its key in the ``within`` before it.

    State: the time of the newest record that the watermark has passed, and the rows that it has not: each
    [timestamp, value], for each timestamp the first that arrived, in order.
    """

    def __init__(self, name: str, within: int) -> None:
        self._name = name
        self._within = within
        self._state_form = StateForm("distinct within a time")

    def initial_state(self) -> Any:
        """No record."""
        return [None, []]

    def process_record(self, record: Record) -> None:
        """Keeps the record until the watermark passes it; its value if it may be emitted."""
        passed, rows = self.state
        time = record.timestamp
        if passed is not None and time <= passed:
            return  # an earlier arrival has the same time
        place = bisect_left(rows, time, key=lambda row: row[0])
        if place < len(rows) and rows[place][0] == time:
            return
        before = rows[place - 1][0] if place else passed
        may_be = before is None or before < time - self._within
        rows.insert(place, [time, record.value, may_be] if may_be else [time, None, False])
        self.set_timer(_NEXT, rows[0][0])

    def process_timer(self, timer: Timer) -> None:
        """Emits, in order, records that the watermark has passed without a predecessor."""
        passed, rows = self.state
        while rows and rows[0][0] <= self.low_watermark:
            time, value, may_be = rows.pop(0)
            if may_be and (passed is None or passed < time - self._within):
                self.produce(self._name, value, timestamp=time)
            passed = time
        if rows:
            self.state = [passed, rows]
            self.set_timer(_NEXT, rows[0][0])
        elif passed is None or self.low_watermark == MAX_TIME or passed + self._within < self.low_watermark:
            del self.state
        else:
            self.state = [passed, []]
            self.set_timer(_NEXT, min(passed + self._within + 1, MAX_TIME))
