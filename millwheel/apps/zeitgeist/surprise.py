"""Surprise: the rarity of a key's values, against the key's own past.

Six statistics measure a value: the error of the forecast, by itself and averaged over about 8 and 64 buckets,
so that a spike, an hour that is off and a level that has shifted are each clear in one of them; the error in
proportion to the hour's usual one; and how much rougher, or stiller, the values have become. None has a known
distribution. Each is ranked among all
its own sizes so far (a conformal score), and beyond the largest the tail goes on as a power law (Hill). The
rarest of the six is the confidence, in decades.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import floor, log, log10

from millwheel.apps.zeitgeist.episodes import CALM, Verdict
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.value_model import ValueForecast

SENSITIVITY = 2.7
"""Decades: a size that one in five hundred has, of a key that was watched for a thousand buckets."""
SCALES = _, _FEW, _MANY = (1, 8, 64)
"""Buckets over which errors are averaged."""
REST = 100
"""Buckets after an anomaly in which only a far rarer one is reported."""
_FAR_RARER = 2.0  # decades
_HISTORY = 1_000  # buckets; each tenfold longer history ...
_RARER = 0.5  # ... requires this number of decades more, a shorter one less: rare things happen by chance
_YOUNG = 300  # buckets; a shorter history requires no less, or noise is reported half as often again
_RECENT, _USUAL = 0.06, 0.003  # steps between buckets: about the last 16, and 300
_STILL = 0.01  # of the usual step: anything stiller counts as equal
_BINS = 44  # of a statistic's sizes, the largest in the last one: near five decades down
_BINS_PER_E = 4.0
_LEARNED = 30  # sizes before a rank means anything
_TAIL = 0.025  # the share of the sizes that the power law is fitted to ...
_FEWEST = 3  # ... and the fewest
_LN10 = log(10)
_TINY = 1e-12
_ROUNDING = 1.000_001  # so that a size at the very threshold is ranked


@dataclass
class Surprise:
    """What the detector keeps of a key with measured values."""

    age: int = 0
    last: float = 0.0
    step: float = 0.0
    usual_step: float = 0.0
    means: list[float] = field(default_factory=lambda: [0.0] * (len(SCALES) - 1))
    tops: list[int] = field(default_factory=list)
    bins: array[float] = field(default_factory=lambda: array("f"))
    told: int = -REST - 1
    told_confidence: float = 0.0

    def judge(self, settings: Settings, forecast: ValueForecast | None, bucket: int, value: float) -> Verdict:
        """Adds a bucket; the confidence is the rarest statistic's, 0 where it is calm.

        Hardly a bucket is ranked: a size whose own bin holds many is not rare, whatever is beyond it.
        """
        if forecast is None or forecast.age < settings.warmup:
            self.last = value
            return CALM
        expected = forecast.value
        error = value - expected
        sizes = self._statistics(error, forecast.spread, value)
        threshold = settings.sensitivity or SENSITIVITY
        age = self.age + 1
        more = _RARER * log10(age / _HISTORY) if age >= _YOUNG else 0.0
        rarity = self._learn(sizes, few=_ROUNDING * age / 10.0 ** (threshold + more))
        self.age = age
        confidence = rarity - more
        if confidence < threshold:
            return CALM
        if age - self.told <= REST and confidence < self.told_confidence + _FAR_RARER:
            confidence = threshold - _TINY
        return Verdict(1 if error > 0 else -1, confidence, bucket, expected, calm=False)

    def rest(self, confidence: float) -> None:
        """Notes that an anomaly was reported."""
        self.told, self.told_confidence = self.age, confidence

    def _statistics(self, error: float, spread: float, value: float) -> tuple[float, ...]:
        if len(self.means) != len(SCALES) - 1:  # of a version with other statistics: it learns anew
            self.age, self.means, self.tops, self.bins = 0, [0.0] * (len(SCALES) - 1), [], array("f")
            self.told = -REST - 1
        few, many = self.means
        few += (error - few) / _FEW
        many += (error - many) / _MANY
        self.means = [few, many]
        relative = abs(error) / spread if spread else float(error != 0.0)
        step = abs(value - self.last)
        self.last = value
        if self.age == 0:
            self.step = self.usual_step = step
        self.step = recent = self.step + _RECENT * (step - self.step)
        self.usual_step = usual = self.usual_step + _USUAL * (step - self.usual_step)
        roughness = (recent / usual if usual else 1.0) + _STILL
        return abs(error), abs(few), abs(many), relative, roughness, 1.0 / roughness

    def _learn(self, sizes: tuple[float, ...], few: float) -> float:
        """Adds the sizes to their bins; how rare the rarest of them is, in decades.

        A size that so few, or more, have had is not ranked: its rarity is 0.
        """
        tops, bins, rarest = self.tops, self.bins, 0.0
        if not tops:
            tops += [_height(size) for size in sizes]
            bins.extend([0.0] * (_BINS * len(sizes)))
        first, past = 0, _BINS
        for number, size in enumerate(sizes):
            place = past - 1 + floor(log(size + _TINY) * _BINS_PER_E) - tops[number]  # _height, inlined
            if place >= past:
                rarest = max(rarest, self._rarity_beyond(first, past, place))
                self._raise(first, past, place - past + 1)
                tops[number] += place - past + 1
                place = past - 1
            elif place < first:
                place = first
            held = bins[place]
            if held < few:
                rarest = max(rarest, self._rarity(place, past))
            bins[place] = held + 1.0
            first, past = past, past + _BINS
        return rarest

    def _rarity(self, place: int, past: int) -> float:
        """How rare a size is that others have reached."""
        larger = sum(self.bins[place:past])
        if not larger or self.age < _LEARNED:
            return 0.0
        return log10((self.age + 1) / (larger + 1))

    def _rarity_beyond(self, first: int, past: int, place: int) -> float:
        """How rare a size is that is beyond all others."""
        if self.age < _LEARNED:
            return 0.0
        begin, tail, excess = past, 0.0, 0.0
        while tail < max(_TAIL * self.age, _FEWEST) and begin > first:
            begin -= 1
            excess += tail
            tail += self.bins[begin]
        mean = excess / tail + 0.5
        beyond = (place - begin) / mean / _LN10 + log10(self.age / tail)
        return max(beyond, log10(self.age + 1))

    def _raise(self, first: int, past: int, by: int) -> None:
        """A size beyond all: the bins move down, the lowest ones are merged."""
        lowest = sum(self.bins[first : min(first + by + 1, past)])
        kept = self.bins[first + by + 1 : past]
        self.bins[first:past] = array("f", [lowest]) + kept + array("f", [0.0] * (_BINS - 1 - len(kept)))


def _height(size: float) -> int:
    return floor(log(size + _TINY) * _BINS_PER_E)
