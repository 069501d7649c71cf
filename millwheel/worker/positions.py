"""Positions of records in columns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

_RUN = 16  # positions that follow each other: of fewer, each is looked up by itself


def at(positions: list[int], column: list[Any]) -> Iterable[Any]:
    """What stands in a column at these positions, which rise. Those of a key are as a rule a few runs."""
    start, count = 0, len(positions)
    if count < _RUN:
        return map(column.__getitem__, positions)
    found: list[Any] = []
    while start < count:
        first = positions[start]
        end = count if positions[-1] - first == count - start - 1 else _end_of_run(positions, start)
        if end - start < _RUN:
            return chain(found, map(column.__getitem__, positions[start:]))
        found += column[first : first + end - start]
        start = end
    return found


def _end_of_run(positions: list[int], start: int) -> int:
    """Where positions that follow each other end."""
    offset = positions[start] - start
    low, high = start + 1, len(positions)
    while low < high:
        middle = (low + high) // 2
        if positions[middle] - middle == offset:
            low = middle + 1
        else:
            high = middle
    return low
