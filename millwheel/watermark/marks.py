"""The authority's values for a computation and its intervals, as journaled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.model.names import WatermarkName, watermark_name
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.formula import Work, all_work


@dataclass
class IntervalMark:
    """The last report of one interval of a computation."""

    sequencer: int
    input: int
    low: int
    next_timer: int
    next_wall: int
    oldest_hold: int
    more_due: bool
    counters: list[int] = field(default_factory=list)
    percentiles: dict[WatermarkName, int] = field(default_factory=dict)
    left: int = 0
    """Records left to the next epoch."""
    filter_bytes: int = 0
    """The size of the filter for seen IDs, in the last epoch with IDs."""
    filter_error: float = 0.0
    next_record: int = MAX_TIME
    """The timestamp of the first buffered record (in_order)."""
    pending: list[Any] = field(default_factory=list)
    """The fields of a `Pending`; empty if no percentile is in use."""

    @property
    def work(self) -> Work:
        """The oldest unfinished work in the interval."""
        return Work(self.next_timer, self.next_record, self.oldest_hold)

    def counter(self, index: int) -> int:
        """One of the counters; 0 if an older version did not report it."""
        return self.counters[index] if index < len(self.counters) else 0

    def to_value(self) -> list[Any]:
        """Encodes it for the journal."""
        return list(self.__dict__.values())

    @staticmethod
    def from_value(value: list[Any]) -> IntervalMark:
        """The inverse of `to_value`."""
        return IntervalMark(*value)


@dataclass
class ComputationMarks:
    """The watermarks of a computation, as journaled."""

    input: int = MIN_TIME
    low: int = MIN_TIME
    intervals: dict[int, IntervalMark] = field(default_factory=dict)
    """By first tablet."""
    percentiles: dict[WatermarkName, int] = field(default_factory=dict)
    """Its percentile low watermarks, by name."""
    layout: set[int] = field(default_factory=set)
    """The intervals of the last complete round of reports."""
    fresh: set[int] = field(default_factory=set)
    """The intervals that have reported since the last complete round of reports."""
    forgotten: dict[int, int] = field(default_factory=dict)
    """By first tablet: the sequencer under which an interval was removed."""

    @property
    def work(self) -> Work:
        """The oldest unfinished work of all intervals."""
        return all_work(mark.work for mark in self.intervals.values())

    def counter(self, index: int) -> int:
        """A counter, summed over the intervals."""
        return sum(mark.counter(index) for mark in self.intervals.values())

    def to_value(self) -> list[Any]:
        """Encodes it for the journal."""
        return [
            self.input,
            self.low,
            {first: mark.to_value() for first, mark in self.intervals.items()},
            self.percentiles,
            sorted(self.layout),
            sorted(self.fresh),
            self.forgotten,
        ]

    @staticmethod
    def from_value(value: list[Any]) -> ComputationMarks:
        """The inverse of `to_value`."""
        input, low, intervals, percentiles, layout, fresh, forgotten = value
        return ComputationMarks(
            input,
            low,
            {first: IntervalMark.from_value(mark) for first, mark in intervals.items()},
            {watermark_name(name): mark for name, mark in percentiles.items()},
            set(layout),
            set(fresh),
            forgotten,
        )
