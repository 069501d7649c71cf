"""An interval's report of an epoch to the driver: small in any case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.model.names import WatermarkName, source_name
from millwheel.model.time import MAX_TIME
from millwheel.watermark.marks import IntervalMark
from millwheel.worker.counters import Counters


@dataclass
class NodeReport(Counters[int]):
    """One computation in one interval: its counters, and its state."""

    filter_bytes: int = 0
    filter_error: float = 0.0
    """The percentage of new IDs that are looked up in the store for nothing."""
    input: int = 0
    """The input watermark, after the epoch."""
    low: int = 0
    """The low watermark (4.5), after the epoch."""
    percentiles: dict[WatermarkName, int] = field(default_factory=dict)
    """By percentile low watermark in use: the input's, after the epoch."""
    pending: list[Any] = field(default_factory=list)
    """A `millwheel.watermark.percentile.Pending`; empty without a percentile in use."""
    next_timer: int = MAX_TIME
    """The oldest pending watermark timer."""
    next_wall: int = MAX_TIME
    """The oldest pending wall timer."""
    oldest_hold: int = MAX_TIME
    more_due: bool = False
    """Whether due timers were left to the next epoch."""
    left: int = 0
    """Records that a slow step left to the next epoch."""
    next_record: int = MAX_TIME
    """The timestamp of the first buffered record (in_order)."""
    counters: list[int] = field(default_factory=lambda: [0] * 6)
    """Rows, bytes, watermark timers, wall timers, holds, buffered records in total."""
    user: dict[str, int] = field(default_factory=dict)
    hot: list[Any] = field(default_factory=list)
    """[key, records] of the key with the most records, if it is hot."""
    holds_ended: int = 0
    """Holds that were not released when the run ended."""
    weights: dict[int, list[int]] = field(default_factory=dict)
    """By tablet, if requested: records, and bytes of state."""

    def mark(self, sequencer: int, filtered: tuple[int, float]) -> IntervalMark:
        """The part for the watermark authority; ``filtered``: of the filter of IDs."""
        return IntervalMark(
            sequencer,
            self.input,
            self.low,
            self.next_timer,
            self.next_wall,
            self.oldest_hold,
            self.more_due,
            self.counters,
            self.percentiles,
            self.left,
            *filtered,
            self.next_record,
            pending=self.pending,
        )


@dataclass
class IntervalReport:
    """One interval of one level, or one injecting task (level 0)."""

    level: int
    first: int
    sequencer: int
    nodes: dict[str, NodeReport] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """By computation: records that its key extractor, run at the sender, failed on."""
    unseen_fields: list[list[Any]] = field(default_factory=list)
    """News of fields that consumers name: see `millwheel.worker.unseen_fields`."""
    records_in: int = 0
    input_errors: int = 0
    newest: list[list[Any]] = field(default_factory=list)
    """Of an injecting task: [source, partition, newest timestamp, records]."""
    collected: list[bytes] = field(default_factory=list)
    """Batches for sinks in the driver's memory."""
    seconds: float = 0.0
    home: str = ""
    """A name of the executor that ran it."""

    def to_value(self) -> dict[str, Any]:
        """A value that MessagePack can encode."""
        return {**self.__dict__, "nodes": {name: node.__dict__ for name, node in self.nodes.items()}}

    @staticmethod
    def from_value(value: dict[str, Any]) -> IntervalReport:
        """The inverse of `to_value`."""
        nodes = {name: NodeReport(**node) for name, node in value["nodes"].items()}
        newest = [[source_name(source), *rest] for source, *rest in value["newest"]]
        return IntervalReport(**{**value, "nodes": nodes, "newest": newest})
