"""The time budget of a step."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_STRIDE = 256  # records between two readings of the clock
_QUICK = 0.001  # seconds that the records between two readings should take at most


class Budget:
    """The time after which a step leaves its records to the next epoch (Fig. 11).

    Reading the clock for each record would cost more than most hooks: while they are quick it is
    read less and less often.
    """

    __slots__ = ("_clock", "_deadline", "_looked", "_stride", "left", "over")

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._looked = clock()
        self._deadline = self._looked + seconds
        self._stride = 1
        self.left = 1
        """The number of records until the clock is read again."""
        self.over = False

    def begin(self) -> None:
        """Starts a computation; it runs at least one record, for progress."""
        self.over = False
        self.left = self._stride = 1

    def is_over(self) -> bool:
        """Reads the clock."""
        now = self._clock()
        self.over = now > self._deadline
        self._stride = min(2 * self._stride, _LONGEST_STRIDE) if now - self._looked < _QUICK else 1
        self._looked = now
        self.left = self._stride
        return self.over
