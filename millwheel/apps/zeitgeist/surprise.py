"""Surprise of measured values: how rare what they do is, against what the key itself has done before.

Six statistics look at a value: the error of the forecast, by itself and averaged over about 4, 16 and 64
buckets, so that a spike, an hour that is off and a level that has shifted are each clear in one of them; and
how much rougher, or stiller, the values have become. None has a known distribution. Each is ranked among all
its own sizes so far (a conformal score), and beyond the largest the tail goes on as a power law (Hill). The
rarest of the six is the confidence, in decades.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.episodes import Verdict
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.value_model import ValueForecast

SENSITIVITY = 2.8
"""Decades: a size that one in six hundred has, of a key that was watched for a thousand buckets."""
SCALES = (1, 4, 16, 64)
"""Buckets over which errors are averaged."""
REST = 100
"""Buckets after an anomaly was told in which only a far rarer one is told."""
_FAR_RARER = 2.0  # decades
_HISTORY = 1_000  # buckets; each tenfold longer history ...
_RARER = 0.5  # ... asks for so many decades more: over months, rare things happen by chance
_RECENT, _USUAL = 0.06, 0.003  # steps between buckets: about the last 16, and 300
_STILL = 0.01  # of the usual step: no stiller is told apart
_BINS = 48  # of a statistic's sizes, the largest in the last one: five decades down
_BINS_PER_E = 4.0
_LEARNED = 30  # sizes before a rank means anything
_TAIL = 0.025  # the share of the sizes that the power law is fitted to ...
_FEWEST = 3  # ... and the fewest
_LN10 = math.log(10)
_TINY = 1e-12


@dataclass
class Surprise:
    """What the detector remembers of a key that measures."""

    age: int = 0
    last: float = 0.0
    step: float = 0.0
    usual_step: float = 0.0
    means: list[float] = field(default_factory=lambda: [0.0] * len(SCALES))
    tops: list[int] = field(default_factory=list)
    bins: array[float] = field(default_factory=lambda: array("f"))
    told: int = -REST - 1
    told_confidence: float = 0.0

    def judge(self, settings: Settings, forecast: ValueForecast | None, bucket: int, value: float) -> Verdict:
        """Takes in a bucket; the confidence is how rare the rarest statistic is."""
        if forecast is None or forecast.age < settings.warmup:
            self.last = value
            return Verdict()
        error = value - forecast.value
        confidence = max(
            self._rarity(number, size) for number, size in enumerate(self._statistics(error, value))
        )
        self.age += 1
        confidence -= _RARER * max(math.log10(self.age / _HISTORY), 0.0)
        threshold = settings.sensitivity or SENSITIVITY
        calm = confidence < threshold
        if self.age - self.told <= REST and confidence < self.told_confidence + _FAR_RARER:
            confidence = min(confidence, threshold - _TINY)
        return Verdict(1 if error > 0 else -1, confidence, bucket, forecast.value, calm)

    def rest(self, confidence: float) -> None:
        """After an anomaly was told."""
        self.told, self.told_confidence = self.age, confidence

    def _statistics(self, error: float, value: float) -> list[float]:
        means = self.means
        for number, scale in enumerate(SCALES):
            means[number] += (error - means[number]) / scale
        step = abs(value - self.last)
        self.last = value
        if self.age == 0:
            self.step = self.usual_step = step
        self.step += _RECENT * (step - self.step)
        self.usual_step += _USUAL * (step - self.usual_step)
        roughness = (self.step / self.usual_step if self.usual_step else 1.0) + _STILL
        return [*map(abs, means), roughness, 1.0 / roughness]

    def _rarity(self, number: int, size: float) -> float:
        """How rare a statistic of this size is, in decades; its sizes learn it."""
        height = math.floor(math.log(size + _TINY) * _BINS_PER_E)
        if number == len(self.tops):
            self.tops.append(height)
            self.bins.extend([0.0] * _BINS)
        first, past = number * _BINS, (number + 1) * _BINS
        place = max(past - 1 + height - self.tops[number], first)
        rarity = self._rank(first, past, place) if self.age >= _LEARNED else 0.0
        if place >= past:
            self._raise(first, past, place - past + 1)
            self.tops[number] = height
            place = past - 1
        self.bins[place] += 1
        return rarity

    def _rank(self, first: int, past: int, place: int) -> float:
        bins = self.bins
        larger = sum(bins[place:past])
        if larger:
            return math.log10((self.age + 1) / (larger + 1))
        begin, tail, excess = past, 0.0, 0.0
        while tail < max(_TAIL * self.age, _FEWEST) and begin > first:
            begin -= 1
            excess += tail
            tail += bins[begin]
        mean = excess / tail + 0.5
        beyond = (place - begin) / mean / _LN10 + math.log10(self.age / tail)
        return max(beyond, math.log10(self.age + 1))

    def _raise(self, first: int, past: int, by: int) -> None:
        """A size beyond all: the bins move down by so many, the lowest become one."""
        lowest = sum(self.bins[first : min(first + by + 1, past)])
        kept = self.bins[first + by + 1 : past]
        self.bins[first:past] = array("f", [lowest]) + kept + array("f", [0.0] * (_BINS - 1 - len(kept)))
