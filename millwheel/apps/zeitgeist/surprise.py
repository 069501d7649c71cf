"""Surprise of measured values: how rare what they do is, against what the key itself has done before.

Several statistics look at a value: the error of the forecast, errors that add up over some buckets and over
many, how large errors have become, how far the value is from everything, and whether it moves much more, or
much less, than it used to. None of them has a known distribution, so each is measured by its own tail: how
often such a thing was seen, and beyond that a power law fitted to the largest (Hill). Together they are a
distance. A key that is odd often has to be odder: every anomaly raises the bar for the next one a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.episodes import Verdict
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.value_model import ValueForecast

SENSITIVITY = 4.0
"""Decades, roughly: of all statistics together, and of a key that has been calm."""
_TAIL = 0.025  # the share of a statistic's values that is its tail
_TAIL_STEP = 0.01  # how fast the beginning of the tail follows, in powers of e
_TAIL_MEMORY = 0.02  # of the mean excess: about fifty values in the tail
_LARGEST = 4.0  # mean excesses that one value may add to the mean
_LEAST_EXCESS = 0.02
_FIRST_TAIL, _FIRST_EXCESS = 0.5, 0.5  # where a tail begins, and its excess, before anything is known
_SHORT, _LONG = 0.1, 0.02  # errors that add up: over about ten buckets, and fifty
_RECENT = 0.06  # what is called now, of sizes: about sixteen buckets
_BOUNDED = 6.0  # errors: what one bucket may add to those sums
_WEARINESS = 0.3  # decades that an anomaly adds to the bar ...
_WEARY = 1_000.0  # ... for about so many buckets
_HISTORY = 1_000  # buckets; each tenfold longer history ...
_RARER = 0.5  # ... asks for so many decades more: over months, rare things happen by chance
_LN10 = math.log(10)
_TINY = 1e-9

Tail = list[float]
"""[the logarithm of where a statistic's tail begins, the mean excess of the logarithms beyond]"""


@dataclass
class Surprise:
    """What the detector remembers of a key that measures."""

    age: int = 0
    last: float = 0.0
    short: float = 0.0
    long: float = 0.0
    size: float = 0.0
    step: float = 0.0
    usual_step: float = 0.0
    weariness: float = 0.0
    tails: list[Tail] = field(default_factory=list)

    def judge(self, settings: Settings, forecast: ValueForecast | None, bucket: int, value: float) -> Verdict:
        """Takes in a bucket; the confidence is what the bar leaves of the surprise."""
        if forecast is None or forecast.age < settings.warmup:
            self.last = value
            return Verdict()
        self.age += 1
        seasonal = (value - forecast.seasonal) / (forecast.seasonal_error + forecast.floor)
        distance = 0.0
        for number, size in enumerate(self._statistics(forecast, value, seasonal)):
            distance += self._rarity(number, size) ** 2
        bar = self.weariness + _RARER * max(math.log10(self.age / _HISTORY), 0.0)
        confidence = math.sqrt(distance) - bar
        self.weariness *= 1.0 - 1.0 / _WEARY
        calm = confidence < (settings.sensitivity or SENSITIVITY)
        return Verdict(1 if seasonal > 0 else -1, confidence, bucket, forecast.value, calm)

    def tire(self) -> None:
        """After an anomaly was told."""
        self.weariness += _WEARINESS

    def _statistics(self, forecast: ValueForecast, value: float, seasonal: float) -> tuple[float, ...]:
        floor = forecast.floor
        bounded = min(max(seasonal, -_BOUNDED), _BOUNDED)
        recent = max(_RECENT, 1.0 / self.age)
        self.short += _SHORT * (bounded - self.short)
        self.long += _LONG * (bounded - self.long)
        self.size += recent * (abs(bounded) - self.size)
        step = abs(value - self.last)
        self.last = value
        if self.age == 1:
            self.step = self.usual_step = step
        step = min(step, _BOUNDED * self.usual_step + _TINY)
        self.step += recent * (step - self.step)
        self.usual_step += max(_RECENT / 20, 1.0 / self.age) * (step - self.usual_step)
        roughness = (self.step + _SHORT * floor) / (self.usual_step + _SHORT * floor)
        return (
            abs(value - forecast.value) / (forecast.error + floor),
            abs(self.short),
            abs(self.long),
            self.size,
            abs(value - forecast.level) / (forecast.spread + _TINY),
            roughness,
            1.0 / roughness,
        )

    def _rarity(self, number: int, size: float) -> float:
        """How rare a statistic of this size is, in decades; the tail learns it."""
        logarithm = math.log(size + _TINY)
        if number == len(self.tails):
            self.tails.append([max(logarithm, 0.0) + _FIRST_TAIL, _FIRST_EXCESS])
        tail = self.tails[number]
        begin, mean = tail
        step = max(_TAIL_STEP, self.age**-0.6)
        excess = logarithm - begin
        if excess <= 0.0:
            tail[0] = begin - step * _TAIL
            return 0.0
        rate = max(_TAIL_MEMORY, 1.0 / (2.0 + self.age * _TAIL))
        tail[0] = begin + step * (1.0 - _TAIL)
        tail[1] = max(mean + rate * (min(excess, _LARGEST * mean) - mean), _LEAST_EXCESS)
        return (excess / mean) / _LN10 - math.log10(_TAIL)
