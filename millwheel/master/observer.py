"""What observes a driver while it runs: the recorder of the page, or a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport

if TYPE_CHECKING:
    from millwheel.master.driver import Driver


class Observer(Protocol):
    """Observes a driver; called in the driver's thread."""

    def epoch(self, plan: Plan, reports: list[IntervalReport], moments: list[float]) -> None:
        """An epoch was committed; the times of its start, plan, run, delivery and commit."""

    def notes(self) -> list[tuple[bytes, bytes]]:
        """Notes to journal with a commit."""

    def idle(self) -> None:
        """There was nothing to do."""

    def follow(self, driver: Driver) -> None:
        """The pipeline was changed, and has another driver."""

    def close(self) -> None:
        """The driver is about to close the store."""
