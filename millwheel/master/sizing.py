"""The size of an epoch: what is there, up to a bound that keeps its duration near what it aims at."""

from __future__ import annotations

import statistics

_FIRST = 50_000  # records of the first epoch that finds that much: about half a second's work
_LEAST = 500
_MOST = 1_000_000  # a few hundred megabytes in the workers
_STEP = 2.5  # an epoch may be this much larger or smaller than the one before: one outlier does little

_LONGER = 2.0  # times as long are the epochs that are tried
_WORTH = 0.85  # of what a record cost before: longer epochs must bring at least this
_COMPARED = 3  # epochs of a length, of which the middle one counts
_REST = 8  # comparisons until a try that was in vain is made again, unless a record has become dearer since
_CAUGHT_UP = 3  # epochs in a row that were not full: nobody waits for the end of a backlog any more


class Sizer:
    """Grows the bound while full epochs end early, and shrinks it when they end late.

    A full epoch is to take ``target`` seconds. While there is a backlog, longer ones are tried, up to
    ``longest``: where the state is large, each record finds a page of the store of its own, and twice the
    records touch less than twice the pages. They stay where they make a record cheaper, for as long as there
    is a backlog.

    >>> sizer = Sizer(target=1.0)
    >>> sizer.learn(records=50_000, seconds=0.1)
    >>> sizer.bound
    125000
    """

    def __init__(self, target: float, longest: float | None = None) -> None:
        self._target = target
        self._longest = target if longest is None else max(longest, target)
        self.aim = target
        """The seconds that a full epoch is to take for the time being."""
        self.bound = _FIRST
        self._costs: list[float] = []
        self._before: tuple[float, float] | None = None
        """While longer epochs are tried: how long they were before, and what a record cost."""
        self._rest = 0
        self._in_vain = 0.0
        self._small = 0

    def learn(self, records: int, seconds: float) -> None:
        """From an epoch. One that was not full says nothing about a larger one."""
        full = records >= self.bound // 2
        self._small = 0 if full else self._small + 1
        if self._small >= _CAUGHT_UP and self.aim > self._target:
            self._turn_to(self._target)
        if not full and seconds < self.aim:
            return
        as_long = seconds >= self.aim / _STEP or self.bound == _MOST
        factor = self.aim / max(seconds, 1e-3)
        factor = min(max(factor, 1 / _STEP), _STEP)
        # A slow epoch of few records was slow for another reason, the first one above all: it says that the
        # bound is not too small, and no more.
        self.bound = _within(self.bound * factor)
        if full and as_long:
            self._compare(seconds / records)

    def _compare(self, cost: float) -> None:
        """What a record costs in epochs of this length, and whether longer ones are worth a try."""
        self._costs.append(cost)
        if len(self._costs) < _COMPARED:
            return
        cost = statistics.median(self._costs)
        self._costs.clear()
        before, self._before = self._before, None
        if before is not None and cost > _WORTH * before[1]:
            self._turn_to(before[0])
            self._rest, self._in_vain = _REST, before[1]
        elif self._rest and _WORTH * cost < self._in_vain:
            self._rest -= 1
        elif self.aim < self._longest and self.bound < _MOST:
            tried = (self.aim, cost)
            self._turn_to(min(_LONGER * self.aim, self._longest))
            self._before = tried

    def _turn_to(self, aim: float) -> None:
        self.bound = _within(self.bound * aim / self.aim)
        self.aim = aim
        self._costs.clear()
        self._before = None
        self._rest = 0


def _within(bound: float) -> int:
    return min(max(int(bound), _LEAST), _MOST)
