"""A light, endless load: state, timers, record IDs and productions that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import millwheel as mw

Wide = Literal["alternate", "always", "never"]
"""Which epochs have a shuffle."""

_RATE = 500  # records in a second: each epoch finds some, none has many
_KEYS = 1_000
_RETENTION = 5 * mw.SECOND  # of record IDs: short, so that forgetting them is part of what is soaked
_WIDE_SIZE = 1_000_000  # records that an epoch claims to have where it is to be wide


class Load(mw.injectors.Generator):
    """A generator whose epochs are wide, with a shuffle, every other time.

    How an epoch runs depends on the size that its injector names; this one names a large one in turns.
    """

    def __init__(self, *, alternate: bool) -> None:
        super().__init__(make, rate=_RATE)
        self.id_retention = _RETENTION
        self._alternate = alternate
        self._wide = False

    def size(self, partition: str, start: Any, end: Any) -> int:
        return _WIDE_SIZE if self._wide else super().size(partition, start, end)

    def commit(self, offsets: Mapping[str, Any]) -> None:
        super().commit(offsets)
        self._wide = self._alternate and not self._wide


class Windower(mw.Computation):
    """State, timers and productions that come and go."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // mw.SECOND
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", self.state.pop(int(timer.tag)))
        if not self.state:
            del self.state


class Nowhere(mw.Sink):
    """Takes records and keeps none: a sink that grows would hide what else does."""

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        """Nothing to do."""


def make(number: int) -> mw.Record:
    """Every record has an ID and one of a thousand keys."""
    return mw.Record(
        key=f"key-{number % _KEYS}", value=number, timestamp=number * mw.SECOND // _RATE, id=str(number)
    )


def pipeline(wide: Wide = "alternate") -> mw.Pipeline:
    """A stage with state and timers."""
    p = mw.Pipeline("soak")
    p.inject("records", Load(alternate=wide == "alternate"))
    p.add(Windower(), inputs={"records": mw.by_key}, outputs=["windows"])
    p.sink("windows", Nowhere())
    return p
