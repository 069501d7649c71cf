"""What follows a driver while it runs: the recorder of the page, a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport

if TYPE_CHECKING:
    from millwheel.master.driver import Driver


class Observer(Protocol):
    """Looks on while a driver runs; called in the driver's thread."""

    def epoch(self, plan: Plan, reports: list[IntervalReport], moments: list[float]) -> None:
        """An epoch was committed. It began, was planned, run, delivered and committed at these moments."""

    def notes(self) -> list[tuple[bytes, bytes]]:
        """What to journal beside a commit."""

    def idle(self) -> None:
        """There was nothing to do."""

    def follow(self, driver: Driver) -> None:
        """The pipeline has become another one, with a driver of its own."""

    def close(self) -> None:
        """The driver is about to let go of the store."""
