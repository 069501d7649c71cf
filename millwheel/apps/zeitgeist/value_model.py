"""Expected values of a key, learned online, in constant space.

The mean of the hour of the day and the usual size of its error; the level while an hour was never seen.
Nothing else: what a better forecast would explain away, the detector learns as the usual size of the error.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, Settings

_LEVEL = 0.002  # how fast the level follows: about 500 buckets
_SEEN = 50.0  # an hour's mean is that of all it has measured until it was seen so often ...
_HOUR = 1.0 / _SEEN  # ... and follows so fast from then on
_SPREAD = 0.002  # how fast the usual error of all hours follows


class ValueForecast(NamedTuple):
    """The expected value of the next bucket, after ``age`` buckets, and its error."""

    value: float
    age: int
    spread: float = 0.0
    """The usual size of an error: half that of the hour, half that of all hours."""


@dataclass
class ValueModel:
    """The expected values of one key.

    Feed it buckets in order; one that is left out was not measured.
    """

    age: int = 0
    level: float = 0.0
    means: array[float] = field(default_factory=lambda: array("f"))
    counts: array[float] = field(default_factory=lambda: array("f"))
    spread: float = 0.0
    spreads: array[float] = field(default_factory=lambda: array("f"))

    def learn(self, settings: Settings, bucket: int, value: float) -> ValueForecast | None:
        """Learns a bucket; what was expected of it, None of the first one."""
        age = self.age
        if age == 0:
            self.level = value
            self.means = array("f", [0.0] * DAY_PARTS)
            self.counts = array("f", [0.0] * DAY_PARTS)
        if not self.spreads:
            self.spreads = array("f", [0.0] * DAY_PARTS)
        part = settings.day_part(bucket)
        means, count = self.means, self.counts[part]
        mean = means[part]
        expected = mean if count else self.level
        size, usual = abs(value - expected), self.spreads[part]
        forecast = None
        if age:
            spread = (usual + self.spread) / 2.0 if count else self.spread
            forecast = ValueForecast(expected, age, spread)
            self.spread += max(1.0 / age, _SPREAD) * (size - self.spread)
        self.age = age + 1
        self.level += _LEVEL * (value - self.level)
        self.counts[part] = count = count + 1.0
        rate = 1.0 / count if count < _SEEN else _HOUR
        means[part] = mean + rate * (value - mean)
        self.spreads[part] = usual + rate * (size - usual)
        return forecast
