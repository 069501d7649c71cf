"""The seam to what runs the tasks of an epoch: Spark, or this process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millwheel.worker.activity import Note
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan


class Executor(Protocol):
    """Runs the tasks of an epoch, and returns the frames of the last level."""

    job: int | None
    """The last epoch's job number on the executor's own page, if it has one."""

    def execute(self, plan: Plan) -> list[Frame]: ...

    def close(self) -> None: ...


@runtime_checkable
class Interruptible(Protocol):
    """An executor that another thread can query and cancel."""

    def doing(self) -> list[Note]:
        """The activities of its workers, the longest first."""

    def cancel(self) -> None:
        """Ends the running epoch and its Python workers: `execute` raises `Interrupted`."""
