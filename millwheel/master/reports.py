"""The reports of an epoch, from the frames that its last level returned."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.errors import EngineError
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import load_error
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport


def error_of(frames: Iterable[Frame]) -> BaseException | None:
    """What a task met, if one did."""
    return next((load_error(frame.error) for frame in frames if frame.error is not None), None)


def reports_of(plan: Plan, frames: Iterable[Frame]) -> list[IntervalReport]:
    """The report of every injecting task and every interval; an `EngineError` where one is missing."""
    reports = [IntervalReport.from_value(value) for frame in frames for value in frame.reports]
    expected = plan.tasks + sum(len(level) for level in plan.intervals)
    if len(reports) != expected:
        raise EngineError(
            f"epoch {plan.epoch}: {len(reports)} reports came back instead of {expected}; "
            "it is not committed and will be run again"
        )
    return reports
