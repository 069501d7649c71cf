"""Percentile low watermarks (7.2): for those who would rather be fast than complete.

The 99% low watermark of a sender is the one that 99% of its pending timestamps have passed. It travels
beside the exact one, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EXACT: Final = 1.0

_MARK = "\x1f"  # no name of a user's has this control character in it


def variant(sender: str, percentile: float) -> str:
    """The name under which a sender's percentile watermark travels.

    >>> variant("Windower", EXACT)
    'Windower'
    """
    return sender if percentile == EXACT else f"{sender}{_MARK}{percentile}"


def is_of(name: str, sender: str) -> bool:
    """Whether a name stands for a watermark of a sender, exact or not."""
    return name.partition(_MARK)[0] == sender


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
