"""What carries the tasks of an epoch: Spark, or this process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from millwheel.worker.activity import Note
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan


class Executor(Protocol):
    """Runs the tasks of an epoch somewhere, and returns the frames of the last level."""

    job: int | None
    """The number under which the place's own page shows the last epoch, where it has one."""

    def execute(self, plan: Plan) -> list[Frame]: ...

    def close(self) -> None: ...


@runtime_checkable
class Interruptible(Protocol):
    """An executor that can be asked, from another thread, what it is doing, and to give it up."""

    def doing(self) -> list[Note]:
        """What its workers have in hand, the longest first."""

    def cancel(self) -> None:
        """Ends the epoch that runs, and the Python workers in it: `execute` raises `Interrupted`."""
