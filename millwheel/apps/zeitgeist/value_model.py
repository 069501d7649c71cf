"""Measured values: what a key is expected to measure, learned online, in constant space.

The mean of the hour of the day, and the level while an hour was never seen. Nothing else: what a better
forecast would explain away, the detector learns as the usual size of the error.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, Settings

_LEVEL = 0.002  # how fast the level follows: about 500 buckets
_HOUR = 0.02  # how fast an hour's mean follows once it was seen fifty times


class ValueForecast(NamedTuple):
    """What the next bucket is expected to measure, after so many buckets."""

    value: float
    age: int


@dataclass
class ValueModel:
    """The expected values of one key. Feed it buckets in order; one that is left out was not measured."""

    age: int = 0
    level: float = 0.0
    means: array[float] = field(default_factory=lambda: array("f"))
    counts: array[float] = field(default_factory=lambda: array("f"))

    def forecast(self, settings: Settings, bucket: int) -> ValueForecast:
        """What a bucket after the last one is expected to measure."""
        part = settings.day_part(bucket)
        known = bool(self.counts) and self.counts[part] > 0
        return ValueForecast(self.means[part] if known else self.level, self.age)

    def update(self, settings: Settings, bucket: int, value: float) -> None:
        """Learns a bucket."""
        if self.age == 0:
            self.level = value
            self.means = array("f", [0.0] * DAY_PARTS)
            self.counts = array("f", [0.0] * DAY_PARTS)
        self.age += 1
        self.level += _LEVEL * (value - self.level)
        part = settings.day_part(bucket)
        self.counts[part] += 1
        self.means[part] += max(1.0 / self.counts[part], _HOUR) * (value - self.means[part])
