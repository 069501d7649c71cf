"""The time that a step may take."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_STRIDE = 256  # records between two looks at the clock
_QUICK = 0.001  # seconds: what so many records should take at most


class Budget:
    """The time that a step may take before it leaves its records to the next epoch (Fig. 11).

    Looking at a clock for each record would cost more than most hooks: as long as they are quick it is
    looked at ever more rarely.
    """

    __slots__ = ("_clock", "_deadline", "_looked", "_stride", "left", "over")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._looked = clock()
        self._deadline = self._looked + seconds
        self._stride = 1
        self.left = 1
        """How many more records until the clock is looked at."""
        self.over = False

    def begin(self) -> None:
        """For each computation, one record at least: so there is always progress."""
        self.over = False
        self.left = self._stride = 1

    def is_over(self) -> bool:
        """Looks at the clock."""
        now = self._clock()
        self.over = now > self._deadline
        self._stride = min(2 * self._stride, _LONGEST_STRIDE) if now - self._looked < _QUICK else 1
        self._looked = now
        self.left = self._stride
        return self.over
