"""The low watermark of an injector, from its partitions (5.2, Fig. 10).

1. *Vouched for.* The injector's own watermark for a partition that was read up to an offset: `vouched`.
2. *Slack.* Where the injector's watermark follows timestamps: the newest timestamp of the partition less
   the slack, if that is later: `with_slack`.
3. *Read.* The minimum over the ranges that a task reads, without the stragglers of a percentile: `read_mark`.
4. *Injector.* The minimum over its partitions, those without new input in this epoch included: `SourceMark`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from millwheel.model.injector import Injector, Offset
from millwheel.model.time import MAX_TIME, MIN_TIME


class SourceMark(NamedTuple):
    """An injector's watermark as planned; tasks that read a part of it `join` theirs.

    ``held`` is the minimum over the partitions that hold the watermark (`MAX_TIME`: none does), ``newest``
    the newest timestamp read so far.
    """

    previous: int
    held: int
    newest: int
    slack: int | None
    final: bool
    """Whether this epoch reads the last input of a bounded injector."""
    open_end: bool = False
    """Whether event time continues after that, in a later run."""

    def join(self, held: int, newest: int) -> SourceMark:
        """Merges what one task read."""
        return self._replace(held=min(self.held, held), newest=max(self.newest, newest))

    def watermark(self) -> int:
        """The low watermark; it never goes back.

        >>> SourceMark(MIN_TIME, 50, 90, None, False).watermark()
        50

        With a slack it also stays that far behind the newest timestamp:

        >>> SourceMark(MIN_TIME, MAX_TIME, 90, 20, False).watermark()
        70

        Also where a partition vouches for more:

        >>> SourceMark(MIN_TIME, 95, 90, 20, True).watermark()
        70

        If no partition holds it and the injector is not at its end, it stays where it is (Fig. 10):

        >>> SourceMark(30, MAX_TIME, 90, None, False).watermark()
        30

        At the end of the input event time has ended, or continues in a later run (semantics 9):

        >>> SourceMark(30, MAX_TIME, 90, None, True).watermark() == MAX_TIME
        True
        >>> SourceMark(30, MAX_TIME, 90, None, True, open_end=True).watermark()
        90
        """
        if self.final and self.held == MAX_TIME:
            value = behind(self.newest, self.slack or 0) if self.open_end else MAX_TIME
        elif self.slack is not None:
            value = min(self.held, behind(self.newest, self.slack))
        else:
            value = self.previous if self.held == MAX_TIME else self.held
        return max(value, self.previous)


def vouched(injector: Injector, partition: str, offset: Offset) -> int:
    """The injector's watermark for a partition read up to an offset; the only caller."""
    return injector.low_watermark(partition, offset)


def with_slack(mark: int, newest: int, slack: int | None) -> int:
    """The vouched watermark, or the newest timestamp less the slack, if later.

    >>> with_slack(50, newest=90, slack=20), with_slack(80, newest=90, slack=20), with_slack(50, 90, None)
    (70, 80, 50)
    """
    return mark if slack is None else max(mark, behind(newest, slack))


def position(newest: int, mark: int, slack: int | None) -> int:
    """The event time of a partition: its newest timestamp, or one from its watermark.

    >>> position(MIN_TIME, mark=50, slack=20), position(90, mark=50, slack=20)
    (70, 90)
    """
    if newest != MIN_TIME:
        return newest
    return mark + (slack or 0) if MIN_TIME < mark < MAX_TIME else MIN_TIME


def ended_at(newest: int) -> int:
    """The watermark of a stream when a run closes: its newest timestamp plus one (9).

    >>> ended_at(5), ended_at(MIN_TIME) == MIN_TIME
    (6, True)
    """
    return MIN_TIME if newest == MIN_TIME else min(newest + 1, MAX_TIME)


class Read(NamedTuple):
    """A range of a partition that was read: its watermark, and its newest timestamp."""

    partition: str
    watermark: int
    newest: int
    last: bool
    """False for a piece that others of the same partition follow: it does not hold."""


def read_mark(reads: Iterable[Read], slack: int | None, ignored: Collection[str]) -> tuple[int, int]:
    """The watermark and the newest timestamp of ranges read, for `SourceMark.join`.

    ``ignored`` are the partitions that a percentile ignores.

    >>> read_mark([Read("a", 40, 60, True), Read("b", 30, 90, False)], slack=None, ignored=())
    (40, 90)
    >>> read_mark([Read("a", 40, 60, True), Read("b", 30, 90, True)], slack=5, ignored=("a",))
    (85, 90)
    """
    held, newest = MAX_TIME, MIN_TIME
    for read in reads:
        newest = max(newest, read.newest)
        if read.last and read.partition not in ignored:
            held = min(held, with_slack(read.watermark, read.newest, slack))
    return held, newest


def behind(newest: int, slack: int) -> int:
    """The newest timestamp less the slack.

    >>> behind(MIN_TIME, 5) == MIN_TIME
    True
    """
    return MIN_TIME if newest < MIN_TIME + slack else newest - slack
