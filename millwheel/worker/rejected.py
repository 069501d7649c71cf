"""Records and timers that are not processed: late, or refused by user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack, unpack
from millwheel.model.pipeline import ERRORS_SUFFIX, LATE_SUFFIX
from millwheel.model.record import Record
from millwheel.model.timer import Timer
from millwheel.worker.context import HookContext, ReturnedValue
from millwheel.worker.report import NodeReport
from millwheel.worker.route import diverted


class Rejected:
    """Drops or diverts what a computation does not process, and counts it."""

    def __init__(self, context: HookContext, report: NodeReport) -> None:
        self._context = context
        self._report = report
        self._record_hook: Any = context.computation.process_record
        self._timer_hook: Any = context.computation.process_timer
        self._keep_late = context.node.late == "deliver"
        self._accepts_late: Callable[[Record], bool] | None = getattr(
            context.computation, "_accepts_late", None
        )
        self.diverted: list[tuple[str, RecordBatch]] = []
        """Records for the streams of errors and of late records, with the stream."""

    def takes_late(self, record: Record) -> bool:
        """Whether a late record is delivered; otherwise it is dropped or diverted."""
        report = self._report
        report.late += 1
        if self._keep_late or (self._accepts_late is not None and self._accepts_late(record)):
            return True
        report.records -= 1
        node = self._context.node
        if node.late == "drop":
            report.dropped += 1
        else:
            report.diverted += 1
            late = RecordBatch([record.timestamp], [pack(record.value)], keys=[record.key], packed=True)
            self.diverted.append((node.name + LATE_SUFFIX, late))
        return False

    def guarded_record(self, record: Record) -> None:
        """Runs the hook; what it raises undoes what it did, and diverts the record."""
        context = self._context
        saved = context.save()
        value = pack(record.value)  # as it arrived: the hook may change it before it raises
        try:
            if (result := self._record_hook(record)) is not None:
                raise ReturnedValue(result)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            self.failed_record(record.with_value(unpack(value)), error)

    def guarded_timer(self, timer: Timer) -> None:
        """Runs the hook; what it raises undoes what it did, and diverts the timer."""
        context = self._context
        saved = context.save()
        try:
            if (result := self._timer_hook(timer)) is not None:
                raise ReturnedValue(result)
            context.encoded()
        except Exception as error:
            context.restore(saved)
            record = Record({"tag": timer.tag, "clock": timer.clock}, timer.timestamp, context.key, "timers")
            self._diverted(record, error)

    def failed_record(self, record: Record, error: Exception) -> None:
        """Diverts a record on which the hook raised."""
        self._report.records -= 1
        self._diverted(record, error)

    def _diverted(self, record: Record, error: Exception) -> None:
        self._report.failed += 1
        message = f"{type(error).__name__}: {error}"
        columns = diverted(record, message, error)
        self.diverted.append((self._context.node.name + ERRORS_SUFFIX, columns))
