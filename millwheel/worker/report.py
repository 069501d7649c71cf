"""What an interval tells the driver about an epoch: small, however many records it saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.model.names import WatermarkName, source_name
from millwheel.model.time import MAX_TIME
from millwheel.worker.counters import Counters


@dataclass
class NodeReport(Counters[int]):
    """One computation in one interval: its counters, and the rest."""

    filter_bytes: int = 0
    filter_error: float = 0.0
    """The share of new IDs for which the store is asked all the same."""
    input: int = 0
    """The input watermark, after the epoch."""
    low: int = 0
    """The low watermark (4.5), after the epoch."""
    percentiles: dict[WatermarkName, int] = field(default_factory=dict)
    """By percentile low watermark that somebody uses: the input's, after the epoch."""
    pending: list[Any] = field(default_factory=list)
    """What a `millwheel.watermark.percentile.Pending` has; empty where nobody uses a percentile."""
    next_timer: int = MAX_TIME
    """The oldest pending watermark timer."""
    next_wall: int = MAX_TIME
    """The oldest pending wall timer."""
    oldest_hold: int = MAX_TIME
    more_due: bool = False
    """Whether due timers were left for the next epoch."""
    left: int = 0
    """Records that a slow step left for the next epoch."""
    next_record: int = MAX_TIME
    """The timestamp of the first record that waits for the watermark (in_order)."""
    counters: list[int] = field(default_factory=lambda: [0] * 6)
    """Rows, bytes, pending watermark and wall timers, holds, records that wait; in the whole interval."""
    user: dict[str, int] = field(default_factory=dict)
    hot: list[Any] = field(default_factory=list)
    """[key, records] of the key with the most records, where it has a good part of them."""
    holds_ended: int = 0
    """Holds that nobody had released when the run ended."""
    weights: dict[int, list[int]] = field(default_factory=dict)
    """By tablet, in an epoch that weighs: records that came, and bytes of state."""


@dataclass
class IntervalReport:
    """One interval of one level, or one injecting task (level 0)."""

    level: int
    first: int
    sequencer: int
    nodes: dict[str, NodeReport] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """By computation: records that its key extractor, which runs at the sender, could not key."""
    records_in: int = 0
    input_errors: int = 0
    newest: list[list[Any]] = field(default_factory=list)
    """Of an injecting task: [source, partition, newest timestamp, records]."""
    collected: list[bytes] = field(default_factory=list)
    """Batches for sinks in the driver's memory."""
    seconds: float = 0.0

    def to_value(self) -> dict[str, Any]:
        """As a value that MessagePack carries."""
        return {**self.__dict__, "nodes": {name: node.__dict__ for name, node in self.nodes.items()}}

    @staticmethod
    def from_value(value: dict[str, Any]) -> IntervalReport:
        """The inverse of `to_value`."""
        nodes = {name: NodeReport(**node) for name, node in value["nodes"].items()}
        newest = [[source_name(source), *rest] for source, *rest in value["newest"]]
        return IntervalReport(**{**value, "nodes": nodes, "newest": newest})
