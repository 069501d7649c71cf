"""The size of an epoch: a bound that keeps its duration near a target."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.worker.report import IntervalReport

_FIRST = 50_000  # records of a first epoch: half a second's work
_LEAST = 500
_MOST = 1_000_000  # a few hundred megabytes in the workers
_LARGER = 4.0  # times the previous bound, at most: limits the effect of an outlier
_SMALLER = 2.5
_BACKLOG = 5  # full epochs of backlog: then epochs may be longer
_LONGER = 1.5
_AROUND = 2.0  # an epoch takes this many times the time of its hooks


class Sizer:
    """Grows the bound while full epochs end early, and shrinks it when they end late.

    A full epoch is to take ``target`` seconds; with a backlog up to ``longest``. No one waits for single
    records of a backlog, and a larger epoch costs less for each: with large state, each record of a small
    epoch reads a page of its own, and twice the records read less than twice the pages.

    >>> sizer = Sizer(target=1.0)
    >>> sizer.learn(records=50_000, seconds=0.1)
    >>> sizer.bound
    200000
    """

    def __init__(self, target: float, longest: float | None = None) -> None:
        self._target = target
        self._longest = target if longest is None else max(longest, target)
        self.aim = target
        """The current target for a full epoch, in seconds."""
        self.bound = _FIRST

    def learn(self, records: int, seconds: float, waiting: int = 0) -> None:
        """Adjusts the bound by an epoch and its backlog; one not full is ignored."""
        full = records >= self.bound // 2
        if full and waiting >= _BACKLOG * self.bound:
            self._turn_to(min(_LONGER * self.aim, self._longest))
        elif records and waiting < self.bound and self.aim > self._target:  # not an epoch of timers only
            self._turn_to(max(self.aim / _LONGER, self._target))
        if not full and seconds < self.aim:
            return
        factor = self.aim / max(seconds, 1e-3)
        factor = min(max(factor, 1 / _SMALLER), _LARGER)
        # A slow epoch of few records was slow for another reason, most of all the first one: it only shows
        # that the bound is not too small.
        self.bound = min(max(int(self.bound * factor), _LEAST), _MOST)

    def _turn_to(self, aim: float) -> None:
        if aim < self.aim:  # the next epochs may be full
            self.bound = max(int(self.bound * aim / self.aim), _LEAST)
        self.aim = aim


def without_start(seconds: float, reports: Iterable[IntervalReport]) -> float:
    """The seconds of a first epoch, without the start of the workers."""
    slowest: dict[int, float] = {}
    for report in reports:
        slowest[report.level] = max(report.seconds, slowest.get(report.level, 0.0))
    return min(seconds, _AROUND * sum(slowest.values()))
