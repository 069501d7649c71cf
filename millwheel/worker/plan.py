"""The plan of an epoch: all that a worker is told, journaled before any work is done.

What an epoch does depends on the store and its plan alone (invariant 7): the same plan run again, on
whatever machine and after whatever crash, reads the same ranges at the same time of day.
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
    """A run of tablets with one owner: the slot that works for it, under a sequencer (6.2, 7.1)."""

    first: int
    last: int
    slot: int
    shard: int
    sequencer: int


@dataclass(frozen=True)
class Range:
    """A piece of an injector's partition, and the task that reads it.

    ``watermark`` is what the injector vouched for behind ``end``; ``newest`` the newest timestamp read
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
    """False for a piece that other pieces of the partition follow in this epoch: it holds nothing."""


@dataclass(frozen=True)
class Plan:
    """One epoch. ``intervals`` holds the interval map of each level, in order of tablets."""

    epoch: int
    now: int
    slots: int
    intervals: tuple[tuple[Interval, ...], ...]
    ranges: tuple[Range, ...]
    tasks: int
    """How many tasks inject; 0 where nothing is read."""
    sources: dict[WatermarkName, SourceMark]
    """By injector: what is known of its watermark before anything is read."""
    ignored: dict[WatermarkName, list[str]]
    """By percentile watermark of an injector: the partitions that it leaves behind."""
    before: dict[str, int]
    """By computation: the input watermark before this epoch, which decides what is late."""
    lows: dict[WatermarkName, int]
    """By computation: the low watermark before this epoch."""
    holds: dict[str, dict[int, int]]
    """By computation and interval (its first tablet): the oldest hold before this epoch."""
    compact: bool
    """Whether one task runs the whole graph: for a small epoch a shuffle costs more than the work."""
    drain: bool
    """Whether holds are over (semantics 9)."""
    budget: float
    """The seconds after which a step leaves the rest of its records to the next epoch."""
    due_limit: int
    """How many keys with due timers one interval takes up in one epoch; the rest hold the watermark."""
    weigh: bool = False
    """Whether intervals report what each of their tablets has had."""
    pending: dict[str, int] = field(default_factory=dict)
    """By computation, where somebody uses a percentile: how many timestamps are pending."""
    relogs: bool = False
    """Whether wall time went back between two runs: IDs that were logged for too late are logged anew."""
    ends_holds: bool = False
    """Whether this is the last epoch of a run that closes: no hook runs, and the holds that are left end."""

    @cached_property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """By level: the index of the interval that owns each tablet."""
        result = []
        for intervals in self.intervals:
            table = [0] * TABLETS
            for index, interval in enumerate(intervals):
                for tablet in range(interval.first, interval.last):
                    table[tablet] = index
            result.append(tuple(table))
        return tuple(result)

    def with_sequencer(self, sequencer: int) -> Plan:
        """The same work under a new owner."""
        intervals = tuple(
            tuple(replace(interval, sequencer=sequencer) for interval in level) for level in self.intervals
        )
        return replace(self, intervals=intervals)

    def to_bytes(self) -> bytes:
        """For the journal, and for the way to a task."""
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
        return Plan(**values)
