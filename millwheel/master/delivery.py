"""Delivery to sinks in the driver's own memory, once an epoch has run."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.errors import EngineError
from millwheel.model.graph import Graph
from millwheel.model.record import Record
from millwheel.model.sink import Sink
from millwheel.worker.envelope import unpack_batch
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport


def deliver(graph: Graph, plan: Plan, reports: Iterable[IntervalReport]) -> None:
    """Hands the batches that came with an epoch's reports to their sinks."""
    for report in reports:
        for data in report.collected:
            batch = unpack_batch(data)
            for sink in graph.sinks[batch.stream]:
                if sink.in_driver:
                    _write(sink, plan.epoch, batch.shard, batch.records())


def _write(sink: Sink, epoch: int, shard: int, records: list[Record]) -> None:
    try:
        sink.write(epoch, shard, records)
    except Exception as error:
        raise EngineError(
            f"epoch {epoch}: the sink {sink!r} raised {type(error).__name__}: {error}\n"
            "Nothing is lost: the epoch is journaled, and running again continues it"
        ) from error
