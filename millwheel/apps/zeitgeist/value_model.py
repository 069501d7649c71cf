"""Expected values of a key, learned online, in constant space.

The mean of the hour of the day, and the level while an hour was never seen. Nothing else: what a better
forecast would explain away, the detector learns as the usual size of the error.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, Settings

_LEVEL = 0.002  # how fast the level follows: about 500 buckets
_SEEN = 50.0  # an hour's mean is that of all it has measured until it was seen so often ...
_HOUR = 1.0 / _SEEN  # ... and follows so fast from then on


class ValueForecast(NamedTuple):
    """The expected value of the next bucket, after ``age`` buckets."""

    value: float
    age: int


@dataclass
class ValueModel:
    """The expected values of one key.

    Feed it buckets in order; one that is left out was not measured.
    """

    age: int = 0
    level: float = 0.0
    means: array[float] = field(default_factory=lambda: array("f"))
    counts: array[float] = field(default_factory=lambda: array("f"))

    def learn(self, settings: Settings, bucket: int, value: float) -> ValueForecast | None:
        """Learns a bucket; what was expected of it, None of the first one."""
        age = self.age
        if age == 0:
            self.level = value
            self.means = array("f", [0.0] * DAY_PARTS)
            self.counts = array("f", [0.0] * DAY_PARTS)
        part = settings.day_part(bucket)
        means, count = self.means, self.counts[part]
        mean = means[part]
        forecast = ValueForecast(mean if count else self.level, age) if age else None
        self.age = age + 1
        self.level += _LEVEL * (value - self.level)
        self.counts[part] = count = count + 1.0
        means[part] = mean + (1.0 / count if count < _SEEN else _HOUR) * (value - mean)
        return forecast
