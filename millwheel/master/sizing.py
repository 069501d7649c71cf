"""The size of an epoch: what is there, up to a bound that keeps its duration near a target."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST = 50_000  # records of the first epoch that finds that much: about half a second's work
_LEAST = 500
_MOST = 1_000_000  # a few hundred megabytes in the workers
_STEP = 2.5  # an epoch may be this much larger or smaller than the one before: one outlier does little


@dataclass
class Sizer:
    """Grows the bound while full epochs end early, and shrinks it when they end late.

    >>> sizer = Sizer(target=1.0)
    >>> sizer.learn(records=50_000, seconds=0.1)
    >>> sizer.bound
    125000
    """

    target: float
    bound: int = _FIRST

    def learn(self, records: int, seconds: float) -> None:
        """From an epoch. One that was not full says nothing about a larger one."""
        full = records >= self.bound // 2
        if not full and seconds < self.target:
            return
        factor = self.target / max(seconds, 1e-3)
        factor = min(max(factor, 1 / _STEP), _STEP)
        # A slow epoch of few records was slow for another reason, the first one above all: it says that the
        # bound is not too small, and no more.
        self.bound = min(max(int(self.bound * factor), _LEAST), _MOST)
