"""What carries the tasks of an epoch: Spark, or this process."""

from __future__ import annotations

from typing import Protocol

from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan


class Executor(Protocol):
    """Runs the tasks of an epoch somewhere, and returns the frames of the last level."""

    job: int | None
    """The number under which the place's own page shows the last epoch, where it has one."""

    def execute(self, plan: Plan) -> list[Frame]: ...

    def close(self) -> None: ...
