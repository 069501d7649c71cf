"""The plan of an epoch: the input of the workers, journaled before any work.

What an epoch does depends on the store and its plan alone (invariant 7): the same plan run again, on
any machine and after any crash, reads the same ranges at the same time of day.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from millwheel.model.codec import pack, unpack
from millwheel.model.injector import Offset
from millwheel.model.keys import TABLETS
from millwheel.model.names import SourceName, WatermarkName, source_name, watermark_name
from millwheel.watermark.source import SourceMark


@dataclass(frozen=True)
class Interval:
    """A run of tablets with one owner: a slot, under a sequencer (6.2, 7.1)."""

    first: int
    last: int
    slot: int
    shard: int
    sequencer: int

    @property
    def tablets(self) -> range:
        """Those that it has."""
        return range(self.first, self.last)


@dataclass(frozen=True)
class Range:
    """A range of an injector's partition, and the task that reads it.

    ``watermark`` is the injector's after ``end``; ``newest`` the newest timestamp read
    before ``start``, for injectors whose watermark follows their timestamps.
    """

    source: SourceName
    partition: str
    start: Offset
    end: Offset
    task: int
    watermark: int
    newest: int
    last: bool = True
    """False for a piece that others of the same partition follow: it does not hold."""


@dataclass(frozen=True)
class Plan:
    """One epoch; ``intervals`` has the intervals of each level, by tablet."""

    epoch: int
    now: int
    slots: int
    intervals: tuple[tuple[Interval, ...], ...]
    ranges: tuple[Range, ...]
    tasks: int
    """The number of injecting tasks; 0 without input."""
    sources: dict[WatermarkName, SourceMark]
    """By injector: its watermark before anything is read."""
    ignored: dict[WatermarkName, list[str]]
    """By percentile watermark of an injector: the partitions that it ignores."""
    before: dict[str, int]
    """By computation: the input watermark before this epoch: older is late."""
    lows: dict[WatermarkName, int]
    """By computation: the low watermark before this epoch."""
    holds: dict[str, dict[int, int]]
    """By computation and interval (its first tablet): the oldest hold before."""
    compact: bool
    """Whether one task runs the whole graph: cheaper than a shuffle if it is small."""
    drain: bool
    """Whether holds are ignored (semantics 9)."""
    budget: float
    """The seconds after which a step leaves records to the next epoch."""
    due_limit: int
    """Keys with due timers that an interval processes; the rest hold the watermark."""
    weigh: bool = False
    """Whether intervals report the load of each tablet."""
    pending: dict[str, int] = field(default_factory=dict)
    """By computation with a percentile in use: the number of pending timestamps."""
    relogs: bool = False
    """Whether wall time went back between runs: late ID expiries are moved."""
    ends_holds: bool = False
    """Whether this is the last epoch of a run that closes: only the holds end."""
    lookups: dict[str, int] = field(default_factory=dict)
    """By side table: the version that this epoch's records see."""
    sinks: tuple[str, ...] = ()
    """The streams with sinks, by number: a retry names their batches alike, also with other sinks."""

    @property
    def tablets(self) -> int:
        """The number of tablets of the key space, which is the store's."""
        return self.intervals[0][-1].last if self.intervals else TABLETS

    @cached_property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """By level: the index of the interval that owns each tablet."""
        result = []
        for intervals in self.intervals:
            table: list[int] = []
            for index, interval in enumerate(intervals):
                table += [index] * len(interval.tablets)
            result.append(tuple(table))
        return tuple(result)

    def with_sequencer(self, sequencer: int) -> Plan:
        """A copy for a new owner."""
        intervals = tuple(
            tuple(replace(interval, sequencer=sequencer) for interval in level) for level in self.intervals
        )
        return replace(self, intervals=intervals)

    def to_bytes(self) -> bytes:
        """Encodes it for the journal, and for tasks."""
        values: dict[str, Any] = {name: value for name, value in self.__dict__.items() if name != "tables"}
        values["intervals"] = [
            [[i.first, i.last, i.slot, i.shard, i.sequencer] for i in level] for level in self.intervals
        ]
        values["sources"] = {name: list(mark) for name, mark in self.sources.items()}
        values["ranges"] = [
            [r.source, r.partition, r.start, r.end, r.task, r.watermark, r.newest, r.last]
            for r in self.ranges
        ]
        return pack(values)

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """The inverse of `to_bytes`."""
        values = unpack(data)
        values["intervals"] = tuple(
            tuple(Interval(*interval) for interval in level) for level in values["intervals"]
        )
        values["sources"] = {
            watermark_name(name): SourceMark(*mark) for name, mark in values["sources"].items()
        }
        for kept in ("ignored", "lows"):
            values[kept] = {watermark_name(name): value for name, value in values[kept].items()}
        values["ranges"] = tuple(Range(source_name(source), *rest) for source, *rest in values["ranges"])
        values["sinks"] = tuple(values.get("sinks", ()))
        return Plan(**values)
