"""The reports of an epoch, from its frames and to sinks in memory."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.errors import EngineError
from millwheel.model.graph import Graph
from millwheel.model.sink import Sink
from millwheel.worker.envelope import Batch, Frame, unpack_batch
from millwheel.worker.epoch import load_error
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport


def error_of(frames: Iterable[Frame]) -> BaseException | None:
    """The error of a task, if one failed."""
    return next((load_error(frame.error) for frame in frames if frame.error is not None), None)


def reports_of(plan: Plan, frames: Iterable[Frame]) -> list[IntervalReport]:
    """The reports of all tasks and intervals; an `EngineError` if one is missing."""
    reports = [IntervalReport.from_value(value) for frame in frames for value in frame.reports]
    expected = plan.tasks + sum(len(level) for level in plan.intervals)
    if len(reports) != expected:
        raise EngineError(
            f"epoch {plan.epoch}: {len(reports)} reports came back instead of {expected}; "
            "it is not committed and will be run again"
        )
    return reports


def deliver(graph: Graph, epoch: int, reports: Iterable[IntervalReport]) -> None:
    """Passes the batches in an epoch's reports to their sinks in the driver's memory."""
    for report in reports:
        for data in report.collected:
            batch = unpack_batch(data)
            for sink in graph.sinks.get(batch.stream, ()):
                if sink.in_driver:
                    _write(sink, epoch, batch)


def _write(sink: Sink, epoch: int, batch: Batch) -> None:
    try:
        sink.write(epoch, batch.shard, batch.records())
    except Exception as error:
        raise EngineError(
            f"epoch {epoch}: the sink {sink!r} raised {type(error).__name__}: {error}\n"
            "Nothing is lost: the epoch is journaled; run again to continue it"
        ) from error
