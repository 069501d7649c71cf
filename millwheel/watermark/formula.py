"""The low watermark algorithm (4.5, 7.2), stated once, as functions of values.

    low watermark of A = min(oldest work of A, low watermark of C: C outputs to A)

1. *Input.* A computation's input watermark is the minimum of its senders' low watermarks: `input_watermarks`.
2. *Work.* Its oldest work is the oldest of its pending watermark timers, holds, and records that wait
   (in_order): `Work`.
3. *Low watermark.* The minimum of both, and not behind what it was before: `low_watermark`.
4. *Parts.* What several tasks or intervals report of one sender is merged by the minimum: `lowest`.
5. *Percentiles.* In place of its oldest work, the timestamp at position floor((1 - p) n) of all that is
   pending (semantics 13): `percentile_watermark`, `millwheel.watermark.percentile`.
6. *Injectors.* Their partitions stand for the senders, and unread input for the work:
   `millwheel.watermark.source`.

The steps (`millwheel.watermark.interval`), the receivers of frames (`millwheel.watermark.merge`) and the
authority (`millwheel.watermark.authority`) all call these; nobody else takes a minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millwheel.model.names import Sender, WatermarkName
from millwheel.model.time import MAX_TIME
from millwheel.watermark.percentile import EXACT, variant


class Work(NamedTuple):
    """The oldest unfinished work of a computation, by kind; `MAX_TIME` where there is none."""

    timer: int = MAX_TIME
    """The oldest pending watermark timer."""
    record: int = MAX_TIME
    """The oldest record that waits for the watermark (in_order)."""
    hold: int = MAX_TIME

    def oldest(self, *, drain: bool = False) -> int:
        """The timestamp that the low watermark cannot pass; a drain does not heed holds (semantics 9).

        >>> Work(timer=30, hold=10).oldest(), Work(timer=30, hold=10).oldest(drain=True)
        (10, 30)
        """
        return min(self.timer, self.record, MAX_TIME if drain else self.hold)

    @property
    def due(self) -> int:
        """The input watermark at which a timer fires (W >= T) or a record is delivered (W > T).

        >>> Work(timer=30, record=20).due
        21
        """
        return min(self.timer, self.record + 1)


_NONE = Work()


def all_work(parts: Iterable[Work]) -> Work:
    """The oldest work of several intervals.

    >>> all_work([Work(timer=30), Work(timer=40, hold=10)])
    Work(timer=30, record=9223372036854775807, hold=10)
    """
    timers, records, holds = zip(*parts, _NONE, strict=True)
    return Work(min(timers), min(records), min(holds))


def low_watermark(reached: int, oldest: int, before: int) -> int:
    """The formula: no further than input and oldest work, and never back.

    >>> low_watermark(reached=50, oldest=30, before=20), low_watermark(reached=50, oldest=10, before=20)
    (30, 20)
    """
    return max(min(reached, oldest), before)


def percentile_watermark(reached: int, passed: int, low: int, before: int) -> int:
    """The same for a percentile: ``passed`` is its position among the pending timestamps (semantics 13).

    It is never behind the exact low watermark ``low``.

    >>> percentile_watermark(reached=50, passed=40, low=30, before=20)
    40
    """
    return max(low_watermark(reached, passed, before), low)


def input_watermarks(
    senders: Iterable[Sender],
    percentiles: Iterable[float],
    known: Mapping[WatermarkName, int],
    nobody: int = MAX_TIME,
) -> dict[float, int]:
    """A computation's input watermark, exact and for each percentile; ``nobody``: that of no senders.

    >>> input_watermarks(["A", "B"], [], {"A": 5, "B": 7})
    {1.0: 5}
    """
    found = tuple(senders)
    return {
        p: min((known[variant(sender, p)] for sender in found), default=nobody) for p in (EXACT, *percentiles)
    }


def lowest(parts: Iterable[Mapping[WatermarkName, int]]) -> dict[WatermarkName, int]:
    """Merges the watermarks that several tasks or intervals report: the minimum for each name (7.2).

    >>> lowest([{"A": 5, "B": 9}, {"A": 7}])
    {'A': 5, 'B': 9}
    """
    merged: dict[WatermarkName, int] = {}
    for part in parts:
        for name, mark in part.items():
            if merged.setdefault(name, mark) > mark:
                merged[name] = mark
    return merged
