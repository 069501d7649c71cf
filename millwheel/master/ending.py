"""The beginning and the end of a run (semantics 9): what an epoch that drains has done, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """How a run ends."""

    CLOSE = "close"
    """With its injectors, and event time with them: every window closes."""
    LEAVE_OPEN = "leave open"
    """As soon as what was there is processed: event time goes on in a later run."""
    NEVER = "never"
    """When it is stopped: it follows its injectors."""

    @property
    def closes(self) -> bool:
        """Whether event time ends where the injectors do."""
        return self is not Ending.LEAVE_OPEN


class Start(Enum):
    """What a driver is the start of."""

    RUN = "run"
    """A new run: an injector that was at its end may go on."""
    RECOVERY = "recovery"
    """The same run, after a crash."""
    CHANGE = "change"
    """The same run of another graph: this process has the store already."""


@dataclass
class Drain:
    """How far the end of a run has come.

    Invariant: an epoch that continues one that did not heed holds does not heed them either.
    """

    draining: bool = False
    """Whether the last epoch did not heed holds."""
    drained: bool = False
    """Whether an epoch of this run did not."""
    at_rest: bool = False
    """Whether an epoch that drains has moved nothing, so that no other one will."""

    def committed(self, *, drains: bool, unfinished: bool, moved: bool) -> None:
        """An epoch was committed; whether it drains, left something, and moved a watermark."""
        self.draining = drains
        self.drained = self.drained or drains
        self.at_rest = drains and not unfinished and not moved
