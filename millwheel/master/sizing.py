"""The size of an epoch: what is there, up to a bound that keeps its duration near what it aims at."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.worker.report import IntervalReport

_FIRST = 50_000  # records of the first epoch that finds that much: about half a second's work
_LEAST = 500
_MOST = 1_000_000  # a few hundred megabytes in the workers
_LARGER = 4.0  # times the epoch before, at most: one outlier does little
_SMALLER = 2.5
_BACKLOG = 5  # full epochs that wait: then they may be longer
_LONGER = 1.5
_AROUND = 2.0  # times what the hooks of an epoch take: with what is around them, about


class Sizer:
    """Grows the bound while full epochs end early, and shrinks it when they end late.

    A full epoch is to take ``target`` seconds; with a backlog up to ``longest``. Nobody waits for the records
    of a backlog one by one, and a larger epoch costs less for each: where the state is large, each record of
    a small one finds a page of the store of its own, and twice the records touch less than twice the pages.

    >>> sizer = Sizer(target=1.0)
    >>> sizer.learn(records=50_000, seconds=0.1)
    >>> sizer.bound
    200000
    """

    def __init__(self, target: float, longest: float | None = None) -> None:
        self._target = target
        self._longest = target if longest is None else max(longest, target)
        self.aim = target
        """The seconds that a full epoch is to take for the time being."""
        self.bound = _FIRST

    def learn(self, records: int, seconds: float, waiting: int = 0) -> None:
        """From an epoch, and what waits behind it. One that was not full says nothing about a larger one."""
        full = records >= self.bound // 2
        if full and waiting >= _BACKLOG * self.bound:
            self._turn_to(min(_LONGER * self.aim, self._longest))
        elif records and waiting < self.bound and self.aim > self._target:  # not one for timers alone
            self._turn_to(max(self.aim / _LONGER, self._target))
        if not full and seconds < self.aim:
            return
        factor = self.aim / max(seconds, 1e-3)
        factor = min(max(factor, 1 / _SMALLER), _LARGER)
        # A slow epoch of few records was slow for another reason, the first one above all: it says that the
        # bound is not too small, and no more.
        self.bound = min(max(int(self.bound * factor), _LEAST), _MOST)

    def _turn_to(self, aim: float) -> None:
        if aim < self.aim:  # what comes next may well be full
            self.bound = max(int(self.bound * aim / self.aim), _LEAST)
        self.aim = aim


def without_start(seconds: float, reports: Iterable[IntervalReport]) -> float:
    """The seconds that a first epoch took, without the start of the workers."""
    slowest: dict[int, float] = {}
    for report in reports:
        slowest[report.level] = max(report.seconds, slowest.get(report.level, 0.0))
    return min(seconds, _AROUND * sum(slowest.values()))
