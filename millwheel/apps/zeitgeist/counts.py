"""Counts: a model of a key's records in a bucket, and the confidence of a change.

The model is a level with its trend, times a factor for the hour of the day and one for the hour of the week.
Counts are taken for Poisson with some more noise, so that a rare query needs a handful of records to spike
and a busy one needs a real difference. Everything is O(1) in the history of the key.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, WEEK_PARTS, Settings

_SHORTEST_MEMORY = 8  # buckets that the level is a mean of, at least
_PARTS_REMEMBERED = 6  # hours that it is a mean of once the season is known
_RECORDS_REMEMBERED = 30.0  # of which a rare key's level is a mean, as far as a week holds them
_STEEPEST = 0.05  # the trend of a bucket, as a share of the level
_PRIOR = 20.0  # records that an hour must have had before its season is half believed
_DAY_GAIN = 0.4  # of what an hour has shown, how much the season follows
_JUMP = 3.0  # an hour with this factor more or less than usual moves it no further
_MOST_SILENCE = 10.0  # expected records of a silence that the level learns from; more is an outage
_RARE = 1.0  # records an hour: a key with fewer has no season
_MOST_NOISE = 9.0  # the noise of one bucket: more is an anomaly rather than noise
_NOISE_MEMORY = 200.0  # buckets
_ODD = 3.0  # decades: a bucket with less likelihood than that is not learned from ...
_STUBBORN = 24  # ... for this number of buckets; then it is the new normal
_DOUBT = 2.0  # standard errors of the level that are given away before anything is called odd
_DRIFT = 0.3  # in the first day, when the level follows fast
_UNSEASONED = 1.5  # of a key with too few records for a season: it may have one all the same
_REGULAR, _REGULAR_BUCKETS = 20.0, 12  # records, and buckets with any, that a key must have had to be missed
_LN10 = math.log(10)


class Forecast(NamedTuple):
    """The expected counts of the next buckets.

    ``low`` and ``high`` allow for the uncertainty of the level.
    """

    low: float
    mean: float
    high: float
    noise: float
    age: int
    regular: bool = False
    """Whether there is enough behind it to believe that records are missing."""

    def surprise(self, count: float, buckets: int = 1) -> float:
        """The unlikeliness of a count in some buckets, in decades; negative if too low.

        >>> calm = Forecast(low=9.0, mean=10.0, high=11.0, noise=1.0, age=100)
        >>> round(calm.surprise(10), 1), round(calm.surprise(40), 1), round(calm.surprise(0, 2), 1)
        (0.0, 9.8, -7.8)
        """
        low, high = self.low * buckets, self.high * buckets
        if count > high:
            return likelihood_ratio(count, high) / self.noise
        if count < low:
            return -likelihood_ratio(count, low) / self.noise
        return 0.0


def likelihood_ratio(count: float, expected: float) -> float:
    """The log10 likelihood ratio of a count's own rate to the expected one."""
    if count <= 0.0:
        return expected / _LN10
    if expected <= 0.0:
        return math.inf
    return (count * math.log(count / expected) - count + expected) / _LN10


