"""The recent load of each interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millwheel.worker.plan import Interval, Plan
from millwheel.worker.report import IntervalReport

HALF_LIFE = 10.0  # seconds: long enough to be steady from epoch to epoch, short enough to see a change
_MEAN_AGE = HALF_LIFE / math.log(2)
_HOT_SHARE = 0.05  # of an interval's records: below that, a key is not hot
_LONGEST_KEY = 480  # bytes: the page could not show a longer one


@dataclass
class _Interval:
    at: float
    seconds: float = 0.0
    records: float = 0.0
    hot: dict[tuple[str, str], float] = field(default_factory=dict)

    def decay(self, now: float) -> None:
        factor = 0.5 ** ((now - self.at) / HALF_LIFE)
        self.at = now
        self.seconds *= factor
        self.records *= factor
        for place in list(self.hot):
            self.hot[place] *= factor
            if self.hot[place] < 1:
                del self.hot[place]


class Load:
    """Decaying sums, with a half-life of ten seconds.

    Bounded by the number of intervals: of each, the hottest keys of its last epochs are kept.
    """

    def __init__(self) -> None:
        self.intervals: dict[tuple[int, int], _Interval] = {}

    def add(self, plan: Plan, reports: Sequence[IntervalReport], now: float) -> None:
        """Adds an epoch; drops intervals that are no longer in the layout."""
        layout = {(level, i.first) for level, part in enumerate(plan.intervals, 1) for i in part}
        for gone in self.intervals.keys() - layout:
            del self.intervals[gone]
        for report in reports:
            place = (report.level, report.first)
            if place not in layout:
                continue
            found = self.intervals.setdefault(place, _Interval(now))
            found.decay(now)
            found.seconds += report.seconds
            for name, node in report.nodes.items():
                found.records += node.records
                if node.hot and len(node.hot[0].encode("utf-8", "surrogatepass")) <= _LONGEST_KEY:
                    key = (name, node.hot[0])
                    found.hot[key] = found.hot.get(key, 0.0) + node.hot[1]
            if len(found.hot) > 16:  # the hottest of the last epochs; the others decay
                found.hot = dict(sorted(found.hot.items(), key=lambda item: -item[1])[:8])

    def of(self, intervals: Sequence[Sequence[Interval]], now: float) -> list[dict[str, Any]]:
        """By interval of a layout: the share of time it works, records a second, hot key."""
        found = []
        for level, part in enumerate(intervals, 1):
            for interval in part:
                load = self.intervals.get((level, interval.first), _Interval(now))
                load.decay(now)
                hot = max(load.hot.items(), key=lambda item: item[1], default=None)
                if hot is not None and hot[1] < _HOT_SHARE * load.records:
                    hot = None
                found.append(
                    {
                        "level": level,
                        "first": interval.first,
                        "last": interval.last,
                        "slot": interval.slot,
                        "shard": interval.shard,
                        "busy": load.seconds / _MEAN_AGE,
                        "records_per_second": load.records / _MEAN_AGE,
                        "hot_computation": hot[0][0] if hot else None,
                        "hot_key": hot[0][1] if hot else None,
                        "hot_share": min(hot[1] / load.records, 1.0) if hot and load.records else None,
                    }
                )
        return found
