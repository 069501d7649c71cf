"""The wall time of epochs: the machine's clock, and what becomes of one that is wrong for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from millwheel.model.time import HOUR, SECOND, format_time

logger = logging.getLogger("millwheel")

_JUMP = HOUR  # less than that is a correction, a daylight saving that somebody set by hand, a long pause

_APART = SECOND  # as far as the clocks of two machines may be: a new driver waits until its own has caught up


class WallClock:
    """Invariant: within a run time does not go back. A new run begins at the clock, whatever was before.

    ``clock`` gives the time of day, ``steady`` one that nobody sets; without it no jump is noticed.

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
        """At the last reading: by how much the clock was ahead of the steady one, and that one."""
        self.time = 0
        """The time of the last reading; before the first one, that of the journal."""
        self.anew = False
        """Whether it began anew, behind the time of the journal."""
        self.jumped = 0
        """How far the clock has jumped ahead in all, since it was first read."""

    @staticmethod
    def of_the_machine() -> WallClock:
        """The clock of this machine."""
        return WallClock(lambda: time.time_ns() // 1_000, lambda: time.monotonic_ns() // 1_000)

    def resume(self, at: int) -> None:
        """Takes over the time of an epoch that an earlier driver has planned or committed."""
        self.time = max(self.time, at)

    def now(self) -> int:
        """The time for the next epoch."""
        reading, steady = self._clock(), self._steady() if self._steady is not None else 0
        if not self._begun:
            self._begin(reading)
        else:
            if self._steady is not None and abs(reading - steady - self._offset) > _JUMP:
                self._jump(reading, reading - steady - self._offset)
            if self.time - reading > _JUMP:  # time goes on as fast as ever, though the clock is far behind
                self.time += steady - self._read_at
        self._offset, self._read_at = reading - steady, steady
        self.time = max(self.time, reading)
        return self.time

    def _begin(self, reading: int) -> None:
        self._begun = True
        if self.time - reading > _APART:
            logger.warning(
                "the clock reads %s, and the last epoch of this store was at %s: one of the two is wrong. "
                "Wall time begins anew at the clock; wall timers that were set for later stay where they are",
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
            "" if reading >= self.time else f"; wall time goes on from {format_time(self.time)} in this run",
        )
        self.jumped += max(jump, 0)
