"""Runs epochs in this process: for the harness."""

from __future__ import annotations

from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import run_epoch
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker


class LocalExecutor:
    """Runs all tasks with one worker in this process."""

    job: int | None = None

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def execute(self, plan: Plan) -> list[Frame]:
        return run_epoch(self._worker, plan)

    def close(self) -> None:
        """Does nothing: no resource is held."""
