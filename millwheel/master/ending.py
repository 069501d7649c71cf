"""The beginning and the end of a run (semantics 9), and the state of a drain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a run ends."""

    CLOSE = "close"
    """With its injectors; event time ends, and every window closes."""
    LEAVE_OPEN = "leave open"
    """When its input at the start is processed: event time continues in a later run."""
    NEVER = "never"
    """When it is stopped: it follows its injectors."""

    @property
    def closes(self) -> bool:
        """Whether event time ends with the injectors."""
        return self is not Ending.LEAVE_OPEN


class Start(Enum):
    """What a driver is started for."""

    RUN = "run"
    """A new run: an injector that was at its end may continue."""
    RECOVERY = "recovery"
    """The same run, after a crash."""
    CHANGE = "change"
    """The same run with another graph: this process holds the store already."""


@dataclass
class Drain:
    """The progress of the end of a run.

    Invariant: an epoch that continues one that ignored holds ignores them too.
    """

    draining: bool = False
    """Whether the last epoch ignored holds."""
    drained: bool = False
    """Whether an epoch of this run ignored holds."""
    at_rest: bool = False
    """Whether a draining epoch has moved nothing, so that no further one will."""

    def committed(self, *, drains: bool, unfinished: bool, moved: bool) -> None:
        """Records a committed epoch: if it drains, left work, or moved a watermark."""
        self.draining = drains
        self.drained = self.drained or drains
        self.at_rest = drains and not unfinished and not moved
