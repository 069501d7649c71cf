"""Percentile low watermarks (7.2): earlier results in exchange for completeness.

The 99% low watermark of a sender is the one that 99% of its pending timestamps have passed. It is sent
beside the exact one, under a name of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from millwheel.model.names import Percentile, Sender, WatermarkName
from millwheel.model.time import MAX_TIME

EXACT: Final = 1.0


def variant(sender: Sender, percentile: float) -> WatermarkName:
    """The name of a sender's percentile watermark.

    >>> variant("Windower", EXACT)
    'Windower'
    >>> variant("Windower", 0.99)
    Percentile(sender='Windower', percentile=0.99)
    """
    return sender if percentile == EXACT else Percentile(sender, percentile)


def is_of(name: WatermarkName, sender: Sender) -> bool:
    """Whether a name is a watermark of a sender, exact or percentile."""
    return name == sender or (isinstance(name, Percentile) and name.sender == sender)


ALL: Final = 2**63
"""Later than every timestamp."""


class Pending(NamedTuple):
    """The oldest pending timestamps of an interval with their counts, and the total."""

    total: int
    times: list[int]
    """Sorted, without duplicates."""
    counts: list[int]
    known: int
    """Every pending timestamp before this one is in ``times``."""


NOTHING: Final = Pending(0, [], [], ALL)
"""An interval with nothing pending."""


@lru_cache
def rest(percentile: float) -> Fraction:
    """1 - p, exactly, for a percentile p as written in decimal.

    >>> rest(0.9) * 10
    Fraction(1, 1)
    """
    return 1 - Fraction(str(percentile))


def passed(parts: Iterable[Pending], percentile: float) -> tuple[int, bool]:
    """The pending timestamp at position floor((1 - p) * n), and whether it is exact.

    False: it is this timestamp or a later one, as the intervals did not report enough (semantics 13).

    >>> passed([Pending(2, [5, 9], [1, 1], ALL), Pending(8, [7], [8], ALL)], 0.9)
    (7, True)
    >>> passed([Pending(1, [5], [1], ALL), Pending(9, [6], [1], 8)], 0.5)
    (8, False)
    >>> passed([], 0.9) == (MAX_TIME, True)
    True
    """
    parts = list(parts)
    count = sum(part.total for part in parts)
    if not count:
        return MAX_TIME, True
    place = math.floor(rest(percentile) * count)
    known = min(part.known for part in parts)
    for time, found in heapq.merge(*(zip(part.times, part.counts, strict=True) for part in parts)):
        if time >= known:
            break
        if place < found:
            return time, True
        place -= found
    return min(known, MAX_TIME), False


def stragglers(pending: Iterable[tuple[int, int, str]], percentile: float) -> set[str]:
    """The partitions furthest behind that a percentile may ignore.

    Together they hold at most 1 - p of the pending records. ``pending`` is (watermark, pending records,
    name) for each partition.

    >>> sorted(stragglers([(5, 1, "slow"), (90, 150, "a"), (95, 150, "b")], 0.99))
    ['slow']
    >>> sorted(stragglers([(5, 50, "slow"), (90, 150, "a"), (95, 150, "b")], 0.99))
    []
    """
    ordered = sorted(pending)
    left = sum(weight for _, weight, _ in ordered) * rest(percentile)
    behind: set[str] = set()
    for _, weight, name in ordered[:-1]:
        if weight > left:
            break
        left -= weight
        behind.add(name)
    return behind
