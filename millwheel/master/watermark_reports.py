"""What an interval's report says to the authority on watermarks."""

from __future__ import annotations

from millwheel.watermark.marks import IntervalMark
from millwheel.worker.report import NodeReport


def interval_mark(sequencer: int, node: NodeReport, filtered: tuple[int, float]) -> IntervalMark:
    """The mark of one computation in one interval; ``filtered``: size and error of its filter of IDs."""
    return IntervalMark(
        sequencer,
        node.input,
        node.low,
        node.next_timer,
        node.next_wall,
        node.oldest_hold,
        node.more_due,
        node.counters,
        node.percentiles,
        node.left,
        *filtered,
        node.next_record,
        pending=node.pending,
    )
