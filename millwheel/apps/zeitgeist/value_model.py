"""Measured values: a model of what a key measures, learned online, O(1) in its history.

Three forecasts compete: a fast mean, the hour of the day and the hour of the week, the last two around a slow
level. What they got wrong so far decides how much each is believed.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, WEEK_PARTS, Settings

_MEMORY = 0.003  # of errors and spread: about 300 buckets
_SLOW, _FAST = 0.002, 0.1  # of the two levels
_DAY_GAIN, _WEEK_GAIN = 0.3, 0.4  # of what an hour has shown, how much its season follows
_FIRST_GAIN = 0.6  # the first time
_BELIEF = 4  # a forecast with half the error weighs 2 ** _BELIEF times as much
_OUTLIER = 6.0  # errors: what one value may add to the mean error
_LEARNED = 4.0  # errors: what the levels and seasons learn from one value
_FLOOR = 0.1  # of the spread: no error is believed to be smaller
_TINY = 1e-9


class ValueForecast(NamedTuple):
    """What the next bucket is expected to measure, and how wrong the model tends to be."""

    value: float
    error: float
    seasonal: float
    seasonal_error: float
    level: float
    spread: float
    age: int

    @property
    def floor(self) -> float:
        """An error that is too small to mean anything beside the spread of the values."""
        return _FLOOR * self.spread + _TINY


@dataclass
class ValueModel:
    """The expected values of one key. Feed it buckets in order; one that is left out was not measured."""

    age: int = 0
    last: int = 0
    level: float = 0.0
    fast: float = 0.0
    variance: float = 0.0
    error: float = 0.0
    fast_error: float = 0.0
    day_error: float = 0.0
    week_error: float = 0.0
    shown: float = 0.0
    showings: int = 0
    day: array[float] = field(default_factory=lambda: array("f"))
    week: array[float] = field(default_factory=lambda: array("f"))

    def forecast(self, settings: Settings, bucket: int) -> ValueForecast:
        """What a bucket after the last one is expected to measure."""
        day, week = self._seasons(settings, bucket)
        spread = math.sqrt(self.variance)
        floor = _FLOOR * spread + _TINY
        by_fast = (self.fast_error + floor) ** -_BELIEF
        by_day = (self.day_error + floor) ** -_BELIEF
        by_week = (self.week_error + floor) ** -_BELIEF
        value = (by_fast * self.fast + by_day * day + by_week * week) / (by_fast + by_day + by_week)
        daily = self.day_error < self.week_error
        return ValueForecast(
            value,
            self.error,
            day if daily else week,
            self.day_error if daily else self.week_error,
            self.level,
            spread,
            self.age,
        )

    def update(self, settings: Settings, bucket: int, value: float) -> None:
        """Learns a bucket."""
        if self.age == 0:
            self.age, self.last, self.level, self.fast = 1, bucket, value, value
            self.day = array("f", [math.nan] * DAY_PARTS)
            self.week = array("f", [math.nan] * WEEK_PARTS)
            return
        if settings.day_part(bucket) != settings.day_part(self.last):
            self._fold(settings, self.last)
        now = self.forecast(settings, bucket)
        day, week = self._seasons(settings, bucket)
        self.age += 1
        self.last = bucket
        rate = max(_MEMORY, 1.0 / self.age)
        self.error = _follow(self.error, abs(value - now.value), rate)
        self.fast_error = _follow(self.fast_error, abs(value - self.fast), rate)
        self.day_error = _follow(self.day_error, abs(value - day), rate)
        self.week_error = _follow(self.week_error, abs(value - week), rate)
        self.variance += rate * ((value - self.level) ** 2 - self.variance)
        most = _LEARNED * min(self.day_error, self.week_error)
        learned = value - now.seasonal
        if self.age > settings.warmup:
            learned = min(max(learned, -most), most)
        self.level += max(_SLOW, 1.0 / self.age) * learned
        self.fast += _FAST * (value - self.fast)
        self.shown += learned
        self.showings += 1

    def _seasons(self, settings: Settings, bucket: int) -> tuple[float, float]:
        """The level in the hour of the day and in the hour of the week, as far as they are known."""
        daily = self.day[settings.day_part(bucket)]
        weekly = self.week[settings.week_part(bucket)]
        day = self.level if math.isnan(daily) else self.level + daily
        return day, day if math.isnan(weekly) else self.level + weekly

    def _fold(self, settings: Settings, bucket: int) -> None:
        """At the end of an hour: the seasons learn by how much it differed from what was expected."""
        if not self.showings:
            return
        mean, self.shown, self.showings = self.shown / self.showings, 0.0, 0
        part, week_part = settings.day_part(bucket), settings.week_part(bucket)
        daily, weekly = self.day[part], self.week[week_part]
        known = 0.0 if math.isnan(daily) else daily
        self.day[part] = known + (_FIRST_GAIN if math.isnan(daily) else _DAY_GAIN) * mean
        self.week[week_part] = (known if math.isnan(weekly) else weekly) + _WEEK_GAIN * mean


def _follow(mean: float, error: float, rate: float) -> float:
    """A mean error that no single outlier moves far."""
    return mean + rate * ((min(error, _OUTLIER * mean) if mean else error) - mean)
