"""Counts as a row of bars."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(counts: Sequence[int], width: int | None = None) -> str:
    """A bar for each count, or with a ``width`` for neighbours together.

    >>> sparkline([0, 4, 8])
    ' ▄█'
    >>> sparkline([0, 0, 8, 8], width=2)
    ' █'
    """
    if width is not None and len(counts) > width:
        edges = [number * len(counts) // width for number in range(width + 1)]
        counts = [max(counts[edges[n] : edges[n + 1]]) for n in range(width)]
    top = max([*counts, 1])
    return "".join(_BARS[-(-count * 8 // top)] for count in counts)
