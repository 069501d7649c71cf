"""The low watermark of an injector, from its partitions (5.2, Fig. 10)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.time import MAX_TIME, MIN_TIME


class SourceMark(NamedTuple):
    """What is known of an injector's watermark; tasks that read a part of it know more, and `join`.

    ``held`` is the minimum over the partitions that hold it (`MAX_TIME`: none does), ``newest`` the
    newest timestamp read so far.
    """

    previous: int
    held: int
    newest: int
    slack: int | None
    final: bool
    """Whether this epoch reads the last of a bounded injector."""
    open_end: bool = False
    """Whether event time goes on behind the last of it, in a later run."""

    def join(self, held: int, newest: int) -> SourceMark:
        """With what one task read."""
        return self._replace(held=min(self.held, held), newest=max(self.newest, newest))

    def watermark(self) -> int:
        """The low watermark; it never goes back.

        >>> SourceMark(MIN_TIME, 50, 90, None, False).watermark()
        50

        With a slack it also stays that far behind the newest timestamp:

        >>> SourceMark(MIN_TIME, MAX_TIME, 90, 20, False).watermark()
        70

        Where no partition holds it and more may come, it stays where it is (Fig. 10):

        >>> SourceMark(30, MAX_TIME, 90, None, False).watermark()
        30

        At the end of what there is event time has ended, or goes on in a later run (semantics 9):

        >>> SourceMark(30, MAX_TIME, 90, None, True).watermark() == MAX_TIME
        True
        >>> SourceMark(30, MAX_TIME, 90, None, True, open_end=True).watermark()
        90
        """
        if self.final and self.open_end and self.held == MAX_TIME:
            value = behind(self.newest, self.slack or 0)
        elif self.final:
            value = self.held
        elif self.slack is not None:
            value = min(self.held, behind(self.newest, self.slack))
        else:
            value = self.previous if self.held == MAX_TIME else self.held
        return max(value, self.previous)


def behind(newest: int, slack: int) -> int:
    """The watermark that follows timestamps at a distance.

    >>> behind(MIN_TIME, 5) == MIN_TIME
    True
    """
    return MIN_TIME if newest < MIN_TIME + slack else newest - slack