@dataclass
class CountModel:
    """The expected traffic of one key.

    Feed it complete buckets in order; those left out had no record.
    """

    first: int = 0
    last: int = -1
    level: float = 0.0
    trend: float = 0.0
    mass: float = 0.0
    noise: float = 1.0
    odd: int = 0
    seen: float = 0.0
    parts: int = 0
    filled: int = 0
    day: array[float] = field(default_factory=lambda: array("f"))
    week: array[float] = field(default_factory=lambda: array("f"))

    def factor(self, settings: Settings, bucket: int) -> float:
        """The seasonal factor of a bucket: 1 on average, and before a key's second day."""
        if not self._knows_day():
            return 1.0
        mean = self.day[-1]
        part = self.day[settings.day_part(bucket)]
        if self._knows_week():
            # The hour of the week, as far as it was seen, in place of the hour of the day.
            weekly = self.week[settings.week_part(bucket)]
            part = (weekly * weekly + part * _PRIOR) / (weekly + _PRIOR)
        return (part + _PRIOR) / (mean + _PRIOR)

    def forecast(self, settings: Settings, bucket: int) -> Forecast:
        """What a bucket after the last one is expected to have."""
        mean = max(self.level + self.trend, 0.0) * self.factor(settings, bucket)
        doubt = _DOUBT / math.sqrt(self.mass + 1.0) + self._drift()
        high = mean * (1.0 + doubt) + 1.0 / (self.age + 1.0)
        regular = self.mass >= _REGULAR and self.filled >= _REGULAR_BUCKETS and self.age >= settings.warmup
        return Forecast(mean / (1.0 + doubt), mean, high, self.noise, self.age, regular)

    def _drift(self) -> float:
        """The relative drift to allow while the season is unknown or uncertain."""
        if not self._knows_day():
            return _DRIFT
        return _UNSEASONED * (_PRIOR / (self.day[-1] + _PRIOR)) ** 2

    @property
    def age(self) -> int:
        """Buckets since the key was first seen."""
        return self.last - self.first + 1

    def patience(self, settings: Settings, records: float) -> int:
        """The silent buckets after which ``records`` are missing; at most a week."""
        step, total = self._buckets_a_part(settings), 0.0
        bucket = self.last + 1
        while bucket - self.last <= 7 * settings.buckets_a_day:
            rate = self.level * self.factor(settings, bucket)
            if total + rate * step >= records:
                return bucket - self.last + math.ceil((records - total) / rate) - 1
            total += rate * step
            bucket += step
        return bucket - self.last

    def update(self, settings: Settings, bucket: int, count: int) -> None:
        """Learns a bucket, and the silence before it."""
        if self.last < self.first:
            self.first, self.last, self.level, self.mass, self.seen = bucket, bucket, count, count, count
            return
        self._pass_silence(settings, bucket)
        now = self.forecast(settings, bucket)
        surprise = now.surprise(count)
        if abs(surprise) >= _ODD and self.odd < _STUBBORN and now.age >= settings.warmup:
            self.odd += 1
            learned = now.mean
        else:
            learned = float(count)
            self.odd = 0 if abs(surprise) < _ODD else self.odd
            excess = (count - now.mean) ** 2 / (now.mean + 1.0)
            self.noise = max(self.noise + (min(excess, _MOST_NOISE) - self.noise) / _NOISE_MEMORY, 1.0)
        self.last = bucket
        rate = max(1.0 / (self.age + 1.0), 1.0 / self._memory(settings))
        error = learned / self.factor(settings, bucket) - self.level - self.trend
        self.level = max(self.level + self.trend + rate * error, 0.0)
        if self.age > settings.warmup:
            trend = self.trend + rate * rate / 3.0 * error
            self.trend = max(min(trend, _STEEPEST * self.level), -_STEEPEST * self.level)
        self.mass += learned - (rate * self.mass if self.age >= 1.0 / rate else 0.0)
        self.seen += learned
        self.filled += 1

    def _buckets_a_part(self, settings: Settings) -> int:
        return max(settings.buckets_a_day // DAY_PARTS, 1)

    def _memory(self, settings: Settings) -> float:
        """The memory of the level: an hour until the season is known, then longer."""
        parts = _PARTS_REMEMBERED if self._knows_day() else 1
        shortest = max(parts * settings.buckets_a_day / DAY_PARTS, _SHORTEST_MEMORY)
        if self.level * shortest >= _RECORDS_REMEMBERED:
            return shortest
        return min(_RECORDS_REMEMBERED / (self.level + 1e-9), 7.0 * settings.buckets_a_day)

    def _knows_day(self) -> bool:
        return self.parts > DAY_PARTS  # the first one may have been half over when the key was first seen

    def _knows_week(self) -> bool:
        return self.parts > WEEK_PARTS + DAY_PARTS

    def _pass_silence(self, settings: Settings, bucket: int) -> None:
        """Moves to a bucket; silent buckets before it count unless they are an outage."""
        a_part, left = self._buckets_a_part(settings), _MOST_SILENCE
        last = self.last
        if bucket - last > a_part and self.level * a_part < _RARE:
            self._skip(settings, bucket)
            return
        furthest = min(bucket, last + 7 * settings.buckets_a_day)
        while last < furthest:
            to = min((last // a_part + 1) * a_part, furthest)
            silent = to - last - (to == bucket)
            if silent > 0:
                expected = self.level * self.factor(settings, to) * silent
                taken = min(expected, left)
                counted = silent * (taken / expected if expected else 1.0)
                self._decay(counted, self._memory(settings), last - self.first + 1)
                self.seen += expected - taken
                left -= taken
            if settings.day_part(to) != settings.day_part(last):
                self._fold(settings, last)
            last = to
        self.last = bucket - 1

    def _skip(self, settings: Settings, bucket: int) -> None:
        """Moves a rare key, whose season is negligible, over its silence in one step."""
        silent, memory, age = bucket - self.last - 1, self._memory(settings), self.age
        self._fold(settings, self.last)
        self._decay(min(silent, _MOST_SILENCE / (self.level + 1e-9)), memory, age)
        if self._knows_day():
            self.parts += silent // self._buckets_a_part(settings)
        self.last = bucket - 1

    def _decay(self, silent: float, memory: float, age: int) -> None:
        """The level after a number of silent buckets."""
        if age < memory:
            self.level *= age / (age + silent)
        else:
            self.level *= (1.0 - 1.0 / memory) ** silent
            self.mass *= (1.0 - 1.0 / memory) ** silent
        self.trend = 0.0

    def _fold(self, settings: Settings, bucket: int) -> None:
        """At the end of a part of the day: the seasons learn what it has shown."""
        knew, seen = self._knows_day(), self.seen
        if not self.day:
            self.day = array("f", [seen] * (DAY_PARTS + 1))
        part = settings.day_part(bucket)
        old = self.day[part]
        shown = min(max(seen, old / _JUMP - _PRIOR), old * _JUMP + _PRIOR) if knew else seen
        self.day[part] += (_DAY_GAIN if knew else 1.0) * (shown - old)
        self.day[-1] = sum(self.day[:-1]) / DAY_PARTS
        if knew:
            self._fold_week(settings.week_part(bucket), shown)
        self.parts += 1
        self.seen = 0.0
        if self._knows_day() and not knew:
            self.level /= self.factor(settings, bucket)
            self.trend = 0.0

    def _fold_week(self, part: int, shown: float) -> None:
        if not self.week:
            self.week = array("f", [0.0] * WEEK_PARTS)
        old = self.week[part]
        self.week[part] = old + (_DAY_GAIN if self._knows_week() else 1.0) * (shown - old)
