"""Hot keys: those with a large percentage of a computation's records in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MANY = 1_000  # records of a computation in a run: with fewer, any key is a large percentage
_HOT = 0.05  # of the records of a run
_KEPT = 64  # keys counted for a computation; beyond that those with the fewest records are dropped


@dataclass
class _Seen:
    records: int
    first: int
    last: int


class HotKeys:
    """Counts the keys that were hot in an epoch, as a lower bound of their share.

    An interval reports its hottest key if it has 5% of the interval's records or more; the key's records in
    other epochs are not counted. A share is of all records of the run.
    """

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._seen: dict[str, dict[str, _Seen]] = {}

    def add(self, now: int, name: str, records: int, hot: Sequence[Any]) -> None:
        """Adds a computation's records in one interval, and [hottest key, its records]."""
        self._records[name] = self._records.get(name, 0) + records
        if not hot:
            return
        key, count = hot
        seen = self._seen.setdefault(name, {})
        known = seen.setdefault(key, _Seen(0, now, now))
        known.records += count
        known.last = now
        if len(seen) > 2 * _KEPT:
            most = sorted(seen.items(), key=lambda entry: -entry[1].records)
            self._seen[name] = dict(most[:_KEPT])

    def found(self) -> dict[str, tuple[str, float, int, int]]:
        """By computation: its hottest key, its share, and when it was hot: from, to."""
        found = {}
        for name, seen in self._seen.items():
            key, known = max(seen.items(), key=lambda entry: (entry[1].records, entry[0]))
            records = self._records[name]
            share = min(known.records / records, 1.0) if records >= _MANY else 0.0
            if share >= _HOT:
                found[name] = (key, share, known.first, known.last)
        return found
