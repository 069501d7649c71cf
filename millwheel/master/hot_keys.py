"""Hot keys: those that have a good part of a computation's records, over a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millwheel.worker.report import IntervalReport

_MANY = 1_000  # records of a computation in a run: among fewer, a key is soon a good part
_HOT = 0.05  # of the records of a run
_KEPT = 64  # keys of a computation that are counted; of more, those with the fewest records go


@dataclass
class _Seen:
    records: int
    first: int
    last: int


class HotKeys:
    """Counts the keys that were hot in an epoch. A share is of all records of the run, and never too large.

    An interval reports its hottest key where it has a twentieth of the interval's records or more; what a key
    had in other epochs is not known, and not counted.
    """

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._seen: dict[str, dict[str, _Seen]] = {}

    def add(self, now: int, reports: Iterable[IntervalReport]) -> None:
        """Adds an epoch, which was at a wall time."""
        for report in reports:
            for name, node in report.nodes.items():
                self._records[name] = self._records.get(name, 0) + node.records
                if node.hot:
                    key, count = node.hot
                    seen = self._seen.setdefault(name, {})
                    known = seen.setdefault(key, _Seen(0, now, now))
                    known.records += count
                    known.last = now
                    if len(seen) > 2 * _KEPT:
                        most = sorted(seen.items(), key=lambda entry: -entry[1].records)
                        self._seen[name] = dict(most[:_KEPT])

    def found(self) -> dict[str, tuple[str, float, int, int]]:
        """By computation: its hottest key, the share of the run's records, and when it was hot: from, to."""
        found = {}
        for name, seen in self._seen.items():
            key, known = max(seen.items(), key=lambda entry: (entry[1].records, entry[0]))
            records = self._records[name]
            share = min(known.records / records, 1.0) if records >= _MANY else 0.0
            if share >= _HOT:
                found[name] = (key, share, known.first, known.last)
        return found
