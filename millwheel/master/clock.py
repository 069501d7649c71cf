"""The wall time of epochs: the machine's clock, and what happens if it is wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from millwheel.model.time import HOUR, SECOND, format_time

logger = logging.getLogger("millwheel")

_JUMP = HOUR  # less is a correction, daylight saving set by hand, or a long pause

_APART = SECOND  # the largest difference between two machines' clocks for which a new driver waits


class WallClock:
    """Invariant: time does not go back within a run; a new run starts at the clock.

    ``clock`` gives the time of day, ``steady`` a monotonic one; without it no jump is detected.

    >>> times = iter([50, 40, 60])
    >>> clock = WallClock(lambda: next(times))
    >>> clock.resume(20)
    >>> [clock.now() for _ in range(3)]
    [50, 50, 60]
    """

    def __init__(self, clock: Callable[[], int], steady: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._steady = steady
        self._begun = False
        self._offset, self._read_at = 0, 0
        """At the last reading: the clock less the monotonic one, and the monotonic one."""
        self.time = 0
        """The time of the last reading; before the first one, that of the journal."""
        self.anew = False
        """Whether it started behind the time of the journal."""
        self.jumped = 0
        """The sum of the clock's forward jumps, since it was first read."""

    @staticmethod
    def of_the_machine() -> WallClock:
        """The clock of this machine."""
        return WallClock(lambda: time.time_ns() // 1_000, lambda: time.monotonic_ns() // 1_000)

    def resume(self, at: int) -> None:
        """Continues from the time of an epoch of an earlier driver."""
        self.time = max(self.time, at)

    def now(self) -> int:
        """The time for the next epoch."""
        reading, steady = self._clock(), self._steady() if self._steady is not None else 0
        if not self._begun:
            self._begin(reading)
        else:
            if self._steady is not None and abs(reading - steady - self._offset) > _JUMP:
                self._jump(reading, reading - steady - self._offset)
            if self.time - reading > _JUMP:  # time keeps its pace though the clock is far behind
                self.time += steady - self._read_at
        self._offset, self._read_at = reading - steady, steady
        self.time = max(self.time, reading)
        return self.time

    def _begin(self, reading: int) -> None:
        self._begun = True
        if self.time - reading > _APART:
            logger.warning(
                "the clock reads %s, and the last epoch of this store was at %s: one of the two is wrong. "
                "Wall time starts again at the clock; wall timers that were set for later keep their times",
                format_time(reading),
                format_time(self.time),
            )
            self.time = reading
            self.anew = True

    def _jump(self, reading: int, jump: int) -> None:
        logger.warning(
            "the clock has jumped %s by %.1f hours, to %s%s",
            "ahead" if jump > 0 else "back",
            abs(jump) / HOUR,
            format_time(reading),
            ""
            if reading >= self.time
            else f"; wall time continues from {format_time(self.time)} in this run",
        )
        self.jumped += max(jump, 0)
