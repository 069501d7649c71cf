"""Percentile low watermarks (7.2): for those who would rather be fast than complete.

The 99% low watermark of a sender is the one that 99% of its pending timestamps have passed. It travels
beside the exact one, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.model.names import Percentile, Sender, WatermarkName

EXACT: Final = 1.0


def variant(sender: Sender, percentile: float) -> WatermarkName:
    """The name under which a sender's percentile watermark travels.

    >>> variant("Windower", EXACT)
    'Windower'
    >>> variant("Windower", 0.99)
    Percentile(sender='Windower', percentile=0.99)
    """
    return sender if percentile == EXACT else Percentile(sender, percentile)


def is_of(name: WatermarkName, sender: Sender) -> bool:
    """Whether a name stands for a watermark of a sender, exact or not."""
    return name == sender or (isinstance(name, Percentile) and name.sender == sender)


def stragglers(pending: Iterable[tuple[int, int, str]], percentile: float) -> set[str]:
    """Who can be left behind: those furthest back that hold no more than the rest of the percentage.

    ``pending`` is (watermark, pending records, name) for each partition.

    >>> sorted(stragglers([(5, 1, "slow"), (90, 150, "a"), (95, 150, "b")], 0.99))
    ['slow']
    >>> sorted(stragglers([(5, 50, "slow"), (90, 150, "a"), (95, 150, "b")], 0.99))
    []
    """
    ordered = sorted(pending)
    left = sum(weight for _, weight, _ in ordered) * (1 - percentile) + 1e-9
    behind: set[str] = set()
    for _, weight, name in ordered[:-1]:
        if weight > left:
            break
        left -= weight
        behind.add(name)
    return behind
