"""The low watermark algorithm (4.5, 7.2), stated once, as functions of values.

    low watermark of A = min(oldest work of A, low watermark of C: C outputs to A)

1. *Input.* A computation's input watermark is the minimum of its senders' low watermarks: `input_watermarks`.
2. *Work.* Its oldest work is the oldest of its pending watermark timers, holds, and buffered records
   (in_order): `Work`.
3. *Low watermark.* The minimum of both, and never behind its previous value: `low_watermark`.
4. *Parts.* Reports of several tasks or intervals on one sender are merged by the minimum: `lowest`.
5. *Percentiles.* In place of the oldest work: the pending timestamp at position floor((1 - p) n)
   (semantics 13): `percentile_watermark`, `millwheel.watermark.percentile`.
6. *Injectors.* Their partitions take the place of the senders, unread input that of the work:
   `millwheel.watermark.source`.

The steps (`millwheel.watermark.interval`), the receivers of frames (`millwheel.watermark.merge`) and the
authority (`millwheel.watermark.authority`) all call these functions; no other code computes the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millwheel.model.names import Sender, WatermarkName
from millwheel.model.time import MAX_TIME
from millwheel.watermark.percentile import EXACT, variant


class Work(NamedTuple):
    """The oldest unfinished work of a computation, by kind; `MAX_TIME`: none."""

    timer: int = MAX_TIME
    """The oldest pending watermark timer."""
    record: int = MAX_TIME
    """The oldest buffered record of a computation that is in order."""
    hold: int = MAX_TIME

    def oldest(self, *, drain: bool = False) -> int:
        """The timestamp that the low watermark cannot pass; a drain ignores holds (9).

        >>> Work(timer=30, hold=10).oldest(), Work(timer=30, hold=10).oldest(drain=True)
        (10, 30)
        """
        return min(self.timer, self.record, MAX_TIME if drain else self.hold)

    @property
    def due(self) -> int:
        """The input watermark that fires a timer (W >= T) or delivers a record (W > T).

        >>> Work(timer=30, record=20).due
        21
        """
        return min(self.timer, self.record + 1)


_NONE = Work()


def all_work(parts: Iterable[Work]) -> Work:
    """Merges the oldest work of several intervals.

    >>> all_work([Work(timer=30), Work(timer=40, hold=10)])
    Work(timer=30, record=9223372036854775807, hold=10)
    """
    timers, records, holds = zip(*parts, _NONE, strict=True)
    return Work(min(timers), min(records), min(holds))


def low_watermark(reached: int, oldest: int, before: int) -> int:
    """The low watermark: the minimum of input and oldest work; never goes back.

    >>> low_watermark(reached=50, oldest=30, before=20), low_watermark(reached=50, oldest=10, before=20)
    (30, 20)
    """
    return max(min(reached, oldest), before)


def percentile_watermark(reached: int, passed: int, low: int, before: int) -> int:
    """A percentile low watermark; ``passed``: its position in the pending timestamps.

    It is never behind the exact low watermark ``low`` (semantics 13).

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
    """The input watermark, exact and by percentile; ``nobody``: without senders.

    >>> input_watermarks(["A", "B"], [], {"A": 5, "B": 7})
    {1.0: 5}
    """
    found = tuple(senders)
    return {
        p: min((known[variant(sender, p)] for sender in found), default=nobody) for p in (EXACT, *percentiles)
    }


def lowest(parts: Iterable[Mapping[WatermarkName, int]]) -> dict[WatermarkName, int]:
    """Merges reports of several tasks or intervals: the minimum for each name (7.2).

    >>> lowest([{"A": 5, "B": 9}, {"A": 7}])
    {'A': 5, 'B': 9}
    """
    merged: dict[WatermarkName, int] = {}
    for part in parts:
        for name, mark in part.items():
            if merged.setdefault(name, mark) > mark:
                merged[name] = mark
    return merged
